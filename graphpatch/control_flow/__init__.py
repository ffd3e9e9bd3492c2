"""v1 loops and branches: their ops, the contexts that TensorFlow has of them, and its messages."""
