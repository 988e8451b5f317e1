"""`tune()`: searches for faster schedules of a model's kernels, and records what it measures.

The order: the model's kernels become tasks; rounds of trials go where the model gains most; the
best of each kernel is measured again beside its default; those that are faster in the model as well
are chosen, and `compile` uses them from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

from tilewright.base.errors import InputError
from tilewright.base.text import listing
from tilewright.driver.in_network import kept
from tilewright.driver.options import Options
from tilewright.driver.random_inputs import random_array
from tilewright.driver.same_results import Array
from tilewright.driver.tasks import tasks
from tilewright.driver.tuned import Tuned
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

# How many times as fast a model must be, beyond doubt, for its schedules to be chosen.
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
) -> Tuned:
    """Search for faster schedules of a model's kernels; `compile` uses those that are chosen.

    source, example_inputs, dims, options: as for `compile`. trials, seconds, expected_gain: when to
    end (see tune.base.Budget); ten minutes where none is given. kernels: only these, by the names
    that profiles have. feeds: inputs for comparing the whole model; default: example_inputs, or
    random ones. name: of the model in the records. records: the file; default: the user's own.
    until: asked before each round; true ends tuning. A run of the same model and settings that was
    killed goes on. All that is measured is recorded at once, also before an error.

    Raises InputError for a budget below 1, for names that there are not, and where records are off,
    VerifyError where tuned schedules change the model's results, and what `compile` raises.
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
    # What is wrong with them is said before the search, and not after it.
    default(dict(given))
    # What a run touches passes between two calls of a kernel.
    timing = Timing("network", default.peak_bytes)
    with Session(found, title, path, how, Options.of(plain), timing) as session:
        ending = session.search(budget, until)
        outcomes = session.settled()
        chosen, compared = kept(improved(outcomes), compiled, given, WORTHWHILE)
        session.choose(chosen)
        return session.result(ending, outcomes, chosen, compared)


def _wanted(found: list[Task], kernels: Sequence[str]) -> list[Task]:
    """The tasks of these kernels; all without any. Raises InputError for a name that none has."""
    names = {name: task for task in found for name in (task.name, *task.kernels)}
    for name in kernels:
        if name not in names:
            raise InputError(
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
    """Inputs by name: the examples, or random ones. Raises InputError for kinds that have none."""
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
                "random values of this input cannot be made",
                where=f"input {t.name!r}",
                hint="give feeds={name: array}",
            )
        found[t.name] = random_array(t.name, dtype, [n or 0 for n in t.shape], 0)
    return found
