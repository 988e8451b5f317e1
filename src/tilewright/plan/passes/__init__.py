"""Plan rewrites: which Computations form a kernel, in which form, and where results are stored."""
