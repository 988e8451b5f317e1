"""NVIDIA's GPUs: a program of launches as PTX by LLVM, which their driver loads."""
