"""Runs PTX on the host, an instruction at a time for all threads: tests code without a GPU.

It knows the instructions of our kernels, and rejects others by name. Threads run in lockstep as far
as their branches allow. It finds wrong arithmetic, addresses and branches, and accesses outside
memory; the interpreter of launches finds races.
"""
