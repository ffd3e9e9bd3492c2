"""The graph in memory: indexed where it lies, changed by the editor alone."""
