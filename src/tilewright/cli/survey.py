"""Facts about a model before compiling: coverage, memory, arithmetic, dtype hazards."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.base.text import plural
from tilewright.graph.bounded.bound import bound
from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.open_extents import TRIM
from tilewright.graph.ops.registry import OpCall, definition_of
from tilewright.plan.lower import lower
from tilewright.runtime.arena import Lifetime, assign_offsets

_PIECE: Final = 1 << 18  # values that are looked at together


@dataclass(frozen=True)
class Survey:
    """A graph's facts. Sizes in bytes.

    native, host: how often each operator runs natively, and as a host fallback. symbolic: the
    names of symbolic extents. activations: the arena that a straightforward plan needs.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operations: int
    native: dict[str, int]
    host: dict[str, int]
    host_nodes: tuple[str, ...]
    symbolic: tuple[str, ...]
    parameters: int
    weights: int
    activations: int
    flops: int
    uncounted: tuple[str, ...]
    hazards: tuple[str, ...]

    @property
    def memory(self) -> int:
        """Bytes of one call, including weights."""
        return self.weights + self.activations


def survey(
    graph: Graph,
    symbolic: Iterable[str] = (),
    fallback: FallbackProvider | None = None,
    memory: int = sys.maxsize,
) -> Survey:
    """The facts of a graph whose symbolic extents are known as far as they can be.

    fallback: knows the types of operators that have no definition. memory: bytes of weights that
    are looked at; the values of more are left in their files.
    """
    plan = lower(graph, channel_last=False)
    native = lower(bound(graph, fallback), channel_last=False)
    hosted = [call.operation for call in native.host_fallbacks]
    hosted = [op for op in hosted if op.qualified != TRIM]
    everything = plan.graph.operations
    counts = Counter(op.qualified for op in everything)
    host = Counter(op.qualified for op in hosted)
    flops, uncounted = _flops(graph)
    weights = sum(a.nbytes for a in graph.constants.values())
    hazards = _dtype_hazards(graph)
    if weights <= memory:
        hazards += _bad_constants(graph.constants)
    return Survey(
        inputs=tuple(map(str, graph.inputs)),
        outputs=tuple(map(str, graph.shown_outputs)),
        operations=len(everything),
        native=dict(sorted((counts - host).items())),
        host=dict(sorted(host.items())),
        host_nodes=tuple(
            f"{op.label} ({op.qualified}) on {_operands(op)}" for op in hosted
        ),
        symbolic=tuple(symbolic),
        parameters=sum(a.size for a in graph.constants.values()),
        weights=weights,
        activations=_arena(graph),
        flops=flops,
        uncounted=uncounted,
        hazards=tuple(hazards),
    )


def _operands(op: Operation) -> str:
    return ", ".join("-" if v is None else v.type_text for v in op.inputs) or "nothing"


def _flops(graph: Graph) -> tuple[int, tuple[str, ...]]:
    """Floating-point operations of a run, and the operators whose count is unknown."""
    total = 0
    unknown: Counter[str] = Counter()
    for op in graph.operations:
        definition = definition_of(op)
        if not all(v.static for v in (*op.reads, *op.writes)):
            unknown[op.qualified] += 1
        elif definition is not None and definition.flops is not None:
            total += definition.flops(OpCall(op, graph.constants))
    return total, tuple(sorted(unknown))


def _arena(graph: Graph) -> int:
    last: dict[Value, int] = {}
    for number, op in enumerate(graph.operations):
        last |= dict.fromkeys(op.reads, number)
    lives = []
    for number, op in enumerate(graph.operations):
        for v in op.writes:
            if v.static and v.dtype is not None:
                end = (
                    len(graph.operations) if v in graph.outputs else last.get(v, number)
                )
                lives.append(
                    Lifetime(math.prod(v.extents) * v.dtype.itemsize, number, end)
                )
    return assign_offsets(lives).total


# A hazard of a dtype: whether it applies, and its consequence for the user.
_HAZARDS: Final[tuple[tuple[Callable[[DType], bool], str], ...]] = (
    (
        lambda d: d.name == "float64",
        "runs at half the speed of float32 and takes twice the memory",
    ),
    (
        lambda d: d.is_float and d.bits == 16,
        "is computed in float32 and rounded when stored",
    ),
    (lambda d: d.is_float and d.bits <= 8, "is a storage type, converted on every use"),
    (
        lambda d: d.is_sub_byte and not d.is_float,
        "is a storage type, with one value per byte in memory",
    ),
    (
        lambda d: d.is_complex or d.is_string,
        "has no native code and falls back to the host",
    ),
)


def _dtype_hazards(graph: Graph) -> list[str]:
    uses: Counter[DType] = Counter()
    for op in graph.operations:
        uses.update({v.dtype for v in op.writes if v.dtype is not None})
    found = []
    for dtype, count in sorted(uses.items(), key=lambda item: item[0].name):
        for applies, follows in _HAZARDS:
            if applies(dtype):
                found.append(f"{dtype} {follows} ({plural(count, 'operator')})")
    return found


def _bad_constants(constants: Mapping[Value, np.ndarray[Any, Any]]) -> list[str]:
    """Weights that are not finite, or so small that arithmetic on them is slow."""
    found = []
    for value, array in constants.items():
        if array.dtype.kind != "f" or not array.size:
            continue
        bad = small = 0
        tiny = np.finfo(array.dtype).tiny
        for part in _pieces(array):
            bad += part.size - int(np.count_nonzero(np.isfinite(part)))
            small += int(np.count_nonzero((part != 0) & (np.abs(part) < tiny)))
        if bad:
            those = plural(bad, "value that is", "values that are")
            found.append(f"constant {value.name!r} has {those} not finite")
        if small:
            found.append(
                f"constant {value.name!r} has {plural(small, 'subnormal value')}"
            )
    return found


def _pieces(array: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    """The values piece by piece, aligned: asking all at once takes as much memory again."""
    values = array.reshape(-1)
    for at in range(0, values.size, _PIECE):
        yield np.require(values[at : at + _PIECE], requirements="A")
