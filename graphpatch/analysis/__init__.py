"""Questions about a graph, each in its own file."""
