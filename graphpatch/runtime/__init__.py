"""The only folder that imports TensorFlow, and only inside functions."""
