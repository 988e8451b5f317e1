"""Decompositions that PyTorch lacks, or that end in primitives without a rule.

One file per family; each function has the arguments and results of its operators, as tensors.
"""
