"""Task graphs for the tests: the published table's, and random canonical ones."""

import random
from collections.abc import Sequence
from fractions import Fraction

from tilewright.dataflow import TaskGraph, TaskGraphBuilder

COLUMNS, PRODUCT, PARTIAL = (
    14400,
    3456,
    86400,
)  # |X|, |C| and all K partial products of C


def convolution(expansion: str) -> TaskGraphBuilder:
    """6 filters of 5x5 over 24x24 positions as matrix-vector products, outer products, or one
    vector-matrix product per filter: the graphs of the published table."""
    b = TaskGraphBuilder(expansion)
    b.source("image")
    b.source("W")
    b.add("im2col")
    b.connect("image", "im2col", COLUMNS, unique=784)
    b.buffer("X")
    b.connect("im2col", "X", COLUMNS)
    b.buffer("C")
    {"mv": _columns, "op": _outer, "lmv": _rows}[expansion](b)
    return b


def _columns(b: TaskGraphBuilder) -> None:
    for j in range(576):
        task = b.add(f"mv{j}")
        b.connect("X", task, 150, unique=25)
        b.connect("W", task, 150)
        b.connect(task, "C", 6, array=PRODUCT)
    _bias(b, "C")


def _outer(b: TaskGraphBuilder) -> None:
    b.add("sum")
    for k in range(25):
        task = b.add(f"op{k}")
        b.connect("X", task, PRODUCT, unique=576)
        b.connect("W", task, PRODUCT, unique=6)
        b.connect(task, "sum", PRODUCT, array=PARTIAL)
    b.connect("sum", "C", PRODUCT)
    _bias(b, _reorder(b))


def _rows(b: TaskGraphBuilder) -> None:
    b.add("feeder")
    b.connect("X", "feeder", COLUMNS)
    for n in range(6):
        task = b.add(f"lmv{n}")
        b.connect("feeder", task, COLUMNS)
        b.connect("W", task, COLUMNS, unique=25)
        b.connect(task, "C", 576, array=PRODUCT)
    _bias(b, _reorder(b))


def _reorder(b: TaskGraphBuilder) -> str:
    b.add("reorder")
    b.connect("C", "reorder", PRODUCT)
    b.buffer("D")
    b.connect("reorder", "D", PRODUCT)
    return "D"


def _bias(b: TaskGraphBuilder, product: str) -> None:
    b.source("b")
    b.add("bias")
    b.connect(product, "bias", PRODUCT)
    b.connect("b", "bias", PRODUCT)
    b.sink("out")
    b.connect("bias", "out", PRODUCT)


ANY = [
    Fraction(r)
    for r in ("1", "1", "1/4", "1/3", "1/2", "2", "3", "4", "2/3", "3/2", "5/7")
]
WHOLE = [r for r in ANY if r.numerator == 1 or r.denominator == 1]


def random_graph(
    seed: int,
    rates: Sequence[Fraction],
    *,
    chain: bool = False,
    buffers: bool = True,
    counts: Sequence[int] = (1,),
) -> TaskGraph:
    """Up to 25 nodes whose rates are of `rates` as far as volumes stay whole and below 400.

    counts: how many tasks a node may stand for.
    """
    rng = random.Random(seed)
    b = TaskGraphBuilder(f"random{seed}")
    b.source("s")
    b.sink("t")
    written: list[tuple[str, int]] = []
    used: set[str] = set()
    for n in range(rng.randrange(3, 25)):
        preds = _predecessors(rng, written, chain)
        reads = preds[0][1] if preds else rng.randrange(1, 64)
        rate = rng.choice(rates)
        whole = (reads * rate).denominator == 1 and reads * rate <= 400
        name = f"n{n}"
        if buffers and preds and rng.random() < 0.15:
            b.buffer(name)
        else:
            b.add(name, count=rng.choice(counts) if len(counts) > 1 else counts[0])
        for source, _ in preds or [("s", reads)]:
            b.connect(source, name, reads)
            used.add(source)
        written.append((name, int(reads * rate) if whole else reads))
    for name, volume in written:
        if name not in used:
            b.connect(name, "t", volume)
    return b.build("part")


def _predecessors(
    rng: random.Random, written: list[tuple[str, int]], chain: bool
) -> list[tuple[str, int]]:
    if not written or (not chain and rng.random() < 0.2):
        return []
    if chain:
        return written[-1:]
    volume = rng.choice(written)[1]
    same = [w for w in written if w[1] == volume]
    return rng.sample(same, min(len(same), rng.randrange(1, 4)))
