"""Functions of PyTorch with arguments, by the operators of ATen that they become."""
