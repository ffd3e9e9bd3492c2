"""The table of methods x models, and its heat maps."""
