"""The graph in memory: indexed where it lies, changed by `edit` alone."""
