"""Errors that users provoke: the files they give, the commands they type, and what they are told."""
