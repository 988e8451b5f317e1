"""The networks of the example, and small programs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from tilewright.lang.lift import Join, Map, Reduce, Zip, add, f32, fun, mul, relu
from tilewright.lift.nodes import Lambda


def example() -> ModuleType:
    """`examples/npu_portability.py` as a module."""
    name = "npu_portability"
    if name not in sys.modules:
        path = Path(__file__).parents[3] / "examples" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def chain(n: int) -> Lambda:
    """`relu(a * b + c)`."""
    products = lambda a, b: Zip(a, b) | Map(mul)  # noqa: E731
    body = lambda a, b, c: Zip(products(a, b), c) | Map(add) | Map(relu)  # noqa: E731
    return fun(body, *(f32[n],) * 3)


def layer(m: int, n: int) -> Lambda:
    """`relu(W x + b)`."""
    dots = lambda W, x: (  # noqa: E731
        W | Map(lambda r: Zip(r, x) | Map(mul) | Reduce(add, 0.0)) | Join
    )
    body = lambda W, b, x: Zip(dots(W, x), b) | Map(add) | Map(relu)  # noqa: E731
    return fun(body, f32[m, n], f32[m], f32[n])
