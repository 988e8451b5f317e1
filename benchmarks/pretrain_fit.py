"""Fitting the pretrained model, and judging it on models that it did not learn from.

A kind of operator is judged kernel by kernel, and the kernels' numbers are averaged: times
by their geometric mean. What failed counts as twice the slowest program of its kernel.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.table import Table

from benchmarks.cost_models import RECALL, pair_accuracy, recall_at, top_1
from benchmarks.pretrain_rows import Measured, Row, read
from tilewright.base.errors import InputError
from tilewright.base.files import write_whole
from tilewright.tune.base import Vector
from tilewright.tune.features.fast import Fast
from tilewright.tune.models.analytic import estimates
from tilewright.tune.models.forest import TreeEnsemble
from tilewright.tune.models.learner import Ensemble
from tilewright.tune.models.objectives import OBJECTIVES
from tilewright.tune.models.pretrained import Pretrained
from tilewright.tune.models.programs import Examples, ProgramRows, numbered
from tilewright.tune.models.trees import Trees
from tilewright.tune.pretrained import LEAST as LEAST_GAIN
from tilewright.tune.pretrained import MARGIN

FOLDS: Final = 5  # parts, each judged on by a model of the others
LEAST: Final = (
    8  # programs of a kernel that succeeded; with less, its order says little
)
LIMIT: Final = 2_000_000  # bytes of the model's file
ALL: Final = "all"
PACKAGES: Final = ("tilewright", "llvmlite", "lightgbm", "numpy")


@dataclass(frozen=True)
class How:
    """How to fit. prior: learn what the analytic model leaves over. margin, least: by how much the
    model's choice must beat the default, see `pretrained.choose`. shortest: seconds; kernels with a
    faster default are excluded, because their times say little."""

    objective: str = "regression"
    prior: bool = False
    rounds: int = 150
    members: int = 6
    margin: float = MARGIN
    least: float = LEAST_GAIN
    shortest: float = 2e-5
    seed: int = 0


@dataclass(frozen=True)
class Result:
    """How good models are on a kind of operator, each judged on kernels that it has not seen.

    kernels, programs: number judged. pairs, top, recall: as in `cost_models`. gain: the default's
    time over that of the program of least cost. taken: the share of kernels where `choose` is
    confident of a faster program; taken_gain: the gain on these; worst: the least of them; 1 if
    there is none. overall: the gain if only these replace the default.
    """

    kind: str
    kernels: int
    programs: int
    pairs: float
    top: float
    recall: float
    gain: float
    taken: float
    taken_gain: float
    worst: float
    overall: float


@dataclass(frozen=True)
class Fitted:
    """A model, how it was made, and how good it is: a Result per kind, the overall one last."""

    model: Pretrained
    how: How
    data: Measured
    kernels: int
    results: Sequence[Result]


def part_of(source: str, parts: int, drawn: str = "") -> int:
    """Which of `parts` parts the model of this name is in, with all its kernels on every level and
    machine. drawn: another value, another division."""
    digest = hashlib.sha256(f"{drawn}{source}".encode()).digest()
    return digest[0] % parts


def by_kernel(rows: Sequence[Row], shortest: float = 0.0) -> dict[str, list[Row]]:
    """The programs of each kernel that has enough of them, by machine and task.

    shortest: seconds; kernels whose default is faster, or failed, are excluded. Two models may have
    the same kernel: it counts for the first one.
    """
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(f"{row.machine} {row.task}", []).append(row)
    for name, own in found.items():
        found[name] = [r for r in own if r.source == own[0].source]
    return {name: own for name, own in found.items() if _counts(own, shortest)}


def _counts(own: Sequence[Row], shortest: float) -> bool:
    """Whether there are enough programs of a kernel, and its default takes so long."""
    if sum(r.seconds is not None for r in own) < LEAST:
        return False
    known = [r.seconds for r in own if r.default and r.seconds is not None]
    return not shortest or any(seconds >= shortest for seconds in known)


def examples(kernels: Mapping[str, Sequence[Row]], prior: bool) -> Examples:
    """All programs of these kernels, in a learner's format."""
    every = [row for own in kernels.values() for row in own]
    names = [name for name, own in kernels.items() for _ in own]
    columns = np.array([r.columns for r in every], np.float32)
    known = estimates(columns) if prior else np.zeros(len(every))
    seconds = [np.inf if r.seconds is None else r.seconds for r in every]
    programs = ProgramRows(columns, np.arange(1, len(every) + 1))
    return Examples(programs, numbered(names), np.array(seconds), known)


def fit(paths: Sequence[Path], how: How) -> Fitted:
    """Fit a model to the files' rows; each part of them is judged by a model of the other parts.

    Raises InputError for too few rows.
    """
    data = read(paths)
    kernels = by_kernel(data.rows, how.shortest)
    parts: list[dict[str, list[Row]]] = [{} for _ in range(FOLDS)]
    for name, own in kernels.items():
        parts[part_of(own[0].source, FOLDS)][name] = own
    if not all(parts):
        raise InputError(
            f"{len(kernels)} kernels, not one for each of {FOLDS} parts to judge on",
            where=", ".join(map(str, paths)),
            hint=f"measure more: a kernel counts with {LEAST} programs that succeeded, and "
            f"{how.shortest:g} s of its default",
        )
    verdicts: dict[str, list[_Verdict]] = {}
    for held in parts:
        others = {n: own for n, own in kernels.items() if n not in held}
        model = model_of(others, how)
        for name, own in held.items():
            found = _verdict(model, {name: own}, how)
            verdicts.setdefault(own[0].kind, []).append(found)
    return Fitted(model_of(kernels, how), how, data, len(kernels), results(verdicts))


def model_of(kernels: Mapping[str, Sequence[Row]], how: How) -> Pretrained:
    """Fitted to these kernels. Each member leaves some models out, so that where members agree,
    they would of a kernel that none has seen."""
    members, unit = [], ""
    for n in range(how.members):
        own = {
            name: rows
            for name, rows in kernels.items()
            if how.members == 1 or part_of(rows[0].source, how.members, "member ") != n
        }
        learner = Ensemble(
            lambda seed: Trees(OBJECTIVES[how.objective], seed, how.rounds),
            1,
            how.seed + n,
        )
        learner.fit(examples(own, how.prior).useful())
        members += [TreeEnsemble.of(state) for state in learner.state()["members"]]
        unit = learner.unit
    return Pretrained(members, unit, how.prior, {})


def results(verdicts: Mapping[str, Sequence[_Verdict]]) -> list[Result]:
    """A result for each kind, and one for all kernels."""
    found = [_result(kind, verdicts[kind]) for kind in sorted(verdicts)]
    return [*found, _result(ALL, [v for own in verdicts.values() for v in own])]


@dataclass(frozen=True)
class _Verdict:
    """The verdict on one kernel. gain, sure: logarithms; None if the default is unknown, or not
    beaten."""

    programs: int
    pairs: float
    top: float
    recall: float
    gain: float | None
    sure: float | None


def _verdict(
    model: Pretrained, kernel: Mapping[str, Sequence[Row]], how: How
) -> _Verdict:
    (rows,) = kernel.values()
    of = examples(kernel, False)
    logs = of.costs()
    seconds = np.exp(logs)
    found = model.judge(of.programs.rows)
    cost = found.cost
    measures = (
        len(rows),
        pair_accuracy(cost, seconds),
        top_1(cost, seconds),
        recall_at(RECALL, cost, seconds),
    )
    default = next((n for n, r in enumerate(rows) if r.default and r.seconds), None)
    if default is None:
        return _Verdict(*measures, None, None)
    gain = float(logs[default] - logs[np.argmin(cost)])
    beside = model.beside(of.programs.rows[default], of.programs.rows)
    at_most: Vector = beside.cost + how.margin * beside.spread + how.least
    at_most[default] = np.inf
    best = int(np.argmin(at_most))
    sure = at_most[best] < 0
    return _Verdict(
        *measures, gain, float(logs[default] - logs[best]) if sure else None
    )


def _result(kind: str, verdicts: Sequence[_Verdict]) -> Result:
    known = [v for v in verdicts if v.gain is not None]
    sure = [v.sure for v in known if v.sure is not None]
    overall = [v.sure or 0.0 for v in known]
    return Result(
        kind,
        len(verdicts),
        sum(v.programs for v in verdicts),
        float(np.mean([v.pairs for v in verdicts])),
        float(np.mean([v.top for v in verdicts])),
        float(np.mean([v.recall for v in verdicts])),
        _times([v.gain or 0.0 for v in known]),
        len(sure) / max(1, len(known)),
        _times(sure),
        float(np.exp(min(sure, default=0.0))),
        _times(overall),
    )


def _times(logs: Sequence[float]) -> float:
    return float(np.exp(np.mean(logs))) if logs else 1.0


def table(results: Sequence[Result]) -> Table:
    """A row per kind."""
    view = Table(title="each kernel by a model that has not seen it")
    view.add_column("kind")
    for heading in (
        "kernels",
        "programs",
        "pairs",
        "top-1",
        f"recall@{RECALL}",
        "gain",
    ):
        view.add_column(heading, justify="right")
    for heading in ("taken", "gain there", "worst", "overall"):
        view.add_column(heading, justify="right")
    for r in results:
        kind, kernels, programs, *numbers = asdict(r).values()
        cells = [f"{x:.3f}" for x in numbers]
        view.add_row(kind, str(kernels), str(programs), *cells)
    return view


def card(fitted: Fitted, command: str) -> dict[str, Any]:
    """A model's card."""
    rows = fitted.data.rows
    return {
        "command": command,
        "how": asdict(fitted.how),
        "features": f"{Fast.name}, version {Fast.version}",
        "programs": len(rows),
        "statuses": dict(Counter(r.status for r in rows)),
        "levels": dict(Counter(r.level for r in rows)),
        "kinds": dict(Counter(r.kind for r in rows)),
        "machines": dict(Counter(r.machine for r in rows)),
        "versions": {name: version(name) for name in PACKAGES},
        "kernels": fitted.kernels,
        "accuracy": [asdict(r) for r in fitted.results],
    }


def write(path: Path, fitted: Fitted, command: str) -> None:
    """The model with its card in one file, and the card as a page next to it.

    Raises InputError for a model beyond LIMIT, and then leaves no file.
    """
    made = card(fitted, command)
    kept = Pretrained(fitted.model.members, fitted.model.unit, fitted.model.prior, made)
    part = path.with_name(path.name + ".part")
    try:
        kept.save(part)
        size = part.stat().st_size
        if size > LIMIT:
            raise InputError(
                f"the model has {size} bytes, and {LIMIT} are allowed",
                where=str(path),
                hint="fit fewer rounds or members",
            )
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    text = page(made).encode()
    write_whole(path.with_suffix(".md"), lambda file: file.write(text))


def page(of: Mapping[str, Any]) -> str:
    """A card as Markdown."""
    lines = ["# The pretrained model", ""]
    for name, value in of.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{k}: {v}" for k, v in value.items())
        if name != "accuracy":
            lines.append(f"- {name}: {value}")
    columns = list(of["accuracy"][0])
    lines += ["", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in of["accuracy"]:
        cells = [f"{x:.3f}" if isinstance(x, float) else str(x) for x in row.values()]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
