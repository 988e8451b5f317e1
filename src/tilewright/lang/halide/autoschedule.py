"""The autoschedulers by Halide's names: the part of this compiler that each runs, and its results.

`Mullapudi2016` and `Li2018` are rule-based in Halide, and run the target's rules here. `Adams2019`
searches with a cost model, here as well (`search/`). Nothing is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import partial
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.base.text import listing
from tilewright.driver.options import Options
from tilewright.driver.schedulable import Plain
from tilewright.driver.schedule_records import by_hand
from tilewright.lang.function import Function
from tilewright.lang.function.choosing import by_default, by_hand_or_record, fused
from tilewright.lang.halide.replay import identifier
from tilewright.lang.halide.search import searched
from tilewright.lang.halide.syntax import lower
from tilewright.lang.halide.syntax.pipeline import Pipeline as Stages
from tilewright.loops.lower import lower as nests
from tilewright.loops.nodes import Kernel
from tilewright.runtime.threads import thread_count
from tilewright.targets import registry
from tilewright.targets.base import Target
from tilewright.tune.features.facts import Facts
from tilewright.tune.stages.beam import BEAM

RULES: Final = "the target's rules, without any search"
SEARCH: Final = "a beam search over where each Func is computed, by an analytic price"
RUNS: Final[Mapping[str, str]] = {
    "Adams2019": SEARCH,
    "Li2018": RULES,
    "Mullapudi2016": RULES,
}
GPU_ONLY: Final = "Anderson2021"
# Parameters, for all and for those that search; the others of Halide's tune what is not here.
_PARALLELISM: Final = "parallelism"
_BEAM: Final = "beam_size"
KNOWN: Final[Mapping[str, tuple[str, ...]]] = {
    RULES: (_PARALLELISM,),
    SEARCH: (_PARALLELISM, _BEAM),
}


@dataclass(eq=False, slots=True)
class AutoschedulerParams:
    """An autoscheduler by name, and its parameters: numbers or their texts.

    `parallelism`: how many threads to schedule for, where the build says none. Of Adams2019 also
    `beam_size`: how many placements are kept at a time.
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
        """The threads to schedule for. Raises InputError for anything but a positive number."""
        return self._number(_PARALLELISM)

    @property
    def beam(self) -> int:
        """The width of the search. Raises InputError for anything but a positive number."""
        return self._number(_BEAM) or BEAM

    def _number(self, name: str) -> int | None:
        if name not in self.extra:
            return None
        try:
            found = int(self.extra[name])
        except (TypeError, ValueError):
            found = 0
        if found < 1:
            raise self._wrong(name)
        return found

    def _wrong(self, name: str) -> InputError:
        return InputError(
            f"{name}={self.extra[name]!r}",
            where="AutoschedulerParams",
            hint="give a number, 1 or more",
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


@dataclass(frozen=True, slots=True)
class AutoOptions:
    """What a pipeline is compiled for; see `by_default`."""

    target: str
    threads: int | None
    exact: bool
    records: Any


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
    given = function.origin.program
    program = given.kernel if given.usual is None else given.usual.original
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
    found: Stages,
    name: str,
    plain: Callable[[], Plain],
    options: AutoOptions,
) -> Function:
    """The function of a pipeline, scheduled by what runs under a name.

    plain: its maps and reductions, which rules schedule, and which can be tuned.
    """
    target, exact, records = options.target, options.exact, options.records
    threads = params.threads if options.threads is None else options.threads
    if params.runs == RULES:
        kernel, computations = plain()
        return by_default(
            kernel, computations, target, threads, records=records, exact=exact
        )
    description = Options(target=target).description
    facts = Facts.of(registry.target(target, exact=exact, description=description))
    made = searched(found, name, facts, thread_count(threads), params.beam)
    account = partial(by_hand, made.kernel.name, made.trace, params.name)
    return by_hand_or_record(made, plain, target, threads, exact, records, account)


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
