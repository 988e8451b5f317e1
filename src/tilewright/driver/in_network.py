"""Whether schedules that are faster alone are faster in their model, and its results the same.

In a model the caches hold other data than when a kernel is called again and again, so every kernel
is timed there with both schedules, in turns.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from tilewright.base.errors import TilewrightWarning, VerifyError
from tilewright.runtime.executable import Executable
from tilewright.tune.records.database import Records
from tilewright.tune.records.rows import MARGIN
from tilewright.tune.tuner import Outcome

Compile = Callable[[Path | None], Executable]  # with the choices of a file of records
Array = np.ndarray[Any, Any]

ROUNDS: Final = 15
_SECONDS: Final = 6.0  # that comparing takes at most, if fewer rounds do
_FEWEST: Final = 5
_BATCH: Final = 5e-3  # seconds of calls that are timed as one
# Of the largest value of an output: both are sums of the same terms in different orders.
_TOLERANCE: Final = {"float64": 1e-9, "float32": 1e-3, "float16": 3e-2, "bfloat16": 0.1}


@dataclass(frozen=True, slots=True)
class Compared:
    """Seconds of a run without and with the choices, which are by the keys of tasks.

    kernels: of all calls of a kernel, without and with its choice.
    """

    before: float
    after: float
    kernels: Mapping[str, tuple[float, float]]


def kept(
    outcomes: Sequence[Outcome], compile: Compile, feeds: Mapping[str, Array]
) -> tuple[list[Outcome], Compared | None]:
    """Those of the improved kernels that are faster in the model too, and its times with them.

    None of them where the model as a whole is not faster with them. Raises VerifyError for results
    that differ.
    """
    chosen = list(outcomes)
    compared: Compared | None = None
    while chosen:
        compared = compare(chosen, compile, feeds)
        times = compared.kernels
        good = [o for o in chosen if times[o.task.key][1] < times[o.task.key][0]]
        if len(good) == len(chosen):
            break
        chosen = good
    if not chosen or compared is None or compared.after * MARGIN > compared.before:
        return [], compared
    return chosen, compared


def compare(
    outcomes: Sequence[Outcome], compile: Compile, feeds: Mapping[str, Array]
) -> Compared:
    """The model without and with the best of these kernels. Raises VerifyError; see `kept`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "choices.sqlite")
        _choose(path, outcomes)
        plain, tuned = compile(None), compile(path)
    given = dict(feeds)
    _expect_equal(plain, tuned, given)
    totals: tuple[list[float], list[float]] = ([], [])
    parts: tuple[_Parts, _Parts] = (defaultdict(list), defaultdict(list))
    end = time.monotonic() + _SECONDS
    for n in range(ROUNDS):
        if n >= _FEWEST and time.monotonic() > end:
            break
        for side, exe in enumerate((plain, tuned)):
            totals[side].append(_timed(exe, given))
            for row in exe.profile(given, repeat=3).rows:
                parts[side][row.name].append(row.seconds)
    before, after = (statistics.median(t) for t in totals)
    kernels = {
        o.task.key: (_sum(parts[0], o.task.kernels), _sum(parts[1], o.task.kernels))
        for o in outcomes
    }
    return Compared(before, after, kernels)


_Parts = dict[str, list[float]]


def _sum(parts: _Parts, names: Sequence[str]) -> float:
    return sum(statistics.median(parts[name]) for name in names if name in parts)


def _choose(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Records that have these choices, and no others."""
    with Records(path) as records:
        run = records.begin("comparison")
        for o in outcomes:
            assert o.best is not None and o.default is not None
            seconds = o.best.measurement.seconds
            default = max(o.default.measurement.seconds, seconds * MARGIN * 1.01)
            key, name = o.task.key, o.task.name
            records.choose(run, key, name, o.best.candidate, seconds, default)


def _timed(exe: Executable, feeds: dict[str, Array]) -> float:
    """Seconds of a call, the mean of a batch."""
    start, calls = time.perf_counter(), 0
    while (taken := time.perf_counter() - start) < _BATCH or not calls:
        exe(feeds)
        calls += 1
    return taken / calls


def _expect_equal(
    plain: Executable, tuned: Executable, feeds: dict[str, Array]
) -> None:
    runs = [_results(exe, feeds) for exe in (plain, plain, tuned)]
    names = [t.name for t in plain.outputs]
    for name, a, again, b in zip(names, *runs, strict=True):
        if _is_same(a, again):
            _expect_near(name, a, b)
        else:
            warnings.warn(
                f"output {name!r} is another one in each run, so it was not compared",
                TilewrightWarning,
                stacklevel=2,
            )


def _is_same(a: Array, b: Array) -> bool:
    """Bit by bit; NaN is as good as any number."""
    if a.dtype == object:
        return np.array_equal(a, b)
    return np.array_equal(a.view(np.uint8), b.view(np.uint8))


def _results(exe: Executable, feeds: dict[str, Array]) -> list[Array]:
    """Copies of the outputs, in memory without gaps."""
    return [np.array(a, order="C", ndmin=1) for a in _listed(exe(feeds))]


def _expect_near(name: str, a: Array, b: Array) -> None:
    off = 0.0
    if a.dtype.kind in "iub" or a.dtype == object:
        same = bool((a == b).all())
    else:
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        x, y = a.astype(wide), b.astype(wide)
        finite = np.isfinite(x)
        largest = float(np.abs(x[finite]).max(initial=0.0))
        with np.errstate(invalid="ignore"):
            off = float(np.abs(x[finite] - y[finite]).max(initial=0.0))
        near = off <= _TOLERANCE.get(a.dtype.name, 0.1) * max(largest, 1e-30)
        odd = (x[~finite] == y[~finite]) | (np.isnan(x[~finite]) & np.isnan(y[~finite]))
        same = near and bool(odd.all())
    if not same:
        raise VerifyError(
            f"with the tuned schedules it differs by {off:g} from the default ones",
            where=f"output {name!r}",
            hint="nothing was chosen; report it with the model and its records",
        )


def _listed(results: Any) -> list[Any]:
    return list(results) if isinstance(results, list | tuple) else [results]
