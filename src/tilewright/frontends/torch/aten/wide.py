"""Rules that compute float16 and bfloat16 in float32 and round once, as PyTorch does.

PyTorch's processor kernels read such numbers as float32 and round what they store. A rule of
several operations would round after each of them. Numbers beside tensors are kept whole by
PyTorch's kernels of products and quotients, and rounded to 16 bits first by those of sums.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import numpy as np

from tilewright.base.dtypes import DType, bfloat16, float16, float32
from tilewright.frontends.torch.aten.rules import AtenCall
from tilewright.graph.nodes import Value

_Rule = Callable[[AtenCall], Value]


class _WideCall(AtenCall):
    """A call whose result and tensors are float32 instead of 16 bits wide."""

    @property
    def dtype(self) -> DType:
        return _wide(super().dtype)

    def tensor(self, name: str = "self", dtype: DType | None = None) -> Value:
        found = super().tensor(name, dtype)
        if found.dtype is None:
            return found
        return self.cast(found, _wide(found.dtype))


class _RoundedCall(_WideCall):
    """The same, with numbers rounded to the 16 bits of the result first."""

    def tensor(self, name: str = "self", dtype: DType | None = None) -> Value:
        return super().tensor(name, super(_WideCall, self).dtype)


def in_float32(rule: _Rule) -> _Rule:
    """The rule with operands and intermediate results in float32 if its result has 16 bits."""

    return _called_as(_WideCall, rule)


def with_rounded_numbers(rule: _Rule) -> _Rule:
    """As `in_float32`, after the numbers beside tensors are rounded to 16 bits."""

    return _called_as(_RoundedCall, rule)


def with_whole_numbers(rule: _Rule) -> _Rule:
    """The rule in float32 if the result has 16 bits and a number beside it does not fit these.

    PyTorch takes a tensor without axes for a number, too.
    """
    wide = in_float32(rule)

    @wraps(rule)
    def apply(c: AtenCall) -> Value:
        kept = _is_short(c.dtype) and any(_is_rounded(c, n) for n in c.arguments)
        return (wide if kept else rule)(c)

    return apply


def _called_as(kind: type[_WideCall], rule: _Rule) -> _Rule:
    """The rule on another kind of call if its result has 16 bits."""

    @wraps(rule)
    def apply(c: AtenCall) -> Value:
        if not _is_short(c.dtype):
            return rule(c)
        call = kind(c.build, c.node, c.target, c.arguments, c.given)
        return c.cast(rule(call), c.dtype)

    return apply


def _is_short(dtype: DType) -> bool:
    return dtype in (float16, bfloat16)


def _wide(dtype: DType) -> DType:
    return float32 if _is_short(dtype) else dtype


def _is_rounded(c: AtenCall, name: str) -> bool:
    """Whether an argument is a number, or a wider tensor without axes, that may not be exact."""
    held = c[name]
    if isinstance(held, Value):
        dtype = held.dtype
        wider = dtype is not None and dtype.is_float and not _is_short(dtype)
        return wider and not c.of(name).shape
    if isinstance(held, bool) or not isinstance(held, int | float):
        return False
    kept = float(np.asarray(held).astype(c.dtype.numpy))
    return kept != held
