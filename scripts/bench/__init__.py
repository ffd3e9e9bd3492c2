"""The benchmark: see `__main__.py`."""
