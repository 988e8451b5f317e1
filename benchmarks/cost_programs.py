"""Programs with their times: operators of networks, each with random schedules.

A program is stored as the selection that reproduces its schedule, and its seconds. All are timed in
this process, on one thread, by the same loop of calls.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.cost_cases import contents, parsed
from benchmarks.turns import batch_seconds, stopwatch
from tilewright.base.errors import TilewrightError
from tilewright.loops.nodes import Kernel
from tilewright.targets import registry

if TYPE_CHECKING:
    import onnx

    from tilewright.schedule.space import Sketch

# Operands that begin with `w` are weights, which the compiler knows.
OPERATORS: Final[Mapping[str, str]] = {
    "product": "(float[256,512] x, float[512,384] w) => (float[256,384] y) { y = MatMul(x, w) }",
    "product_row": "(float[4,768] x, float[768,768] w) => (float[4,768] y) { y = MatMul(x, w) }",
    "products": """(float[12,128,64] x, float[12,64,128] v) => (float[12,128,128] y)
        { y = MatMul(x, v) }""",
    "conv_3x3": """(float[1,64,28,28] x, float[64,64,3,3] w) => (float[1,64,28,28] y)
        { y = Conv<pads=[1,1,1,1]>(x, w) }""",
    "conv_1x1": """(float[1,256,14,14] x, float[256,256,1,1] w) => (float[1,256,14,14] y)
        { a = Conv(x, w) y = Relu(a) }""",
    "conv_strided": """(float[1,64,28,28] x, float[128,64,3,3] w) => (float[1,128,14,14] y)
        { y = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w) }""",
    "conv_7x7": """(float[1,3,112,112] x, float[64,3,7,7] w) => (float[1,64,56,56] y)
        { y = Conv<pads=[3,3,3,3], strides=[2,2]>(x, w) }""",
    "depthwise": """(float[1,96,56,56] x, float[96,1,3,3] w) => (float[1,96,56,56] y)
        { y = Conv<pads=[1,1,1,1], group=96>(x, w) }""",
    "softmax": "(float[256,512] x) => (float[256,512] y) { y = Softmax<axis=-1>(x) }",
    "layer_norm": """(float[128,768] x, float[768] w, float[768] wb) => (float[128,768] y)
        { y = LayerNormalization<axis=-1>(x, w, wb) }""",
    "lstm_step": """(float[8,256] x, float[256,1024] w, float[8,1024] c) => (float[8,1024] y)
        { a = MatMul(x, w) b = Add(a, c) y = Sigmoid(b) }""",
    "reduction": """(float[64,32,256] x) => (float[64,256] y)
        { axes = Constant<value_ints = [1]>() y = ReduceSum<keepdims=0>(x, axes) }""",
}  # fmt: skip

BATCH: Final = 2e-3  # seconds of calls that are timed as one
ROUNDS: Final = 12
SLOWEST: Final = 1.0  # seconds: what takes more is called once


@dataclass(frozen=True)
class Program:
    """A schedule of an operator, by its sketch and the values of its parameters.

    seconds: infinite if it could not be made.
    """

    operator: str
    sketch: str
    values: Mapping[str, Any]
    seconds: float


def model(text: str) -> onnx.ModelProto:
    """The model, with seeded weights."""
    return parsed("model", text)


class Operator:
    """An operator of OPERATORS as the compiler sees it: its main kernel, and the sketches of it."""

    def __init__(self, name: str) -> None:
        from tilewright.driver.compilation import Compilation, optimize
        from tilewright.driver.options import Options
        from tilewright.driver.sources import import_model
        from tilewright.plan.nodes import HOST
        from tilewright.plan.normalize import kernel_signature

        self.name = name
        options = Options.of({"threads": 1})
        target = registry.target("cpu", threads=1)
        compiling = Compilation.of(target, options)
        graph = optimize(
            import_model(model(OPERATORS[name]), (), options), options, target
        )
        plan = compiling.planned(graph)
        # There may also be copies into another layout.
        group = max(plan.groups_on(HOST), key=lambda g: g.flops)
        signature = kernel_signature(group, plan.live[group])
        known = zip(signature.params, signature.values, strict=True)
        self.constants = {p for p, b in known if b in plan.data}
        self.sketches: Sequence[Sketch] = target.sketches(
            signature.plain(), signature.computations, self.constants
        )

    def kernel(self, sketch: str, values: Mapping[str, Any]) -> Kernel:
        """The kernel that runs at each call: scheduled, without its work on weights."""
        from tilewright.loops.passes.hoist import hoist

        found = next(s for s in self.sketches if s.name == sketch)
        return hoist(found.at(values).schedule.kernel, self.constants).kernel

    def draw(self, count: int, r: random.Random) -> Iterator[Program]:
        """The default schedule and random ones, none twice, timed as they come."""
        from tilewright.schedule.space.selection import default_point

        point = default_point(self.name, self.sketches)
        seen: set[str] = set()
        for _ in range(20 * count):
            text = json.dumps([point.sketch, point.values])
            if text not in seen:
                seen.add(text)
                taken = self.seconds(point.sketch, point.values)
                yield Program(self.name, point.sketch, point.values, taken)
            if len(seen) == count:
                return
            # The last sketch is the plain one, with hardly a choice.
            sketches = self.sketches[:-1] or self.sketches
            try:
                point = r.choice(sketches).random(r)
            except TilewrightError:
                continue

    def seconds(self, sketch: str, values: Mapping[str, Any]) -> float:
        """The fastest of ROUNDS batches of calls, on arrays of random numbers.

        The fastest one is what other work on the machine disturbed least.
        """
        import tilewright as tw

        try:
            kernel = self.kernel(sketch, values)
            exe: Any = tw.compile(kernel, threads=1, cache=False)
        except TilewrightError:
            return float("inf")
        rng = np.random.default_rng(1)
        inputs = [contents(t.shape, np.dtype(t.dtype), rng) for t in exe.inputs]
        call = partial(exe, *inputs)
        once = stopwatch(call)()
        if once > SLOWEST:
            return once
        return min(batch_seconds(call, BATCH) for _ in range(ROUNDS))


def measure(names: Sequence[str], count: int, seed: int) -> Iterator[Program]:
    """Programs of the operators, `count` of each."""
    for name in names:
        yield from Operator(name).draw(count, random.Random(f"{name} {seed}"))


def save(path: Path, programs: Sequence[Program], facts: Mapping[str, Any]) -> None:
    """Keep programs as JSON; what failed has no seconds. facts: of the machine."""
    rows = [asdict(p) for p in programs]
    for row in rows:
        row["seconds"] = row["seconds"] if np.isfinite(row["seconds"]) else None
    path.write_text(json.dumps({"machine": facts, "programs": rows}, indent=0))


def load(path: Path) -> list[Program]:
    """Programs that `save` kept."""
    rows = json.loads(path.read_text())["programs"]
    return [Program(**{**r, "seconds": r["seconds"] or float("inf")}) for r in rows]
