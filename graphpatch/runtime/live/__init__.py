"""Live graphs of TensorFlow: rules on ops that exist, and on ops as they are made."""
