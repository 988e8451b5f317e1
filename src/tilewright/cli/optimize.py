"""`tilewright optimize`: searches for a cheaper graph by substitutions, and writes it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tilewright.base import modes
from tilewright.base.errors import InputError, placed
from tilewright.base.files import write_whole
from tilewright.base.limits import WorkEnded
from tilewright.base.text import plural, reason
from tilewright.cli.derivation import shown_cost, steps_table
from tilewright.cli.model import check_onnx_place, load_graph, specialized
from tilewright.cli.options import (
    DURATION,
    OUT,
    PATH,
    CommandOptions,
    compile_options,
    json_option,
    model_argument,
    refuse,
)
from tilewright.cli.output import dump, note, progress, say
from tilewright.cli.wrong_option import of_option

if TYPE_CHECKING:
    from tilewright.graph.nodes import Graph
    from tilewright.graph.substitute.derivation import GraphDerivation
    from tilewright.graph.substitute.optimize import OptimizeOutcome, OptimizeSettings

SEARCH: Final = (
    "cost",
    "alpha",
    "budget",
    "patience",
    "seconds",
    "formerly",
    "strategy",
    "derivation",
)
# Units of the costs of `graph_cost`.
_UNITS: Final = {
    "time": "s",
    "measured": "s",
    "flops": "operations",
    "bytes": "bytes",
    "launches": "launches",
}
# Options of relaxed backtracking only.
BACKTRACKING: Final = ("alpha", "budget", "patience")


def _weights(text: str) -> dict[str, float]:
    """`time`, or a sum such as `time+launches*1e-6`."""
    found: dict[str, float] = {}
    for term in text.split("+"):
        name, star, factor = term.strip().partition("*")
        try:
            weight = float(factor) if star else 1.0
        except ValueError:
            raise click.BadParameter(
                f"{factor!r} is not a number; expected NAME or NAME*NUMBER, joined by +"
            ) from None
        found[name.strip()] = found.get(name.strip(), 0.0) + weight
    return found


# Click shows it in the help, in capitals.
_weights.__name__ = "cost"


FORMERLY: Final = f"{__name__}.seconds"  # the limit of time by its former name


def _formerly(context: click.Context, _: click.Parameter, value: float | None) -> None:
    """Kept for --time, if that is not given: click reads what is given first."""
    if value is not None:
        note(
            "--seconds is called --time now, as in tune and explore; later it is refused"
        )
        context.meta[FORMERLY] = value


@click.command()
@model_argument
@click.option(
    "-o",
    "--output",
    type=OUT,
    help="The ONNX file; default: MODEL with the suffix .optimized.onnx.",
)
@click.option(
    "--cost",
    type=_weights,
    default="time",
    show_default=True,
    help="What to reduce: time, measured, flops, bytes, launches, or a sum such as "
    "time+launches*1e-6.",
)
@click.option(
    "--alpha",
    type=float,
    default=1.05,
    show_default=True,
    help="Keep graphs that cost less than this multiple of the best.",
)
@click.option(
    "--budget",
    type=int,
    default=100,
    show_default=True,
    help="Graphs to expand in each part of the model.",
)
@click.option(
    "--patience",
    type=int,
    default=5,
    show_default=True,
    help="Stop a part after this many graphs without an improvement.",
)
@click.option(
    "--time",
    "seconds",
    type=DURATION,
    callback=lambda context, _, value: value or context.meta.get(FORMERLY),
    help="Stop the search after this time, such as 90s, 10m; results then depend on the machine.",
)
@click.option(
    "--seconds",
    "formerly",
    type=DURATION,
    callback=_formerly,
    expose_value=False,
    hidden=True,
)
@click.option(
    "--strategy",
    type=click.Choice(modes.STRATEGIES),
    default=modes.STRATEGIES[0],
    show_default=True,
    help="Backtracking over single steps, or equality saturation.",
)
@click.option("--derivation", type=OUT, help="Write the steps to this file.")
@click.option(
    "--replay", type=PATH, help="Apply the steps of this file without a search."
)
@compile_options(
    "target",
    "mcpu",
    "threads",
    "math",
    "memory_limit",
    "trust",
    "external_data_root",
    "dim",
    "description",
)
@json_option
def command(
    model: Path,
    output: Path | None,
    cost: Mapping[str, float],
    alpha: float,
    budget: int,
    patience: int,
    seconds: float | None,
    strategy: str,
    derivation: Path | None,
    replay: Path | None,
    options: CommandOptions,
    as_json: bool,
) -> None:
    """Rewrite MODEL (.onnx, .pt2) into a cheaper equivalent model, for any runtime.

    Ctrl-C ends the search; the best model so far is written.

    \b
    Example:
      tilewright optimize model.onnx -o better.onnx
      tilewright optimize model.onnx --cost launches --derivation steps.json
      tilewright optimize model.onnx --replay steps.json -o better.onnx
    """
    from tilewright.driver import substitution
    from tilewright.driver.options import Options
    from tilewright.driver.steps import build
    from tilewright.frontends.onnx.export import check_standard
    from tilewright.frontends.onnx.save import save_onnx
    from tilewright.graph.substitute.optimize import OptimizeSettings
    from tilewright.search.result import SearchLimits

    if strategy != modes.STRATEGIES[0]:
        refuse(BACKTRACKING, f"--strategy {strategy} has no such limit", "Leave it out")
    _check_cost(cost)
    place = output or model.with_name(f"{model.stem}.optimized.onnx")
    read = load_graph(model, options.dims, standard=True, **options.reading())
    graph = specialized(read, options.dims, decompose=False)
    check_standard(graph)
    check_onnx_place(place)
    given = {n: v for n, v in options.keywords().items() if n != "dims"}
    if replay is not None:
        refuse(SEARCH, "--replay searches nothing", "Leave it out")
        _replay(graph, replay, given, place, as_json)
        return
    limits = {"alpha": alpha, "budget": budget, "patience": patience}
    how = _settings(OptimizeSettings(math=options.math, strategy=strategy), limits)
    with progress(f"optimizing {model.name}"), _until_interrupted() as until:
        ends = SearchLimits(seconds=seconds, until=until)
        chosen = Options(**given)
        outcome = substitution.search(graph, chosen, build, how, cost, ends)
    files = save_onnx(outcome.graph, place)
    if derivation is not None:
        text = outcome.derivation.to_json().encode()
        write_whole(derivation, lambda file: file.write(text))
    _report(graph, outcome, cost, files, as_json)


def _check_cost(cost: Mapping[str, float]) -> None:
    from tilewright.driver.graph_cost import check_weights

    with of_option("--cost"):
        check_weights(cost)


def _settings(
    settings: OptimizeSettings, limits: Mapping[str, float]
) -> OptimizeSettings:
    """The settings with these limits, by option. Raises OptionError for a wrong one."""
    for name, value in limits.items():
        with of_option(f"--{name}"):
            settings = replace(settings, **{name: value})  # type: ignore[arg-type]
    return settings


@contextmanager
def _until_interrupted() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed: the first ends the search, the next one the program."""
    pressed: list[int] = []

    def stop(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, before)
        pressed.append(number)
        note("interrupted: writing the best so far; once more to stop at once")

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield lambda: bool(pressed)
    except WorkEnded:
        note("the search had not begun: nothing was written")
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGINT, before)


def _steps(file: Path) -> GraphDerivation:
    from tilewright.graph.substitute.derivation import GraphDerivation

    try:
        text = file.read_text()
    except (OSError, ValueError) as error:
        raise InputError(
            f"--replay cannot be read: {reason(error)}",
            where=str(file),
            hint="Give a file that tilewright optimize --derivation wrote",
        ) from None
    with placed(str(file)):
        return GraphDerivation.from_json(text)


def _report(
    graph: Graph,
    outcome: OptimizeOutcome,
    weights: Mapping[str, float],
    files: tuple[Path, ...],
    as_json: bool,
) -> None:
    facts: dict[str, Any] = {
        "files": [str(f) for f in files],
        "cost": dict(weights),
        "before": outcome.before,
        "after": outcome.after,
        "operations": [len(graph.operations), len(outcome.graph.operations)],
        "evaluations": outcome.evaluations,
        "interrupted": outcome.interrupted,
        "steps": [asdict(step) for step in outcome.derivation.steps],
    }
    if as_json:
        dump(facts)
        return
    steps = outcome.derivation.steps
    if steps:
        say(steps_table(list(map(asdict, steps))))
        say()
    gain = outcome.before / outcome.after if outcome.after else 1.0
    unit = _unit(weights)
    before, after = (f"{shown_cost(c)}{unit}" for c in (outcome.before, outcome.after))
    said = f"cost {before} -> {after} ({gain:.3f} times less)"
    if not steps:
        none = "none found so far" if outcome.interrupted else "no substitution"
        said = f"cost {before}: {none} lowers it"
    say(f"{files[-1]}: {said}; {plural(len(outcome.graph.operations), 'operation')}")
    if outcome.interrupted:
        note("the search was not finished; more --time may find more")


def _unit(weights: Mapping[str, float]) -> str:
    """The unit of a cost behind its number; a sum of several kinds has none."""
    units = {_UNITS[name] for name, weight in weights.items() if weight}
    return f" {units.pop()}" if len(units) == 1 and {*weights.values()} == {1.0} else ""


def _replay(
    graph: Graph, file: Path, given: dict[str, Any], place: Path, as_json: bool
) -> None:
    """Apply the steps of a derivation, without a search, and write the model."""
    from tilewright.driver import substitution
    from tilewright.driver.options import Options
    from tilewright.frontends.onnx.save import save_onnx

    steps = _steps(file)
    with progress(f"replaying {file.name}"):
        found = substitution.replayed(graph, steps, Options(**given))
    files = save_onnx(found, place)
    _report_replay(graph, found, steps, files, as_json)


def _report_replay(
    graph: Graph,
    found: Graph,
    steps: GraphDerivation,
    files: tuple[Path, ...],
    as_json: bool,
) -> None:
    operations = [len(graph.operations), len(found.operations)]
    if as_json:
        names = [str(f) for f in files]
        count = len(steps.steps)
        dump({"files": names, "operations": operations, "steps": count})
        return
    taken, left = plural(len(steps.steps), "step"), plural(operations[1], "operation")
    if steps.steps:
        say(f"{files[-1]}: {taken}, {operations[0]} -> {left}")
    else:
        say(f"{files[-1]}: there are no steps, the model is as it was; {left}")
