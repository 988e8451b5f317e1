"""The task graphs of published evaluations of streaming schedules: chain, FFT, Gaussian, Cholesky.

De Matteis, Gianinazzi, de Fine Licht, Hoefler, "Streaming Task Graph Scheduling for Dataflow
Architectures", HPDC 2023, after Topcuoglu et al., IEEE TPDS 2002 (FFT, Gaussian elimination). Tasks
are element-wise, or have random rates: tasks with a common reader write the same number of
elements, so that the graph is canonical.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Final

from tilewright.base.errors import InputError
from tilewright.base.numbers import whole
from tilewright.dataflow.builder import TaskGraphBuilder
from tilewright.dataflow.graph import TaskGraph, Volume

# For each task, in topological order, the tasks that it reads.
Shape = Mapping[str, Sequence[str]]
RATES: Final = tuple(map(Fraction, ("1/4", "1/3", "1/2", "2", "3", "4")))
MOST: Final = 1 << 14  # the most elements that a task with a random rate writes


def chain(n: int) -> Shape:
    """n tasks, each reading the previous one."""
    return {f"t{i}": [f"t{i - 1}"] if i else [] for i in range(n)}


def fft(n: int) -> Shape:
    """The 2n - 1 recursive calls for n points, then log2(n) levels of n butterflies."""
    if n & (n - 1):
        raise InputError(f"an FFT of {n} points", hint="give a power of two")
    levels = n.bit_length() - 1
    found = {"call0_0": list[str]()}
    for level in range(1, levels + 1):
        for i in range(1 << level):
            found[f"call{level}_{i}"] = [f"call{level - 1}_{i // 2}"]
    before = [f"call{levels}_{i}" for i in range(n)]
    for level in range(levels):
        names = [f"level{level}_{i}" for i in range(n)]
        for i, name in enumerate(names):
            found[name] = [before[i], before[i ^ (1 << level)]]
        before = names
    return found


def gaussian(n: int) -> Shape:
    """Elimination of a matrix with n rows: for each row but the last a pivot, and an update of each
    row below."""
    found: dict[str, list[str]] = {}
    for k in range(n - 1):
        pivot = f"pivot{k}"
        found[pivot] = [f"update{k - 1}_{k}"] if k else []
        for j in range(k + 1, n):
            above = [f"update{k - 1}_{j}"] if k else []
            found[f"update{k}_{j}"] = [pivot, *above]
    return found


def cholesky(n: int) -> Shape:
    """A left-looking factorization of n by n tiles: for each column its updates (SYRK, GEMM), the
    factor of its diagonal tile (POTRF), and the solutions below (TRSM)."""
    found: dict[str, list[str]] = {}
    last: dict[tuple[int, int], str] = {}

    def act(name: str, tile: tuple[int, int], *others: tuple[int, int]) -> None:
        found[name] = [last[at] for at in (*others, tile) if at in last]
        last[tile] = name

    for k in range(n):
        for j in range(k):
            act(f"syrk{k}_{j}", (k, k), (k, j))
        act(f"potrf{k}", (k, k))
        for m in range(k + 1, n):
            for j in range(k):
                act(f"gemm{m}_{k}_{j}", (m, k), (k, j), (m, j))
            act(f"trsm{m}_{k}", (m, k), (k, k))
    return found


SHAPES: Final[Mapping[str, Callable[[int], Shape]]] = {
    "chain": chain,
    "fft": fft,
    "gaussian": gaussian,
    "cholesky": cholesky,
}


def published(
    name: str, size: int, *, volume: int = 128, seed: int | None = None
) -> TaskGraph:
    """Build a graph by its name in SHAPES and its size, at least 2.

    volume: input elements. seed: of random rates, a third of them 1; None: all tasks are
    element-wise. Raises InputError for another name or size.
    """
    if name not in SHAPES:
        raise InputError(f"no graph {name!r}", hint=f"known: {', '.join(SHAPES)}")
    if whole(size, 2) is None or whole(volume, 1) is None:
        raise InputError(
            f"{name} of size {size!r}, volume {volume!r}",
            hint="give a size of at least 2, and a volume of at least 1",
        )
    shape = SHAPES[name](size)
    written = _volumes(shape, volume, None if seed is None else random.Random(seed))
    read = {u for preds in shape.values() for u in preds}
    b = TaskGraphBuilder(f"{name}{size}")
    b.source("in")
    b.sink("out")
    for task, preds in shape.items():
        b.add(task)
        if not preds:
            b.connect("in", task, volume)
        for u in preds:
            b.connect(u, task, written[u])
        if task not in read:
            b.connect(task, "out", written[task])
    return b.build(Volume.PART)


def _volumes(shape: Shape, volume: int, rng: random.Random | None) -> dict[str, int]:
    """The elements that each task writes: equal for all with a common reader."""
    like = {task: task for task in shape}

    def first(task: str) -> str:
        while like[task] != task:
            task = like[task]
        return task

    for preds in shape.values():
        for u in preds[1:]:
            like[first(u)] = first(preds[0])
    found: dict[str, int] = {}
    for task, preds in shape.items():
        one = first(task)
        if one not in found:
            if preds:
                reads = found[first(preds[0])]
            else:
                reads = volume
            found[one] = reads if rng is None else _scaled(reads, rng)
    return {task: found[first(task)] for task in shape}


def _scaled(reads: int, rng: random.Random) -> int:
    """The elements that a task writes for this many read, by a random rate."""
    if rng.randrange(3) == 0:
        return reads
    return min(MOST, max(1, int(reads * rng.choice(RATES))))
