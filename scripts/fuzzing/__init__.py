"""Random hostile input for every command, and random graphs whose gradients TensorFlow checks."""
