"""PTX run on the host, an instruction at a time for all threads: a judge of code without a GPU.

It knows the instructions that our kernels have, and refuses others by name. Threads run in step as
far as their branches allow, so that it finds wrong arithmetic, addresses and branches, and
accesses outside memory; races are for the interpreter of launches to find.
"""
