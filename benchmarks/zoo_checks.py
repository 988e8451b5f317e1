"""The checks of a network of the zoo; each returns a row."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn

import tilewright as tw
from tilewright.base import events
from tilewright.base.errors import TilewrightWarning

Row = dict[str, Any]
Inputs = Mapping[str, torch.Tensor]

# Relative to the largest element. Deep networks have larger rounding errors, in PyTorch too.
TOLERANCE: Final = 1e-4
FACTOR: Final = 4.0  # times the error of PyTorch itself in float32


def called(module: nn.Module, inputs: Inputs) -> Any:
    """The network called on its inputs: by name if it has a `config`, as those of transformers
    do."""
    return module(**inputs) if hasattr(module, "config") else module(*inputs.values())


def leaves(found: Any) -> list[torch.Tensor]:
    """The tensors of a result, in order."""
    if hasattr(found, "to_tuple"):
        found = found.to_tuple()
    parts = torch.utils._pytree.tree_leaves(found)
    return [p for p in parts if isinstance(p, torch.Tensor)]


def in_double(module: nn.Module, inputs: Inputs) -> list[torch.Tensor]:
    """The network's results in float64."""
    wide = _widened(module)
    with torch.no_grad(), _default(torch.float64):
        return leaves(called(wide, {k: _wide(x) for k, x in inputs.items()}))


def _widened(module: nn.Module) -> nn.Module:
    """A copy in float64; products of experts one by one, since PyTorch's joined one has no such.

    Gradients reach batch norms without gaps: PyTorch 2.13's native_batch_norm_backward on
    processors reads others wrongly at batch 1 (strides 128, 1, 512, 128 of 1 x 128 x 4 x 4).
    """
    wide = copy.deepcopy(module).double()
    for part in wide.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.register_forward_hook(_whole_gradient)
    if hasattr(wide, "set_experts_implementation"):
        wide.set_experts_implementation("eager")
    return wide


def _whole_gradient(module: nn.Module, inputs: Any, found: torch.Tensor) -> None:
    if found.requires_grad:
        found.register_hook(lambda g: g.clone(memory_format=torch.contiguous_format))


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def distance(found: Sequence[Any], right: Sequence[torch.Tensor]) -> float:
    """The largest error of any result, relative to its largest element."""
    if len(found) != len(right):
        raise AssertionError(f"{len(found)} results, where there are {len(right)}")
    return max(
        (_distance(torch.as_tensor(f), r) for f, r in zip(found, right)), default=0
    )


def _distance(found: torch.Tensor, right: torch.Tensor) -> float:
    if found.shape != right.shape:
        raise AssertionError(f"shape {tuple(found.shape)}, not {tuple(right.shape)}")
    if not right.numel():
        return 0.0
    a, b = found.detach().double(), right.detach().double()
    both = torch.isfinite(a) & torch.isfinite(b)
    same = (a == b) | (a.isnan() & b.isnan())
    if not bool((both | same).all()):
        return float("inf")
    off = (a - b)[both].abs().max() if both.any() else torch.zeros(())
    peak = b[both].abs().max() if both.any() else torch.ones(())
    return float(off / peak) if peak > 0 else float(off)


def judged(found: Sequence[Any], near: Sequence[Any], right: Sequence[Any]) -> Row:
    """The row of results: near is PyTorch in float32, right is PyTorch in float64."""
    ours, theirs = distance(found, right), distance(near, right)
    ok = ours <= max(TOLERANCE, FACTOR * theirs)
    return {
        "status": "ok" if ok else "wrong",
        "error": float(f"{ours:.3g}"),
        "torch_error": float(f"{theirs:.3g}"),
        **({} if ok else {"message": f"off by {ours:.3g}, PyTorch by {theirs:.3g}"}),
    }


def imported(module: nn.Module, inputs: Inputs, threads: Sequence[int]) -> Row:
    """Compiled from the module, without operators on the host."""
    heard: list[str] = []
    ways = {"imported-by-onnx": heard}
    listen = lambda e: ways.get(e.kind, []).append(str(e.fields))  # noqa: E731
    events.subscribe(listen)
    start = time.perf_counter()
    exe = compiled(module, inputs, threads[0])
    seconds = time.perf_counter() - start
    by_name = hasattr(module, "config")
    found = leaves(exe(**inputs) if by_name else exe(*inputs.values()))
    with torch.no_grad():
        near = leaves(called(module, inputs))
    row = judged(found, near, in_double(module, inputs))
    if heard:
        row |= {"status": "by-onnx", "message": heard[0]}
    return row | {"compile": round(seconds, 2)}


def compiled(module: nn.Module, inputs: Inputs, threads: int) -> Any:
    """The executable of a network, all of it native."""
    given: Any = dict(inputs) if hasattr(module, "config") else tuple(inputs.values())
    return tw.compile(module, given, threads=threads, fallback="error")


def fast(module: nn.Module, threads: int) -> Any:
    """The network through `torch.compile` with our backend; it is compiled at its first call."""
    return torch.compile(module, backend="tilewright", options={"threads": threads})


def captured(module: nn.Module, inputs: Inputs, threads: Sequence[int]) -> Row:
    """Through torch.compile: graphs, breaks, and the parts left to PyTorch."""
    right = in_double(module, inputs)
    with torch.no_grad():
        near = leaves(called(module, inputs))
    with warnings.catch_warnings(record=True) as said, torch.no_grad():
        warnings.simplefilter("always", TilewrightWarning)
        start = time.perf_counter()
        compiled_module = fast(module, threads[0])
        found = leaves(called(compiled_module, inputs))
        seconds = time.perf_counter() - start
        again = leaves(called(compiled_module, inputs))
    row = judged(found, near, right)
    if distance(again, found) > 0:
        row |= {"status": "wrong", "message": "two calls differ"}
    counts = torch._dynamo.utils.counters
    left = [str(w.message) for w in said if issubclass(w.category, TilewrightWarning)]
    if left and row["status"] == "ok":
        row |= {"status": "left", "message": left[0]}
    breaks = sum(counts["graph_break"].values())
    return row | {
        "compile": round(seconds, 2),
        "graphs": counts["stats"]["unique_graphs"],
        "breaks": breaks,
    }


def trained(module: nn.Module, inputs: Inputs, threads: Sequence[int]) -> Row:
    """Gradients of all parameters through torch.compile, of a loss over all results."""
    right = gradients(*_double(module, inputs))
    near = gradients(module, module, inputs)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", TilewrightWarning)
        start = time.perf_counter()
        found = gradients(module, fast(module, threads[0]), inputs)
        seconds = time.perf_counter() - start
    row = _judged_gradients(found, near, right)
    left = [str(w.message) for w in said if issubclass(w.category, TilewrightWarning)]
    if left and row["status"] == "ok":
        row |= {"status": "left", "message": left[0]}
    return row | {"compile": round(seconds, 2)}


def _double(module: nn.Module, inputs: Inputs) -> tuple[nn.Module, nn.Module, Inputs]:
    wide = _widened(module)
    return wide, wide, {k: _wide(x) for k, x in inputs.items()}


def gradients(module: nn.Module, call: Any, inputs: Inputs) -> dict[str, torch.Tensor]:
    """The gradient of each parameter; the loss is a fixed combination of all results."""
    module.zero_grad()
    wide = next(module.parameters()).dtype
    found = call(**inputs) if hasattr(module, "config") else call(*inputs.values())
    generator = torch.Generator().manual_seed(3)
    loss = torch.zeros((), dtype=wide)
    for y in leaves(found):
        if y.is_floating_point() and y.requires_grad:
            drawn = torch.randn(y.shape, generator=generator, dtype=torch.float64)
            loss = loss + (y * drawn.to(wide)).sum()
    loss.backward()
    parts = module.named_parameters()
    return {n: p.grad.clone() for n, p in parts if p.grad is not None}


def _judged_gradients(
    found: Mapping[str, torch.Tensor],
    near: Mapping[str, torch.Tensor],
    right: Mapping[str, torch.Tensor],
) -> Row:
    """As of one vector of all gradients: a parameter without effect has rounding alone."""
    if set(found) != set(near):
        missing = sorted(set(near) ^ set(found))
        return {"status": "wrong", "message": f"gradients only of one: {missing[:3]}"}
    scale = max(float(g.abs().max()) for g in right.values())

    def worst(of: Mapping[str, torch.Tensor]) -> tuple[float, str]:
        off = {
            n: float((of[n].double() - g).abs().max())
            / max(float(g.abs().max()), 1e-3 * scale)
            for n, g in right.items()
        }
        name = max(off, key=lambda n: off[n])
        return off[name], name

    (ours, where), (theirs, _) = worst(found), worst(near)
    ok = ours <= max(10 * TOLERANCE, FACTOR * theirs)
    row: Row = {"status": "ok" if ok else "wrong", "error": float(f"{ours:.3g}")}
    row["torch_error"] = float(f"{theirs:.3g}")
    return row if ok else row | {"message": f"{where} is off by {ours:.3g}"}


CHECKS: Final[Mapping[str, Callable[[nn.Module, Inputs, Sequence[int]], Row]]] = {
    "import": imported,
    "dynamo": captured,
    "train": trained,
}
