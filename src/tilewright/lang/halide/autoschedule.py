"""The autoschedulers by Halide's names: the part of this compiler that each runs, and its results.

`Mullapudi2016` and `Li2018` are rule-based in Halide, and run the target's rules here. `Adams2019`
searches with a cost model, here as well: a beam search over the parameters of sketches. Nothing is
measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.base.text import listing
from tilewright.driver.schedulable import Plain
from tilewright.lang.function import Function
from tilewright.lang.function.choosing import by_default, foreseen, fused
from tilewright.lang.halide.replay import identifier
from tilewright.lang.halide.syntax import lower
from tilewright.lang.halide.syntax.pipeline import Pipeline as Stages
from tilewright.loops.lower import lower as nests
from tilewright.loops.nodes import Kernel
from tilewright.targets.base import Target

RULES: Final = "the target's rules, without any search"
SEARCH: Final = "a beam search over the target's sketches by its analytic cost model"
RUNS: Final[Mapping[str, str]] = {
    "Adams2019": SEARCH,
    "Li2018": RULES,
    "Mullapudi2016": RULES,
}
GPU_ONLY: Final = "Anderson2021"
# Parameters, for all and for those that search; the others of Halide's tune what is not here.
_PARALLELISM: Final = "parallelism"
_SEED: Final = "random_dropout_seed"
KNOWN: Final[Mapping[str, tuple[str, ...]]] = {
    RULES: (_PARALLELISM,),
    SEARCH: (_PARALLELISM, _SEED),
}


@dataclass(eq=False, slots=True)
class AutoschedulerParams:
    """An autoscheduler by name, and its parameters: numbers or their texts.

    `parallelism`: how many threads to schedule for, where the build says none. Of Adams2019 also
    `random_dropout_seed`.
    """

    name: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def runs(self) -> str:
        """What runs under this name.

        Raises InputError for a name or parameter that there is not, UnsupportedError for one that
        schedules for GPUs only.
        """
        if self.name == GPU_ONLY:
            raise UnsupportedError(
                f"{GPU_ONLY}, which schedules for GPUs, is not here",
                where="apply_autoscheduler",
                hint='write gpu_tile for a GPU; "Adams2019" searches for CPUs',
            )
        if self.name not in RUNS:
            raise InputError(
                f"there is no autoscheduler {self.name!r}",
                where="apply_autoscheduler",
                hint=f"take one of {listing(sorted(RUNS))}",
            )
        found = RUNS[self.name]
        for name in self.extra:
            if name not in KNOWN[found]:
                raise InputError(
                    f"{self.name} has no parameter {name!r}",
                    where="apply_autoscheduler",
                    hint=f"here it takes {listing(KNOWN[found])}",
                )
        return found

    @property
    def threads(self) -> int | None:
        """The parameters to schedule with. Raises InputError for anything but a positive number."""
        given = self._number(_PARALLELISM)
        if given is not None and given < 1:
            raise self._wrong(_PARALLELISM)
        return given

    @property
    def seed(self) -> int:
        """The parameters of the search. Raises InputError for anything but a number."""
        return self._number(_SEED) or 0

    def _number(self, name: str) -> int | None:
        if name not in self.extra:
            return None
        try:
            return int(self.extra[name])
        except (TypeError, ValueError):
            raise self._wrong(name) from None

    def _wrong(self, name: str) -> InputError:
        return InputError(
            f"{name}={self.extra[name]!r}",
            where="AutoschedulerParams",
            hint="give a number",
        )


@dataclass(frozen=True, eq=False)
class AutoSchedulerResults:
    """What an autoscheduler has done for the sizes of the estimates.

    schedule_source: the schedule as lines of Python over `s`, a Schedule of `program`, after
    comments that say what ran. program: the pipeline's nests without any schedule. function: what
    was compiled of it. featurization: empty, there is none.
    """

    target: Any
    autoscheduler_params: AutoschedulerParams
    schedule_source: str
    program: Kernel
    function: Function
    featurization: bytes = b""


def results(
    target: Any, params: AutoschedulerParams, function: Function
) -> AutoSchedulerResults:
    """What has made a function. Raises InputError for another target than this machine."""
    if function.origin is None:
        raise InputError(
            f"there are no sketches for {function.target!r}",
            where="apply_autoscheduler",
            hint='schedule for get_host_target(), or "cpu"',
        )
    said = f"# {params.name}: {params.runs}\n# s = Schedule(results.program)"
    source = f"{said}\n{function.record.trace}\n"
    program = function.origin.program.kernel
    return AutoSchedulerResults(target, params, source, program, function)


def bare(stages: Stages, name: str, machine: Target) -> Plain:
    """The part of a pipeline that the target schedules: all Funcs, regardless of their compute
    levels.

    Raises UnsupportedError for a Func that is not a map or reduction.
    """
    computations, params = lower.computations(stages)
    results = sum(max(1, len(f.symbols)) for f in stages.outputs)
    label = identifier(name)
    outputs = params[len(params) - results :]
    if any(not b.static for b in params):
        return nests(label, computations, params, outputs), computations
    return fused(label, computations, params, outputs, machine)


def autoscheduled(
    params: AutoschedulerParams,
    plain: Callable[[], Plain],
    target: str,
    threads: int | None,
    exact: bool,
    records: Any,
) -> Function:
    """The function of a pipeline, scheduled by what runs under a name; see `by_default`."""
    threads = params.threads if threads is None else threads
    if params.runs == SEARCH:
        return foreseen(plain, target, threads, exact, records, params.seed)
    kernel, computations = plain()
    return by_default(
        kernel, computations, target, threads, records=records, exact=exact
    )


def load_plugin(name: str) -> None:
    """Nothing: the autoschedulers are here without it. Raises InputError for other plugins."""
    known = [f"autoschedule_{known.lower()}" for known in (*RUNS, GPU_ONLY)]
    plain = name.removeprefix("lib").removesuffix(".so")
    if plain not in known:
        raise InputError(
            f"there is no plugin {name!r}",
            where="load_plugin",
            hint=f"autoschedulers are {listing(sorted(known))}",
        )
