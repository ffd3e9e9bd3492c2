"""Why is my gradient None, zero or an error: `graphpatch doctor`, without TensorFlow."""
