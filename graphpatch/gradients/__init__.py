"""What flows back: the formula language, its three forms, and the library of gradients."""
