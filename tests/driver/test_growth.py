"""What passes make of deep chains and diamonds of small operators stays within stated multiples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tilewright.base import dtypes
from tilewright.base.errors import ExecutionError
from tilewright.driver import steps, text
from tilewright.driver.options import Options
from tilewright.driver.planning import make_plan
from tilewright.frontends.onnx.functions import schema_of
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph.infer import Typer
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.ir.node import Node, postorder
from tilewright.plan.nodes import SOURCES, Plan
from tilewright.plan.passes.fuse import MAX_NODES, MAX_WRITTEN
from tilewright.targets.registry import target

# Times the number of operators: nodes of all values, Computations, names of operators.
NODES, COMPUTATIONS, NAMES = 20, 4, 10


@dataclass
class Chain:
    """A graph in the making; `x`, `y` are its inputs, `c` a condition."""

    typer: Typer = field(default_factory=lambda: Typer(OnnxFallback()))
    names: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.x, self.y = (Value(n, dtypes.float32, (4, 8)) for n in "xy")
        self.c = Value("c", dtypes.bool_, (4, 8))

    def __call__(
        self, op_type: str, *inputs: Value, outputs: int = 1, **attrs: Any
    ) -> Any:
        drafts = tuple(Value(f"t{next(self.names)}") for _ in range(outputs))
        version = schema_of(op_type, "", 21).since_version
        made = self.typer.apply(
            Operation(op_type, inputs, drafts, attrs, "", version, "")
        )
        return made[0] if outputs == 1 else made

    def ints(self, *numbers: int) -> Value:
        return self.typer.constant(f"k{next(self.names)}", np.array(numbers))

    def number(self, value: float) -> Value:
        return self.typer.constant(f"k{next(self.names)}", np.array(value, np.float32))

    def graph(self, *outputs: Value) -> Graph:
        given = (self.x, self.y, self.c)
        bare = Graph("chain", given, tuple(outputs), (), dict(self.typer.known))
        return bare.with_operations(self.typer.operations)


def _rows(b: Chain, x: Value, low: int, high: int) -> Value:
    made: Value = b("Slice", x, b.ints(low), b.ints(high), b.ints(0))
    return made


Step = Callable[[Chain, Value], Value]
ONE: dict[str, Step] = {
    "where": lambda b, x: b("Where", b.c, x, b.y),
    "where of itself": lambda b, x: b("Where", b.c, x, b("Where", b.c, x, b.number(0))),
    "where of two": lambda b, x: b(
        "Where", b.c, b("Where", b.c, x, b.y), b("Where", b.c, b.y, x)
    ),
    "where it is less": lambda b, x: b(
        "Where", b("Less", x, b("Neg", x)), b.y, b.number(0)
    ),
    "where, moved": lambda b, x: b(
        "Where",
        b.c,
        b("Reshape", b("Reshape", x, b.ints(32)), b.ints(4, 8)),
        b("Transpose", b("Transpose", x, perm=[1, 0]), perm=[1, 0]),
    ),
    "doubled": lambda b, x: b("Add", x, x),
    "squared": lambda b, x: b("Mul", x, b("Neg", x)),
    "clip": lambda b, x: b("Clip", b("Add", x, b.y), b.number(-1), b.number(1)),
    "min and max": lambda b, x: b("Max", b("Min", x, b.y), b("Neg", x)),
    "leaky": lambda b, x: b("LeakyRelu", x),
    "prelu": lambda b, x: b("PRelu", x, b.y),
    "gelu": lambda b, x: b("Gelu", x),
    "mish": lambda b, x: b("Mul", x, b("Tanh", b("Softplus", x))),
    "concat": lambda b, x: _rows(b, b("Concat", x, x, axis=0), 0, 4),
    "halves": lambda b, x: b("Concat", _rows(b, x, 2, 4), _rows(b, x, 0, 2), axis=0),
    "split": lambda b, x: b(
        "Concat", *reversed(b("Split", x, b.ints(2, 2), axis=0, outputs=2)), axis=0
    ),
    "pad": lambda b, x: _rows(b, b("Pad", x, b.ints(1, 0, 1, 0)), 0, 4),
    "pad and add": lambda b, x: b(
        "Add", _rows(b, b("Pad", x, b.ints(1, 0, 1, 0)), 0, 4), x
    ),
    "tile": lambda b, x: _rows(b, b("Tile", x, b.ints(2, 1)), 2, 6),
    "turned": lambda b, x: b(
        "Add", b("Transpose", b("Reshape", x, b.ints(8, 4)), perm=[1, 0]), x
    ),
    "gather": lambda b, x: b("Gather", x, b.ints(3, 2, 1, 0), axis=0),
    "casts": lambda b, x: b("Cast", b("Cast", x, to=11), to=1),
    "rows": lambda b, x: b("Sub", x, b("ReduceMean", x, b.ints(1), keepdims=1)),
    "softmax": lambda b, x: b("Softmax", b("Add", x, x), axis=1),
}
TWO: dict[str, Callable[[Chain, Value, Value], tuple[Value, Value]]] = {
    "where, crossed": lambda b, x, y: (b("Where", b.c, x, y), b("Where", b.c, y, x)),
    "arithmetic, crossed": lambda b, x, y: (b("Add", x, y), b("Mul", x, y)),
    "concat, crossed": lambda b, x, y: (
        _rows(b, b("Concat", x, y, axis=0), 0, 4),
        _rows(b, b("Concat", y, x, axis=0), 2, 6),
    ),
}


def deep(name: str, depth: int) -> Graph:
    """So many steps of a chain, one behind the other."""
    b = Chain()
    x, y = b.x, b.y
    for _ in range(depth):
        if name in ONE:
            x = ONE[name](b, x)
        else:
            x, y = TWO[name](b, x, y)
    return b.graph(x) if name in ONE else b.graph(x, y)


def planned(graph: Graph) -> Plan:
    machine = target("cpu")
    return make_plan(steps.optimize(graph, Options(), machine), machine)


def written(root: Node) -> int:
    """Nodes of a tree, each as often as it is read."""
    sizes: dict[Node, int] = {}
    for n in postorder(root):
        sizes[n] = 1 + sum(sizes[c] for c in n.children())
    return sizes[root]


SHAPES = [*ONE, *TWO]
# Twice as deep and more, every fourth of them is a fast test.
CASES = [(name, 40) for name in SHAPES]
CASES += [
    pytest.param(name, 120, marks=[pytest.mark.slow] * (n % 4 > 0))
    for n, name in enumerate(SHAPES)
]


# shared terms, chains, selects
@pytest.mark.representatives(
    "where-40", "squared-40", "split-40", "casts-40", "mish-120", "where, crossed-120"
)
@pytest.mark.parametrize(("name", "depth"), CASES)
def test_stages_grow_with_the_operators(name: str, depth: int) -> None:
    graph = deep(name, depth)
    made = planned(graph).groups
    operators = len(graph.operations)
    values = [o.value for s in made for c in s.computations for o in c.outputs]
    sizes = [sum(1 for _ in postorder(v)) for v in values]
    assert sum(sizes) <= NODES * operators
    assert max(sizes) <= MAX_NODES
    assert max(map(written, values)) <= MAX_WRITTEN
    assert len(values) <= COMPUTATIONS * operators + 1
    names = [len(s.sources) for s in made]
    assert sum(names) <= NAMES * operators and max(names) <= SOURCES
    assert all(len(set(s.sources)) == len(s.sources) for s in made)
    assert sum(s.flops for s in made) <= 100 * 32 * operators


@pytest.mark.parametrize("name", ["where of itself", "where, moved", "clip", "softmax"])
def test_deep_chains_compile_and_run(name: str) -> None:
    graph = deep(name, 40)
    x, y = (np.full((4, 8), v, np.float32) for v in (0.5, 0.25))
    exe = tw.compile(graph, cache=False)
    assert np.isfinite(exe(x, y, np.ones((4, 8), bool))).all()
    records = exe.model.kernels
    assert sum(len(r.nodes) for r in records) <= NAMES * len(graph.operations)


def test_an_operator_in_several_kernels_counts_once() -> None:
    b = Chain()
    turned = b("Where", b.c, b.x, b.number(0))
    graph = b.graph(
        b("ReduceSum", turned, b.ints(1)), b("ReduceMax", turned, b.ints(1))
    )
    made = planned(graph).groups
    alone = planned(b.graph(turned)).groups
    sums = sum(s.flops for s in made)
    assert sums - sum(s.flops for s in alone) == 2 * 32


# ---------------------------------------------------------------------------- emitted code


def gathers(depth: int) -> onnx.ModelProto:
    """A Gather at what a Gather gives, so many times; then the rows of x at that."""
    names = [f"i{n}" for n in range(depth)]
    given = ", ".join(f"int64[6] {name}" for name in names)
    body = " ".join(
        f"g{n + 1} = Gather({name}, {f'g{n}' if n else 'first'})"
        for n, name in enumerate(names)
    )
    return onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 21]> f (int64[6] first, {given}, float[6, 8] x) '
        f"=> (float[6, 8] y) {{ {body} y = Gather(x, g{depth}) }}"
    )


def test_gathers_at_what_gathers_give_are_emitted_once() -> None:
    """Each adds as much code as the one before, though its index is tested, then used twice."""
    loads, lines = [], []
    for depth in (1, 2, 3, 4):
        code = text(gathers(depth), "llvm", threads=1)
        loads.append(code.count(" load ") + code.count("@llvm.masked.gather"))
        lines.append(len(code.splitlines()))
    assert np.ptp(np.diff(loads)) == 0 and np.diff(loads)[0] <= 2
    assert np.ptp(np.diff(lines)) <= 2


def test_gathers_at_what_gathers_give_are_right() -> None:
    rng = np.random.default_rng(0)
    exe = tw.compile(gathers(4), threads=1, cache=False)
    first, *tables = rng.integers(-6, 6, (5, 6))
    x = rng.standard_normal((6, 8)).astype(np.float32)
    at = first
    for table in tables:
        at = table[at]
    np.testing.assert_array_equal(exe(first, *tables, x), x[at])
    for place in range(4):
        wrong = [t.copy() for t in (first, *tables)]
        wrong[place][:] = 6
        with pytest.raises(ExecutionError, match="out of range"):
            exe(*wrong, x)
