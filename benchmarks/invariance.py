"""What each representation of a program keeps, what it costs, and what trees learn from it.

python -m benchmarks.invariance --candidates 60

Programs are random schedules of a product, of sums of columns and of a convolution, each in two
sizes, timed in this process on one thread. Invariance is the share of columns that stay as they
are: when loops and buffers have other names; when operands that commute are swapped; when loops of
one trip are added; and when the same schedule is made for the other size. Accuracy is the share of
pairs of one operator and size of which the faster one is foreseen: of schedules that were not
learned from, and of sizes that were not. Sets of several rows a kernel are summed up by the sums
and the maxima of their columns.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.rewritten import renamed, with_trivial_loops
from tilewright.base.dtypes import float32
from tilewright.base.errors import ScheduleError
from tilewright.compute.build import reduce_
from tilewright.driver.build_kernel import build_kernel
from tilewright.expr.nodes import Buffer
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.runtime.executable import Executable
from tilewright.schedule.space import Point, Sketch
from tilewright.targets.registry import target
from tilewright.tune.base import Candidate
from tilewright.tune.features import Facts, FeatureSet, Flattened, feature_sets, program

Array = np.ndarray[Any, Any]
BATCH = 1e-3  # seconds of calls that are timed together
ROUNDS = 3
NEAR = 1.05  # pairs whose times differ by less are not compared
LEARN = 0.6  # of the schedules of an operator
HELD_OUT = 1  # the number of the size that is not learned from, where that is asked


@dataclass(frozen=True)
class Operator:
    """An operator at two sizes. kernel(size, swapped): its plain nest, its operands swapped if so,
    and its Computation."""

    name: str
    sizes: tuple[tuple[int, ...], ...]
    kernel: Callable[[tuple[int, ...], bool], tuple[Kernel, Any]]


def _product(size: tuple[int, ...], swapped: bool) -> tuple[Kernel, Any]:
    m, n, depth = size
    x = Buffer("x", (m, depth), float32)
    w = Buffer("w", (depth, n), float32)
    y = Buffer("y", (m, n), float32)

    def f(i: Any, j: Any, k: Any) -> Any:
        return w[k, j] * x[i, k] if swapped else x[i, k] * w[k, j]

    made = reduce_("m", y, (depth,), "add", f)
    return lower("product", [made], [x, w, y], [y]), made


def _columns(size: tuple[int, ...], swapped: bool) -> tuple[Kernel, Any]:
    rows, n = size
    x = Buffer("x", (rows, n), float32)
    w = Buffer("w", (n,), float32)
    y = Buffer("y", (n,), float32)

    def f(j: Any, i: Any) -> Any:
        return w[j] + x[i, j] if swapped else x[i, j] + w[j]

    made = reduce_("s", y, (rows,), "add", f)
    return lower("columns", [made], [x, w, y], [y]), made


def _convolution(size: tuple[int, ...], swapped: bool) -> tuple[Kernel, Any]:
    channels, side, out = size
    x = Buffer("x", (side + 2, side + 2, channels), float32)
    w = Buffer("w", (3, 3, channels, out), float32)
    y = Buffer("y", (side, side, out), float32)

    def f(i: Any, j: Any, o: Any, u: Any, v: Any, c: Any) -> Any:
        a, b = x[i + u, j + v, c], w[u, v, c, o]
        return b * a if swapped else a * b

    made = reduce_("c", y, (3, 3, channels), "add", f)
    return lower("convolution", [made], [x, w, y], [y]), made


OPERATORS = (
    Operator("product", ((96, 128, 192), (192, 256, 384)), _product),
    Operator("columns", ((256, 512), (512, 1024)), _columns),
    Operator("convolution", ((16, 14, 32), (32, 28, 64)), _convolution),
)


@dataclass(frozen=True)
class Timed:
    """A program, what was chosen, and its seconds. task: operator and size."""

    operator: str
    size: int
    point: Point
    seconds: float

    @property
    def task(self) -> tuple[str, int]:
        return self.operator, self.size

    @property
    def kernel(self) -> Kernel:
        return self.point.schedule.kernel

    @property
    def candidate(self) -> Candidate:
        return Candidate.of(self.point)


def sketches(operator: Operator, size: int, swapped: bool = False) -> Sequence[Sketch]:
    """The families of schedules of an operator at a size."""
    kernel, made = operator.kernel(operator.sizes[size], swapped)
    return target("cpu", threads=1).sketches(kernel, [made], [])


def programs(operator: Operator, size: int, count: int) -> list[Timed]:
    """Random schedules with their times; those that are refused are drawn again."""
    r = random.Random(operator.name)
    found: dict[str, Timed] = {}
    families = sketches(operator, size)
    for _ in range(20 * count):
        if len(found) == count:
            break
        try:
            point = r.choice(families).random(r)
        except ScheduleError:
            continue
        key = Candidate.of(point).key
        if key not in found:
            seconds = _seconds(point.schedule.kernel)
            found[key] = Timed(operator.name, size, point, seconds)
    return list(found.values())


def _seconds(kernel: Kernel) -> float:
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(b.shape).astype(np.float32) for b in kernel.inputs]
    out = np.empty(kernel.outputs[0].shape, np.float32)
    exe = Executable(build_kernel(kernel, target("cpu", threads=1)), threads=1)
    exe(*inputs, out=out)
    times: list[float] = []
    calls = 1
    while len(times) < ROUNDS:
        start = time.perf_counter()
        for _ in range(calls):
            exe(*inputs, out=out)
        taken = time.perf_counter() - start
        if taken < BATCH / 2 and not times:
            calls *= 2
        else:
            times.append(taken / calls)
    return statistics.median(times)


# ------------------------------------------------------------------------------ invariance


@dataclass(frozen=True)
class Kept:
    """Shares of columns that stay unchanged."""

    names: float
    order: float
    trivial: float
    size: float


def variants(timed: Timed) -> dict[str, Kernel | None]:
    """Variants of the same program; None if its schedule is not possible for one."""
    operator = next(o for o in OPERATORS if o.name == timed.operator)
    given = timed.candidate
    other = 1 - timed.size
    ways = {
        "order": sketches(operator, timed.size, swapped=True),
        "size": sketches(operator, other),
    }
    found: dict[str, Kernel | None] = {
        "names": renamed(timed.kernel),
        "trivial": with_trivial_loops(timed.kernel),
    }
    for way, families in ways.items():
        found[way] = None
        for sketch in families:
            if sketch.name == given.sketch:
                try:
                    found[way] = sketch.at(given.values).schedule.kernel
                except ScheduleError:
                    continue
    return found


def kept(features: Callable[[Kernel], Array], some: Sequence[Timed]) -> Kept:
    """Means over programs, of those whose schedule is possible in the other way."""
    shares: dict[str, list[float]] = {}
    for timed in some:
        base = features(timed.kernel)
        for way, kernel in variants(timed).items():
            if kernel is not None:
                same = np.isclose(base, features(kernel), rtol=1e-5)
                shares.setdefault(way, []).append(float(same.mean()))
    means = {way: statistics.mean(values) for way, values in shares.items()}
    nothing = dict.fromkeys(("names", "order", "trivial", "size"), math.nan)
    return Kept(**(nothing | means))


# ------------------------------------------------------------------------------ learning


def pooled(features: FeatureSet) -> Callable[[Kernel], Array]:
    """One row per kernel: itself, or the sums and maxima of several."""

    def row(kernel: Kernel) -> Array:
        found: Array = features.extract(kernel)
        if features.per == "kernel":
            first: Array = found[0]
            return first
        nothing = np.zeros((1, found.shape[1]), np.float32)
        every = np.concatenate([nothing, found])
        return np.concatenate([every.sum(axis=0), every.max(axis=0)])

    return row


def fitted(rows: Array, costs: Array) -> Callable[[Array], Array]:
    """Trees that foresee the logarithm of seconds, in parts of their task's least."""
    import lightgbm

    # Few rows: small leaves, and no choice of rows or columns by chance.
    settings = {
        "objective": "regression",
        "num_leaves": 15,
        "min_data_in_leaf": 4,
        "learning_rate": 0.08,
        "num_threads": 1,
        "verbose": -1,
        "seed": 0,
        "deterministic": True,
    }
    data = lightgbm.Dataset(rows, label=costs)
    made = lightgbm.train(settings, data, num_boost_round=150)
    return lambda given: np.asarray(made.predict(given))


def accuracy(some: Sequence[Timed], foreseen: Array) -> float:
    """The share of pairs of one task that are in the right order; ties are half right."""
    right = total = 0.0
    for a, b in combinations(range(len(some)), 2):
        ratio = some[a].seconds / some[b].seconds
        if some[a].task != some[b].task or 1 / NEAR < ratio < NEAR:
            continue
        total += 1
        difference = foreseen[a] - foreseen[b]
        right += 0.5 if difference == 0 else float((difference > 0) == (ratio > 1))
    return right / total if total else math.nan


def learned(rows: Array, every: Sequence[Timed], learns: Sequence[bool]) -> float:
    """Accuracy on programs outside the training set."""
    least: dict[tuple[str, int], float] = {}
    for t in every:
        least[t.task] = min(least.get(t.task, math.inf), t.seconds)
    costs = np.array([math.log(t.seconds / least[t.task]) for t in every])
    chosen = np.array(learns)
    predict = fitted(rows[chosen], costs[chosen])
    rest = [t for t, known in zip(every, learns, strict=True) if not known]
    return accuracy(rest, predict(rows[~chosen]))


# ------------------------------------------------------------------------------ the table


@dataclass(frozen=True)
class Row:
    """A representation. schedules, sizes: accuracy where these were not learned from."""

    name: str
    columns: int
    kept: Kept | None
    microseconds: float
    schedules: float
    sizes: float


def rows(every: Sequence[Timed], facts: Facts) -> list[Row]:
    """A row per set of features, and one for the flattened configuration."""
    r = random.Random(0)
    split = [r.random() < LEARN for _ in every]
    by_size = [t.size != HELD_OUT for t in every]
    some = r.sample(list(every), min(len(every), 24))
    found = []
    for features in feature_sets(facts):  # each walks again
        row = pooled(features)
        program.forget()
        start = time.process_time()
        given = np.stack([row(t.kernel) for t in every])
        taken = 1e6 * (time.process_time() - start) / len(every)
        found.append(
            Row(
                features.name,
                given.shape[1],
                kept(row, some),
                taken,
                learned(given, every, split),
                learned(given, every, by_size),
            )
        )
    found.append(_configuration(every, split, by_size))
    return found


def _configuration(
    every: Sequence[Timed], split: Sequence[bool], by_size: Sequence[bool]
) -> Row:
    """It sees values of parameters alone: a program written in another way has the same."""
    candidates = [t.candidate for t in every]
    start = time.process_time()
    values = Flattened.fit(candidates)
    given = values.extract(candidates)
    taken = 1e6 * (time.process_time() - start) / len(every)
    accuracies = learned(given, every, split), learned(given, every, by_size)
    return Row(values.name, given.shape[1], None, taken, *accuracies)


def table(found: Sequence[Row]) -> Table:
    """The table for people."""
    view = Table(title="Columns kept in %, microseconds a kernel, pairs foreseen in %")
    for heading in ("set", "columns", "names", "order", "trivial", "size", "us"):
        view.add_column(heading, justify="left" if heading == "set" else "right")
    for heading in ("new schedules", "new sizes"):
        view.add_column(heading, justify="right")
    for row in found:
        shares = (
            ["-"] * 4
            if row.kept is None
            else [f"{100 * v:.0f}" for v in asdict(row.kept).values()]
        )
        foreseen = (f"{100 * v:.1f}" for v in (row.schedules, row.sizes))
        cells = (*shares, f"{row.microseconds:.0f}", *foreseen)
        view.add_row(row.name, str(row.columns), *cells)
    return view


@click.command(epilog="Example: python -m benchmarks.invariance --candidates 30")
@click.option(
    "--candidates",
    default=60,
    show_default=True,
    help="Candidates per operator and size.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object per representation."
)
def main(candidates: int, as_json: bool) -> None:
    """Compare the representations of programs that cost models learn from."""
    every: list[Timed] = []
    for operator in OPERATORS:
        for size in range(len(operator.sizes)):
            every += programs(operator, size, candidates)
    found = rows(every, Facts.of(target("cpu", threads=1)))
    if as_json:
        for row in found:
            click.echo(json.dumps(asdict(row)))
        return
    Console().print(table(found))
    counts = Counter(t.operator for t in every)
    texts = (f"{name} {n}" for name, n in counts.items())
    click.echo(f"programs that were timed: {', '.join(texts)}")


if __name__ == "__main__":
    main()
