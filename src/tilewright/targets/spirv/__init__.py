"""SPIR-V, the code of OpenCL's and oneAPI's drivers."""
