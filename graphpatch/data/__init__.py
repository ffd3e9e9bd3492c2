"""Data that the package carries: opdefs.json is read by graphpatch.opdefs."""
