"""Schedule primitives: rewrites of kernels that prove their own preconditions."""
