"""Where: which ops of a graph a rule means."""
