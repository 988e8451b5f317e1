"""A summary of measured rows: the lead over the fastest peer, means, missed bars."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import models
from benchmarks.operators import BFLOAT16
from benchmarks.peers import REQUIRED
from tilewright.cli.rounds import RoundTable


@dataclass(frozen=True)
class Bars:
    """Of a kind of rows, as times the fastest peer's speed, and the largest error allowed.

    The error is a difference from float64 relative to the peak of the output.
    """

    mean: float
    each: float
    error: float


BARS = {
    "network": Bars(1.15, 0.95, 1e-4),
    "operator": Bars(1.1, 0.9, 1e-4),
    "bfloat16": Bars(1.0, 0.0, 2e-2),
    "int8": Bars(1.0, 0.0, 2e-2),
}


def kind(name: str) -> str:
    """The kind of a row, a key of BARS."""
    if name in models.RECIPES:
        return "network"
    if name in models.QUANTIZED or name in models.NETWORKS:
        return "int8"
    return "bfloat16" if name in BFLOAT16 else "operator"


def required(name: str, against: Sequence[str] | None) -> tuple[str, ...]:
    """The peers that a row must have; `against` narrows them, or names others."""
    usual = REQUIRED[kind(name)]
    return usual if against is None else tuple(against)


def void(row: RoundTable) -> list[str]:
    """Why a row does not count, one reason each; nothing for one that does.

    An engine failed or is missing: a comparison with fewer peers would flatter us. Outputs of an
    engine were not compared with the float64 reference in the same run, or are beyond the bar: the
    speed of a wrong program does not count.
    """
    reasons = [f"{engine}: {why}" for engine, why in row.failed.items()]
    if not row.referenced:
        return [*reasons, "its outputs were not compared with the float64 reference"]
    bar = BARS[kind(row.network)].error
    wrong = [engine for engine in row.times if not agrees(row, engine)]
    return reasons + [
        f"{e}: error {row.error.get(e, math.nan):.1e}, bar {bar:.0e}" for e in wrong
    ]


def agrees(row: RoundTable, engine: str) -> bool:
    """Whether an engine's outputs were compared with the reference and are within the bar."""
    return (
        row.referenced
        and row.error.get(engine, math.nan) <= BARS[kind(row.network)].error
    )


def fastest(row: RoundTable) -> str | None:
    """The peer with the least median time; None for a row that is void."""
    if void(row):
        return None
    peers = [engine for engine in row.engines[1:] if row.times.get(engine)]
    return min(
        peers, key=lambda engine: statistics.median(row.times[engine]), default=None
    )


def lead(row: RoundTable) -> float | None:
    """Our speed as a multiple of the fastest peer's: the median of the rounds' ratios."""
    peer = fastest(row)
    return None if peer is None else row.speed(peer)


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean of positive numbers; nan of none."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def summary(rows: Sequence[RoundTable]) -> list[dict[str, Any]]:
    """Per kind and thread count: geometric mean, minimum, rows and how many of them are void."""
    groups: dict[tuple[str, int], list[RoundTable]] = {}
    for row in rows:
        groups.setdefault((kind(row.network), row.threads), []).append(row)
    result = []
    for (what, threads), members in groups.items():
        leads = [value for row in members if (value := lead(row)) is not None]
        mean = geometric_mean(leads) if leads else None
        result.append({"kind": what, "threads": threads, "geometric_mean": mean,
                       "minimum": min(leads, default=None), "rows": len(members),
                       "void": len(members) - len(leads)})  # fmt: skip
    return result


def missed(rows: Sequence[RoundTable]) -> list[str]:
    """The missed bars, one sentence each; a void row misses."""
    result = []
    for row in rows:
        name, bars = f"{row.network} x{row.threads}", BARS[kind(row.network)]
        result += [f"{name}: void: {why}" for why in void(row)]
        value = lead(row)
        if value is not None and value < bars.each:
            result.append(f"{name}: {value:.2f} of {fastest(row)}, bar {bars.each}")
    for group in summary(rows):
        mean, bar = group["geometric_mean"], BARS[group["kind"]].mean
        if mean is not None and mean < bar:
            threads = group["threads"]
            result.append(
                f"{group['kind']} x{threads}: geometric mean {mean:.2f}, bar {bar}"
            )
    return result
