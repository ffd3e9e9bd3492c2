"""Functions on tensors for programs that build a model: forward a value, backward another one."""
