"""Patterns: small graphs, and where a body holds them."""
