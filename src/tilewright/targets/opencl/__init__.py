"""OpenCL: kernels as OpenCL C 1.2, and the devices that run it."""
