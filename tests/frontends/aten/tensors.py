"""Random tensors for the cases."""

import functools

import torch


def x(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# Made before a function is traced, and a constant of it.
w = functools.cache(x)


def i(*shape, high=5, seed=0):
    return torch.randint(
        -high, high, shape, generator=torch.Generator().manual_seed(seed)
    )


def b(*shape):
    return x(*shape, seed=7) > 0
