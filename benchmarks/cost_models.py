"""Cost models side by side on operators not seen before (python -m benchmarks.cost_models).

    python -m benchmarks.cost_models programs.json      # measures first if it is not there
    python -m benchmarks.cost_models programs.json --models trees,ansor --json

Programs are random schedules of the operators of `cost_programs.OPERATORS`, each measured once and
kept in the file. For each fold the models learn from the operators outside it and order the
programs of those inside. `--within` instead learns from some programs of the operator itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import cost_programs, harness
from benchmarks.cost_programs import OPERATORS, Operator, Program
from tilewright.loops.nodes import Kernel
from tilewright.targets.registry import target
from tilewright.tune.base import Candidate, CostModel, Sample, Vector
from tilewright.tune.features.configuration import Flattened
from tilewright.tune.features.facts import Facts
from tilewright.tune.models import MODELS, make, trees
from tilewright.tune.models.configuration import Configuration
from tilewright.tune.models.learned import LearnedModel

RECALL: Final = 10  # fastest programs: how many of them are among the first ones
FOLDS: Final = 4
APART: Final = (
    1.1  # times as long; which is faster of what is closer, one pass cannot tell
)
CONFIGURATION: Final = "configuration"


@dataclass
class Result:
    """How a model did. pairs, top, recall: a number per operator. fit: seconds per fit; predict:
    microseconds per program, its features included."""

    model: str
    pairs: dict[str, float] = field(default_factory=dict)
    top: dict[str, float] = field(default_factory=dict)
    recall: dict[str, float] = field(default_factory=dict)
    fit: list[float] = field(default_factory=list)
    predict: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Measured:
    """A program with its kernel."""

    program: Program
    kernel: Kernel

    @property
    def sample(self) -> Sample:
        """The program as a training sample."""
        return Sample(self.program.operator, self.kernel, self.program.seconds)

    @property
    def candidate(self) -> Candidate:
        """The program as a candidate of its space."""
        return Candidate(self.program.sketch, self.program.values)


def pair_accuracy(cost: Vector, seconds: Vector) -> float:
    """The share of pairs in the right order, of those that are APART; a tie is half right."""
    one, other = np.triu_indices(len(seconds), 1)
    known = np.abs(np.log(seconds[one] / seconds[other])) > np.log(APART)
    one, other = one[known], other[known]
    if not len(one):
        return 1.0
    right = np.sign(cost[one] - cost[other]) == np.sign(seconds[one] - seconds[other])
    tied = cost[one] == cost[other]
    return float(np.mean(np.where(tied, 0.5, right)))


def top_1(cost: Vector, seconds: Vector) -> float:
    """The best time over the time of the program with the least cost."""
    return float(seconds.min() / seconds[np.argmin(cost)])


def recall_at(k: int, cost: Vector, seconds: Vector) -> float:
    """How many of the k fastest are among the k of least cost."""
    k = min(k, len(cost))
    found = set(np.argsort(cost, kind="stable")[:k]) & set(
        np.argsort(seconds, kind="stable")[:k]
    )
    return len(found) / k


def makers(
    names: Sequence[str], facts: Facts, every: Sequence[Measured], seed: int
) -> Mapping[str, Callable[[], CostModel]]:
    """The maker of each model."""
    candidates = {id(m.kernel): m.candidate for m in every}
    values = Flattened.fit(list(candidates.values()))

    def configuration() -> CostModel:
        features = Configuration(values, lambda kernel: candidates[id(kernel)])
        return LearnedModel(features, trees("rank", seed=seed))

    known: dict[str, Callable[[], CostModel]] = {
        n: partial(make, n, facts, seed) for n in MODELS
    }
    known[CONFIGURATION] = configuration
    return {n: known[n] for n in harness.chosen(",".join(names), list(known))}


def folds(names: Sequence[str], seed: int) -> Iterator[tuple[set[str], set[str]]]:
    """Operators to learn from, and those to predict; each is predicted once."""
    order = np.random.default_rng(seed).permutation(len(names))
    count = min(FOLDS, len(names))
    for n in range(count):
        held = {names[i] for i in order[n::count]}
        yield set(names) - held, held


def held_out(
    result: Result,
    make_one: Callable[[], CostModel],
    every: Mapping[str, list[Measured]],
    seed: int,
) -> None:
    """Fit on the operators of each fold and judge on the others."""
    for learned, held in folds(list(every), seed):
        model = make_one()
        _fit(result, model, [m.sample for name in learned for m in every[name]])
        for name in held:
            _judge(result, model, name, every[name])


def within(
    result: Result,
    make_one: Callable[[], CostModel],
    every: Mapping[str, list[Measured]],
    seed: int,
    count: int,
) -> None:
    """Fit on `count` programs of an operator and judge on its others."""
    for name, programs in every.items():
        order = np.random.default_rng(seed).permutation(len(programs))
        model = make_one()
        _fit(result, model, [programs[i].sample for i in order[:count]])
        _judge(result, model, name, [programs[i] for i in order[count:]])


def _fit(result: Result, model: CostModel, samples: Sequence[Sample]) -> None:
    start = time.perf_counter()
    model.fit(samples)
    result.fit.append(time.perf_counter() - start)


def _judge(
    result: Result, model: CostModel, name: str, programs: Sequence[Measured]
) -> None:
    start = time.perf_counter()
    cost = model.predict(name, [m.kernel for m in programs]).cost
    taken = time.perf_counter() - start
    seconds = np.array([m.program.seconds for m in programs])
    result.pairs[name] = pair_accuracy(cost, seconds)
    result.top[name] = top_1(cost, seconds)
    result.recall[name] = recall_at(RECALL, cost, seconds)
    result.predict.append(taken / len(programs) * 1e6)


def table(results: Sequence[Result], title: str) -> Table:
    """A row for each model: means over the operators."""
    view = Table(title=title)
    view.add_column("model")
    for heading in ("pairs", "top-1", f"recall@{RECALL}", "fit s", "predict us"):
        view.add_column(heading, justify="right")
    for r in results:
        view.add_row(
            r.model,
            f"{_mean(r.pairs):.3f}",
            f"{_mean(r.top):.3f}",
            f"{_mean(r.recall):.3f}",
            f"{np.mean(r.fit):.2f}",
            f"{np.mean(r.predict):.0f}",
        )
    return view


def _mean(values: Mapping[str, float]) -> float:
    return float(np.mean(list(values.values())))


def with_kernels(programs: Sequence[Program]) -> dict[str, list[Measured]]:
    """The programs by operator, scheduled again."""
    found: dict[str, list[Measured]] = {}
    for name in dict.fromkeys(p.operator for p in programs):
        operator = Operator(name)
        own = (p for p in programs if p.operator == name)
        found[name] = [
            Measured(p, operator.kernel(p.sketch, p.values))
            for p in own
            if np.isfinite(p.seconds)
        ]
    return found


@click.command(epilog="Example: python -m benchmarks.cost_models programs.json")
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--count", default=100, show_default=True, type=click.IntRange(2))
@click.option("--operators", default="*", show_default=True, help="Names or patterns.")
@click.option("--models", default="*", show_default=True, help="Names or patterns.")
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--within",
    "own",
    type=click.IntRange(1),
    help="Learn from this many programs of the operator itself.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, not a table.")
def main(
    path: Path,
    count: int,
    operators: str,
    models: str,
    seed: int,
    own: int | None,
    as_json: bool,
) -> None:
    """Compare cost models on the programs of PATH, which are measured if it does not exist."""
    chosen = harness.chosen(operators, list(OPERATORS))
    if not path.exists():
        click.echo(f"measuring {count} programs of {len(chosen)} operators", err=True)
        made = list(cost_programs.measure(chosen, count, seed))
        cost_programs.save(path, made, harness.machine())
    programs = [p for p in cost_programs.load(path) if p.operator in chosen]
    every = with_kernels(programs)
    facts = Facts.of(target("cpu", threads=1))
    whole = [m for group in every.values() for m in group]
    results: list[Result] = []
    for name, make_one in makers([models], facts, whole, seed).items():
        click.echo(f"judging {name}", err=True)
        result = Result(name)
        if own is None:
            held_out(result, make_one, every, seed)
        else:
            within(result, make_one, every, seed, own)
        results.append(result)
    title = "operators not seen" if own is None else f"{own} programs of the operator"
    if as_json:
        click.echo(json.dumps([asdict(r) for r in results]))
    else:
        Console(width=100).print(table(results, f"{len(whole)} programs, {title}"))


if __name__ == "__main__":
    main()
