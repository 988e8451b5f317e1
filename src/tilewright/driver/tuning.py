"""`tune()`: searches for faster schedules of a model's kernels, and records what it measures.

The steps: the model's kernels become tasks. Rounds of trials go to the tasks from which the model
gains most. The best schedule of each kernel is measured again, against its default. Those that also
make the model faster are chosen, and `compile` uses them from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

from tilewright.base.errors import ArgumentError, InputError
from tilewright.base.text import listing
from tilewright.driver.in_network import kept
from tilewright.driver.options import Options
from tilewright.driver.random_inputs import random_array
from tilewright.driver.same_results import Array
from tilewright.driver.tasks import tasks
from tilewright.driver.tuned import TunedModel
from tilewright.driver.tuning_session import (
    How,
    Session,
    budget_of,
    improved,
    records_path,
)
from tilewright.runtime.executable import Executable
from tilewright.tune.base import Task
from tilewright.tune.measure.options import Timing

if TYPE_CHECKING:
    from tilewright.driver.keywords import CompileOptions, TuneOptions

__all__ = ["How", "feeds_of", "tune"]

# The speedup that a model must have with high confidence for its schedules to be chosen.
WORTHWHILE: Final = 1.005


def tune(
    source: Any,
    example_inputs: Sequence[Any] = (),
    *,
    dims: Mapping[str, int] | None = None,
    trials: int | None = None,
    seconds: float | None = None,
    expected_gain: float = 0.0,
    kernels: Sequence[str] = (),
    feeds: Mapping[str, Array] | None = None,
    name: str = "",
    records: str | Path | None = None,
    until: Callable[[], bool] | None = None,
    how: How | None = None,
    **options: Unpack[TuneOptions],
) -> TunedModel:
    """Search for faster schedules of a model's kernels; `compile` uses those that are chosen.

    source, example_inputs, dims, options: as for `compile`. trials, seconds, expected_gain: when to
    end (see tune.base.Budget); by default after ten minutes. kernels: tune only these, named as in
    profiles. feeds: inputs for comparing the whole model; by default example_inputs, or random
    ones. name: of the model in the records. records: the file; by default the user's. until: called
    before each round; True ends tuning. A run of the same model and settings that was killed
    continues. Every measurement is recorded at once, and so is not lost by an error.

    Raises InputError for a budget that is not above 0, for unknown names, and if records are off;
    VerifyError if tuned schedules change the model's results; and the errors of `compile`.
    """
    how = how or How()
    budget = budget_of(trials, seconds, expected_gain)
    path = records_path(records)
    plain: CompileOptions = {**options, "records": False}
    found = _wanted(tasks(source, example_inputs, dims=dims, **plain), kernels)
    title = name or _name(source)

    def compiled(choices: Path | None) -> Executable:
        from tilewright.driver.compile import compile

        of = False if choices is None else choices
        chosen: CompileOptions = {**options, "records": of}
        made = compile(source, example_inputs, dims=dims, **chosen)
        return made if isinstance(made, Executable) else made.specialized(feeds or {})

    default = compiled(None)
    given = feeds or feeds_of(default, example_inputs)
    # Errors in the inputs are reported before the search, not after it.
    default(dict(given))
    # In a run of the model, as many bytes are touched between two calls of a kernel.
    timing = Timing("network", default.peak_bytes)
    with Session(found, title, path, how, Options.of(plain), budget, timing) as session:
        ending = session.search(until)
        outcomes = session.settled()
        chosen, compared = kept(improved(outcomes), compiled, given, WORTHWHILE)
        session.choose(chosen)
        return session.result(ending, outcomes, chosen, compared)


def _wanted(found: list[Task], kernels: Sequence[str]) -> list[Task]:
    """The tasks of these kernels; all if none is given. Raises InputError for an unknown name."""
    names = {name: task for task in found for name in (task.name, *task.kernels)}
    for name in kernels:
        if name not in names:
            raise ArgumentError(
                f"there is no kernel {name!r}",
                where="tune",
                hint=f"the kernels are {listing(list(names))}",
            )
    wanted = [names[name] for name in kernels] if kernels else found
    if not wanted:
        raise InputError(
            "the model has no kernel that is compiled for the host", where="tune"
        )
    return list(dict.fromkeys(wanted))


def _name(source: Any) -> str:
    if isinstance(source, str | Path):
        return str(Path(source).name)
    return str(getattr(source, "name", "") or type(source).__name__)


def feeds_of(exe: Executable, example_inputs: Sequence[Any]) -> dict[str, Array]:
    """Inputs by name: the examples, or random ones. Raises InputError if there can be none."""
    import numpy as np

    from tilewright.base.dtypes import ALL

    if example_inputs:
        names = [t.name for t in exe.inputs]
        return dict(zip(names, map(np.asarray, example_inputs), strict=False))
    dtypes = {d.name: d for d in ALL}
    found = {}
    for t in exe.inputs:
        dtype = dtypes.get(t.dtype)
        if dtype is None or dtype.is_string or t.shape is None or None in t.shape:
            raise InputError(
                "random values cannot be generated for this input",
                where=f"input {t.name!r}",
                hint="give feeds={name: array}",
            )
        found[t.name] = random_array(t.name, dtype, [n or 0 for n in t.shape], 0)
    return found
