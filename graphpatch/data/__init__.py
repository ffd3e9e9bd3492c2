"""Data that the package carries: opdefs.json for `opdefs`, gradients.json for `differentiation`."""
