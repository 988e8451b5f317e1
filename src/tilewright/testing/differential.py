"""A compiled graph against its truth: the same graph in float64, and how far rounding may go.

The tolerance of an output is a few times what the graph in NumPy, in its own dtypes, is away from
the truth (that measures how well conditioned it is), plus rounding that grows with the square root
of the longest reduction and with the number of operators.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.base import dtypes
from tilewright.base.errors import TilewrightWarning
from tilewright.graph import interp
from tilewright.graph.infer import Fallback
from tilewright.graph.nodes import Graph
from tilewright.targets.base import Target

Array = np.ndarray[Any, Any]
# Units in the last place; in float64, whose conditioning nothing here measures, 2^8 of them.
UNIT = {"float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-44}
SLACK = 32.0  # times the rounding of one NumPy evaluation


class Truth:
    """The expected outputs of a graph on some inputs, with tolerances."""

    def __init__(
        self, graph: Graph, inputs: Mapping[str, Array], fallback: Fallback | None = None
    ) -> None:
        if fallback is None:
            from tilewright.frontends.onnx.reference import OnnxFallback

            fallback = OnnxFallback()
        names = [v.name for v in graph.outputs]
        wide = interp.evaluate(graph, inputs, float64=True, fallback=fallback)
        own = interp.evaluate(graph, inputs, fallback=fallback)
        self.dtypes = [v.dtype for v in graph.outputs]
        self.expected = [np.asarray(wide[n]) for n in names]
        self.rounded = [np.asarray(own[n]) for n in names]
        values = (*graph.inputs, *graph.producers, *graph.constants)
        self.unit = max((UNIT.get(str(v.dtype), 0.0) for v in values), default=0.0)
        self.growth = math.sqrt(max((max(v.extents, default=1) for v in values), default=1))
        self.growth *= 1 + len(graph.operations)

    def mismatches(self, outputs: Any) -> list[str]:
        """What is wrong with these outputs, one line for each; empty if all are right."""
        found = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
        if len(found) != len(self.expected):
            return [f"{len(found)} outputs, expected {len(self.expected)}"]
        lines = [self._one(n, np.asarray(a)) for n, a in enumerate(found)]
        return [line for line in lines if line]

    def _one(self, n: int, got: Array) -> str:
        want, dtype = self.expected[n], self.dtypes[n]
        if dtype is not None and dtypes.dtype_of(got.dtype) is not dtype:
            return f"output {n} is {got.dtype}, expected {dtype}"
        if got.shape != want.shape:
            return f"output {n} has shape {got.shape}, expected {want.shape}"
        if not want.size:
            return ""
        if dtype is None or not dtype.is_float:
            wrong = got != want
        else:
            difference = np.abs(got.astype(np.float64) - want)
            wrong = ~((difference <= self.tolerance(n)) | (np.isnan(got) & np.isnan(want)))
            wrong &= got.astype(np.float64) != want
        if not wrong.any():
            return ""
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        return (
            f"output {n} ({got.dtype}{list(got.shape)}): {int(wrong.sum())} wrong values, "
            f"first at {at}: {got[at]}, expected {want[at]} within {self.tolerance(n):.2g}"
        )

    def tolerance(self, n: int) -> float:
        """The difference allowed in output `n`, the same for all its elements."""
        want = np.abs(self.expected[n].astype(np.float64))
        scale = float(want[np.isfinite(want)].max(initial=1.0))
        spread = np.abs(self.rounded[n].astype(np.float64) - self.expected[n])
        noise = float(spread[np.isfinite(spread)].max(initial=0.0))
        return SLACK * noise + 4 * self.unit * self.growth * scale


def check(
    graph: Graph,
    inputs: Mapping[str, Array],
    *,
    threads: Sequence[int] = (1,),
    path: str | None = None,
    target: Target | None = None,
    **options: Any,
) -> list[str]:
    """Compile and run `graph` with each number of threads, and once more after saving to `path`.

    target: a machine described otherwise than this one. Returns what is wrong. Errors of the
    compiler are raised.
    """
    from tilewright.driver import compile
    from tilewright.driver.options import Options
    from tilewright.driver.steps import build
    from tilewright.runtime.executable import Executable, load

    truth = Truth(graph, inputs)
    arrays = list(inputs.values())
    found: list[str] = []
    options = {"cache": False, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TilewrightWarning)
        for count in threads:
            if target is None:
                exe: Any = compile(graph, threads=count, **options)
            else:
                made = build(graph, Options(threads=count, **options), target)
                exe = Executable(made, threads=count)
            for run in ("first", "second"):
                lines = truth.mismatches(exe(*arrays))
                found += [f"{count} threads, {run} run: {line}" for line in lines]
        if path is not None:
            exe.save(path)
            lines = truth.mismatches(load(path, threads=threads[-1])(*arrays))
            found += [f"loaded: {line}" for line in lines]
    return found
