"""What TensorFlow does on the way back: where gradients flow, and who differentiates what."""
