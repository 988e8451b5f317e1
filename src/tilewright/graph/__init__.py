"""Models as operators over tensors."""
