"""Halide's notation: Funcs over Vars, defined purely and then updated, as Computations and Kernels.

`x` is the first index of Halide and the innermost: `f[x, y]` is element `[y, x]` of a NumPy array,
as in Halide's own Python bindings. A definition is a Computation where it is a homomorphism (every
pure definition, every associative update over an RDom); a scatter or a recurrence is a nest of the
loop IR (`lower.py`).
"""
