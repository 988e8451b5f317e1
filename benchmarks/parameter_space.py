"""Spaces of interdependent parameters: how long they take to generate, compared with pyATF.

    python -m benchmarks.parameter_space [--size N ...] [--rounds N] [--json]

The spaces: `gemm`, from pyATF's example for CLTune's matrix product, and `xgemm-direct`, from
CLBlast's direct product, whose parameters range over all numbers up to N. The same functions define
both for both packages; `divisors` defines the first by ranges that enumerate divisors. Rounds of
the packages are interleaved, times are medians. Without pyATF only our times are shown.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tilewright.tune.space import (
    AtMost,
    Divides,
    Divisors,
    Interval,
    Parameter,
    ParameterSpace,
    Set,
)

WORK_ITEMS = 1024  # of a group, and of one dimension of it
LOCAL_MEMORY = 48 * 1024  # bytes

Make = Callable[..., Any]


def gemm(parameter: Make, interval: Make, some: Make, n: int) -> list[Any]:
    """CLTune's matrix product of n x n x n, as an example of pyATF states it."""

    def stages(threads: int, tile: int, both: int, depth: int) -> bool:
        if tile % threads or both % threads:
            return False
        return depth % (both // threads) == 0

    def vector(wide: int, tile: int, threads: int, loading: int) -> bool:
        return tile // threads % wide == 0 and tile // loading % wide == 0

    def fits(
        bits: int, a: int, depth: int, mwg: int, vwm: int, nwg: int, vwn: int
    ) -> bool:
        used = a * depth * mwg / vwm + bits * depth * nwg / vwn
        return used * 8 <= LOCAL_MEMORY

    to_n = interval(1, n)
    vectors = some(1, 2, 4, 8)
    switch = some(0, 1)
    return [
        parameter("MWG", to_n, lambda MWG: n % MWG == 0),
        parameter("NWG", to_n, lambda NWG: n % NWG == 0),
        parameter("KWG", to_n, lambda KWG: n % KWG == 0),
        parameter(
            "MDIMC",
            to_n,
            lambda MDIMC, MWG: MWG % MDIMC == 0 and MDIMC <= WORK_ITEMS,
        ),
        parameter(
            "NDIMC",
            to_n,
            lambda NDIMC, NWG, MDIMC: NWG % NDIMC == 0 and MDIMC * NDIMC <= WORK_ITEMS,
        ),
        parameter(
            "MDIMA",
            to_n,
            lambda MDIMA, MWG, KWG, MDIMC, NDIMC: stages(
                MDIMA, MWG, MDIMC * NDIMC, KWG
            ),
        ),
        parameter(
            "NDIMB",
            to_n,
            lambda NDIMB, NWG, KWG, MDIMC, NDIMC: stages(
                NDIMB, NWG, MDIMC * NDIMC, KWG
            ),
        ),
        parameter("KWI", to_n, lambda KWI, KWG: KWG % KWI == 0),
        parameter(
            "VWM",
            vectors,
            lambda VWM, MWG, MDIMC, MDIMA: vector(VWM, MWG, MDIMC, MDIMA),
        ),
        parameter(
            "VWN",
            vectors,
            lambda VWN, NWG, NDIMC, NDIMB: vector(VWN, NWG, NDIMC, NDIMB),
        ),
        parameter("STRM", switch),
        parameter("STRN", switch),
        parameter("SA", switch),
        parameter(
            "SB",
            switch,
            lambda SB, SA, KWG, MWG, VWM, NWG, VWN: fits(
                SB, SA, KWG, MWG, VWM, NWG, VWN
            ),
        ),
    ]


def xgemm_direct(parameter: Make, interval: Make, some: Make, n: int) -> list[Any]:
    """CLBlast's direct product, with the constraints of its tuner."""

    def deep(tile: int, both: int, threads: int) -> bool:
        return both % threads == 0 and tile % (both // threads) == 0

    to_n = interval(1, n)
    vectors = some(1, 2, 4, 8)
    switch = some(0, 1)
    return [
        parameter("WGD", to_n),
        parameter("KWID", to_n, lambda KWID, WGD: WGD % KWID == 0),
        parameter("MDIMCD", to_n, lambda MDIMCD, WGD: WGD % MDIMCD == 0),
        parameter(
            "NDIMCD",
            to_n,
            lambda NDIMCD, WGD, MDIMCD: (
                WGD % NDIMCD == 0 and MDIMCD * NDIMCD <= WORK_ITEMS
            ),
        ),
        parameter(
            "MDIMAD",
            to_n,
            lambda MDIMAD, WGD, MDIMCD, NDIMCD: deep(WGD, MDIMCD * NDIMCD, MDIMAD),
        ),
        parameter(
            "NDIMBD",
            to_n,
            lambda NDIMBD, WGD, MDIMCD, NDIMCD: deep(WGD, MDIMCD * NDIMCD, NDIMBD),
        ),
        parameter(
            "VWMD",
            vectors,
            lambda VWMD, WGD, MDIMCD, MDIMAD: (
                WGD % (MDIMCD * VWMD) == 0 and WGD % (MDIMAD * VWMD) == 0
            ),
        ),
        parameter(
            "VWND",
            vectors,
            lambda VWND, WGD, NDIMCD, NDIMBD: (
                WGD % (NDIMCD * VWND) == 0 and WGD % (NDIMBD * VWND) == 0
            ),
        ),
        parameter("PADA", switch),
        parameter(
            "PADB",
            switch,
            lambda PADB, PADA, WGD: 4 * WGD * (2 * WGD + PADA + PADB) <= LOCAL_MEMORY,
        ),
    ]


def enumerated(n: int) -> list[Parameter]:
    """`gemm` by ranges that enumerate divisors, and constraints where needed."""
    narrowed = {
        "MWG": Parameter("MWG", Divisors(n)),
        "NWG": Parameter("NWG", Divisors(n)),
        "KWG": Parameter("KWG", Divisors(n)),
        "MDIMC": Parameter("MDIMC", Divisors("MWG", at_most=WORK_ITEMS)),
        "NDIMC": Parameter(
            "NDIMC", Divisors("NWG"), AtMost(lambda MDIMC: WORK_ITEMS // MDIMC)
        ),
        "KWI": Parameter("KWI", Interval(1, n), Divides("KWG")),
    }
    return [narrowed.get(p.name, p) for p in gemm(Parameter, Interval, Set, n)]


@dataclass(frozen=True)
class Row:
    """One space: its size, seconds of each package, and how many trees ours has."""

    space: str
    size: int
    trees: int
    seconds: float
    seconds_enumerated: float | None
    seconds_pyatf: float | None

    @property
    def ratio(self) -> float | None:
        """How many times faster ours is."""
        if self.seconds_pyatf is None:
            return None
        return self.seconds_pyatf / self.seconds


def measured(name: str, states: Make, n: int, rounds: int, pyatf: Any) -> Row:
    """The medians of interleaved rounds. Raises AssertionError if the sizes differ."""
    ours: list[float] = []
    divided: list[float] = []
    theirs: list[float] = []
    space = _timed(ours, lambda: _space(states(Parameter, Interval, Set, n)))
    for number in range(rounds):
        if number:
            _timed(ours, lambda: _space(states(Parameter, Interval, Set, n)))
        if states is gemm:
            other = _timed(divided, lambda: _space(enumerated(n)))
            assert other.size == space.size
        if pyatf is not None:
            their = _timed(theirs, lambda: _their_space(pyatf, states, n))
            assert their.constrained_size == space.size, (
                name,
                n,
                their.constrained_size,
                space.size,
            )
    medians = [statistics.median(t) if t else None for t in (ours, divided, theirs)]
    assert medians[0] is not None
    label = f"{name} {n}"
    return Row(label, space.size, space.contexts, medians[0], medians[1], medians[2])


def _timed(times: list[float], make: Callable[[], Any]) -> Any:
    start = time.perf_counter()
    made = make()
    times.append(time.perf_counter() - start)
    return made


def _space(parameters: Sequence[Parameter]) -> ParameterSpace:
    space = ParameterSpace(*parameters)
    assert space.size
    return space


def _their_space(pyatf: Any, states: Make, n: int) -> Any:
    of_pyatf = importlib.import_module("pyatf.search_space")
    parameters = states(pyatf.TP, pyatf.Interval, pyatf.Set, n)
    return of_pyatf.SearchSpace(*parameters, verbosity=0)


SPACES: dict[str, Make] = {"gemm": gemm, "xgemm-direct": xgemm_direct}


def main() -> None:
    """Prints one line per space and size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        pyatf = importlib.import_module("pyatf")
    except ImportError:
        pyatf = None
        print("pyatf is not installed (pip install pyatf==0.0.13): only our own times")
    for name, states in SPACES.items():
        for n in args.size:
            row = measured(name, states, n, args.rounds, pyatf)
            print(json.dumps(asdict(row)) if args.json else _line(row), flush=True)


def _line(row: Row) -> str:
    parts = [
        f"{row.space:16}",
        f"{row.size:12,} candidates",
        f"{row.trees:8,} trees",
        f"{row.seconds * 1e3:9.1f} ms",
    ]
    if row.seconds_enumerated is not None:
        parts.append(f"{row.seconds_enumerated * 1e3:9.1f} ms enumerated")
    if row.seconds_pyatf is not None:
        parts.append(f"{row.seconds_pyatf * 1e3:9.1f} ms pyATF")
        parts.append(f"{row.ratio:6.1f} times")
    return "  ".join(parts)


if __name__ == "__main__":
    main()
