"""hybrid.script: a Python function of loops and assignments, compiled as it is written.

    @hybrid.script
    def prefix(a):
        out = output_tensor(a.shape, "float32")
        total = 0.0
        for i in range(a.shape[0]):
            total += a[i]
            out[i] = total
        return out

    P = prefix(A)                                        A: a tensor; P: a tensor to be scheduled

On NumPy arrays the function runs in Python instead. The language: `for` over `range`, `parallel`,
`vectorize`, `unroll` or `const_range`; `while`, `if`, `assert` of constants; assignments to
elements and to scalar variables; `output_tensor(shape, dtype)`, `allocate(shape, dtype, scope)`;
arithmetic, comparisons and the scalar functions of te. Everything else is an InputError.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import numpy as np

from tilewright.base.refused import UnsupportedName
from tilewright.lang.te.syntax.naming import assigned
from tilewright.lang.te.syntax.nodes import Tensor
from tilewright.lang.te.syntax.script import read

ABSENT = {
    "HybridModule": "build(create_schedule(out.op), args)",
    "build": "build(create_schedule(out.op), args) of te",
}


def __getattr__(name: str) -> Any:
    if name in ABSENT:
        return UnsupportedName("TVM", name, ABSENT[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def script(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function on tensors (and numbers): the tensors that it returns, made by its loops.

    Raises InputError, with the line, for constructs outside of the language above.
    """

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        if not any(isinstance(a, Tensor) for a in args):
            return _in_python(function)(*args)
        outputs = read(function, args, assigned())
        return outputs[0] if len(outputs) == 1 else outputs

    return call


def _in_python(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the language's own names, run by Python."""
    assert isinstance(function, FunctionType)
    names = {**vars(builtins), **function.__globals__, **_PYTHON}
    parts = (function.__name__, function.__defaults__, function.__closure__)
    return FunctionType(function.__code__, names, *parts)


def _array(shape: Any, dtype: str = "float32", scope: str = "global") -> Any:
    return np.zeros(shape, dtype)


def _bound(axis: str, extent: int) -> Iterator[int]:
    return iter(range(extent))


_PYTHON: dict[str, Any] = {
    "allocate": _array,
    "output_tensor": _array,
    **dict.fromkeys(("parallel", "vectorize", "unroll", "const_range"), range),
    "bind": _bound,
    "likely": lambda condition: condition,
    "ceil_div": lambda a, b: -(-a // b),
    "power": np.power,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "round": np.round,
    "popcount": lambda x: int(x).bit_count(),
    **{
        name: getattr(np, name)
        for name in "sqrt log tanh exp sin cos floor ceil float16 float32 float64 int8 int16 "
        "int32 int64 uint8 uint16 uint32 uint64".split()
    },
}
