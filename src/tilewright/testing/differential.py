"""A compiled graph against its truth: the same graph in float64, and how far rounding may go.

The tolerance of an output is a few times what the graph in NumPy, in its own dtypes, is away from
the truth (that measures how well conditioned it is), plus rounding that grows with the square root
of the longest reduction and with the number of operators. Where both are far apart, either one of
them is wrong, or the graph has a jump there, or makes much of small differences: then the truth
itself moves as far when the inputs move by their rounding, and there is nothing to compare with.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.base import dtypes
from tilewright.base.errors import TilewrightWarning
from tilewright.graph import interp
from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Graph
from tilewright.graph.specialize import specialize
from tilewright.runtime.executable import Executable, load
from tilewright.targets.base import Target

Array = np.ndarray[Any, Any]
# Units in the last place; in float64, whose conditioning nothing here measures, 2^8 of them.
UNIT = {
    "float16": 2.0**-10,
    "float32": 2.0**-23,
    "float64": 2.0**-44,
}
SLACK = 32.0  # times the rounding of one NumPy evaluation
FAR = 2.0**13  # units that no rounding of a well conditioned graph is away
NUDGES = 4  # times that the inputs are moved
NUDGE = 4.0  # units that they are moved by, at most


class ExpectedOutputs:
    """The expected outputs of a graph on some inputs, with tolerances."""

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, Array],
        fallback: FallbackProvider | None = None,
    ) -> None:
        if fallback is None:
            from tilewright.frontends.onnx.reference import OnnxFallback

            fallback = OnnxFallback()
        names = [v.name for v in graph.outputs]
        self._graph = graph
        self._inputs = inputs
        self._fallback = fallback
        wide = interp.evaluate(graph, inputs, float64=True, fallback=fallback)
        own = interp.evaluate(graph, inputs, fallback=fallback)
        self.dtypes = [v.dtype for v in graph.outputs]
        self.expected = [np.asarray(wide[n]) for n in names]
        self.rounded = [np.asarray(own[n]) for n in names]
        values = (*graph.inputs, *graph.producers, *graph.constants)
        self.unit = max((UNIT.get(str(v.dtype), 0.0) for v in values), default=0.0)
        longest = max(
            (max(v.extents, default=1) for v in values if v.static), default=1
        )
        self.growth = math.sqrt(longest)
        self.growth *= 1 + len(graph.operations)

    def mismatches(self, outputs: Any) -> list[str]:
        """The mismatches of these outputs, one line each; empty if all are right."""
        if isinstance(outputs, tuple | list):
            found = list(outputs)
        else:
            found = [outputs]
        if len(found) != len(self.expected):
            return [f"{len(found)} outputs, expected {len(self.expected)}"]
        lines = [self._one(n, np.asarray(a)) for n, a in enumerate(found)]
        return [line for line in lines if line]

    def _one(self, n: int, got: Array) -> str:
        want = self.expected[n]
        dtype = self.dtypes[n]
        if dtype is not None and dtypes.dtype_of(got.dtype) is not dtype:
            return f"output {n} is {got.dtype}, expected {dtype}"
        if got.shape != want.shape:
            return f"output {n} has shape {got.shape}, expected {want.shape}"
        if not want.size:
            return ""
        scale = self._scale(n)
        noise = self._noise(n)
        if noise > FAR * self.unit * scale:
            if SLACK * self._movement[n] >= noise:
                return ""
            return f"output {n}: in NumPy, float64 and the model's own types are {noise:.2g} apart"
        if dtype is None or not dtype.is_float:
            wrong = got != want
        else:
            difference = np.abs(got.astype(np.float64) - want)
            wrong = ~(
                (difference <= self.tolerance(n)) | (np.isnan(got) & np.isnan(want))
            )
            wrong &= got.astype(np.float64) != want
        if not wrong.any() or self._is_chaotic(n, got):
            return ""
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        return (
            f"output {n} ({got.dtype}{list(got.shape)}): {int(wrong.sum())} wrong values, "
            f"first at {at}: {got[at]}, expected {want[at]} within {self.tolerance(n):.2g}"
        )

    def _is_chaotic(self, n: int, got: Array) -> bool:
        """Whether the truth itself moves as far as these results are from it.

        In a model of float64 alone, the truth is computed in the model's own types: that two
        evaluations agree says nothing about how far an order of additions may lead.
        """
        finite = np.isfinite(self.expected[n])
        if got.dtype.kind != "f" or not np.array_equal(np.isfinite(got), finite):
            return False
        return SLACK * self._movement[n] >= _distance(got, self.expected[n])

    def tolerance(self, n: int) -> float:
        """The difference allowed in output `n`, the same for all its elements."""
        return SLACK * self._noise(n) + 4 * self.unit * self.growth * self._scale(n)

    @cached_property
    def _movement(self) -> list[float]:
        """How far each output moves when the inputs move by their rounding."""
        noise = np.random.default_rng(0)
        names = [v.name for v in self._graph.outputs]
        farthest = [0.0] * len(names)
        for _ in range(NUDGES):
            inputs = {k: self._nudged(a, noise) for k, a in self._inputs.items()}
            moved = interp.evaluate(
                self._graph, inputs, float64=True, fallback=self._fallback
            )
            for n, name in enumerate(names):
                one = np.asarray(moved[name])
                distance = _distance(one, self.expected[n])
                farthest[n] = max(farthest[n], distance)
        return farthest

    def _nudged(self, array: Array, noise: np.random.Generator) -> Array:
        if array.dtype.kind != "f":
            return array
        by = 1 + NUDGE * self.unit * noise.uniform(-1, 1, array.shape)
        return np.asarray(array * by).astype(array.dtype)

    def _scale(self, n: int) -> float:
        want = np.abs(self.expected[n].astype(np.float64))
        return float(want[np.isfinite(want)].max(initial=1.0))

    def _noise(self, n: int) -> float:
        one = self.rounded[n]
        return _distance(one, self.expected[n])


def _distance(one: Array, other: Array) -> float:
    """The largest finite difference; infinite if the shapes differ."""
    if one.shape != other.shape:
        return math.inf
    apart = np.abs(one.astype(np.float64) - other)
    return float(apart[np.isfinite(apart)].max(initial=0.0))


def at_shapes(graph: Graph, inputs: Mapping[str, Array]) -> Graph:
    """The graph for these inputs: imported again, with their shapes and no symbol at all."""
    from tilewright.frontends.onnx import load
    from tilewright.frontends.onnx.export import to_model

    if all(v.static for v in graph.inputs):
        return graph
    model = to_model(graph)
    for info in model.graph.input:
        shape = info.type.tensor_type.shape
        del shape.dim[:]
        for extent in inputs[info.name].shape:
            shape.dim.add().dim_value = extent
    without_shapes(model.graph)
    return load(model)


def without_shapes(graph: Any) -> None:
    """Let a GraphProto say of its results, and of the operands and results of the bodies in it,
    the element type only."""
    bodies = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    for info in (*graph.output, *(i for body in bodies for i in body.input)):
        info.type.tensor_type.ClearField("shape")
    for body in bodies:
        without_shapes(body)


def check(
    graph: Graph,
    inputs: Mapping[str, Array],
    *,
    others: Sequence[Mapping[str, Array]] = (),
    dims: bool = False,
    threads: Sequence[int] = (1,),
    path: str | None = None,
    target: Target | None = None,
    **options: Any,
) -> list[str]:
    """Compile and run `graph` with each number of threads, and again after saving to `path`.

    others: inputs of other extents, if the graph has symbolic ones. dims: compile once for each set
    of extents instead of once for all. target: a description of another machine. Returns the
    failure. Errors of the compiler are raised.
    """
    from tilewright.driver import compile

    given = [(i, ExpectedOutputs(at_shapes(graph, i), i)) for i in (inputs, *others)]
    found: list[str] = []
    options = {"cache": False, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TilewrightWarning)
        for count in threads:
            how = {"threads": count, **options}
            exe: Any = None
            for feeds, truth in given:
                if target is not None:
                    exe = _for_machine(graph, feeds, target, how)
                elif dims:
                    exe = compile(graph, dims=_sizes(graph, feeds), **how)
                elif exe is None:
                    exe = compile(graph, **how)
                for run in ("first", "second"):
                    outputs = exe(*feeds.values())
                    lines = truth.mismatches(outputs)
                    found += [f"{count} threads, {run} run: {line}" for line in lines]
        if path is not None:
            exe.save(path)
            feeds, truth = given[-1]
            outputs = load(path, threads=threads[-1])(*feeds.values())
            lines = truth.mismatches(outputs)
            found += [f"loaded: {line}" for line in lines]
    return found


def _for_machine(
    graph: Graph,
    inputs: Mapping[str, Array],
    target: Target,
    options: Mapping[str, Any],
) -> Executable:
    from tilewright.driver.options import Options
    from tilewright.driver.steps import build
    from tilewright.frontends.onnx.reference import OnnxFallback

    if not all(v.static for v in graph.inputs):
        shapes = {v.name: inputs[v.name].shape for v in graph.inputs}
        graph = specialize(graph, shapes=shapes, fallback=OnnxFallback())
    model = build(graph, Options.of(options), target)
    return Executable(model, threads=options["threads"])


def _sizes(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, int]:
    """The values of a graph's symbols for these inputs."""
    pairs = (p for v in graph.inputs for p in zip(v.shape or (), inputs[v.name].shape))
    return {d: n for d, n in pairs if isinstance(d, str)}
