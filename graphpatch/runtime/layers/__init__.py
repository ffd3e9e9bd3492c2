"""Keras layers: what each does, apart from the Keras that it is built for."""
