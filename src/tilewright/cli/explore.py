"""`tilewright explore`: the best expansion of each operator for a number of processing elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tilewright.base.errors import InputError
from tilewright.base.files import write_whole
from tilewright.base.flags import parse_count
from tilewright.base.text import plural
from tilewright.cli.model import load_graph, specialized
from tilewright.cli.one_operator import is_operator, operator_graph
from tilewright.cli.options import (
    DURATION,
    EXTENT,
    OUT,
    SIZE,
    external_option,
    json_option,
    refuse,
    trust_option,
)
from tilewright.cli.output import dump, expect_suffix, note, progress, say, table

if TYPE_CHECKING:
    from tilewright.dataflow.explore import Exploration
    from tilewright.graph.nodes import Graph

_READINGS: Final = {
    "part": "volume=part: an edge carries the elements that its tasks themselves move",
    "array": "volume=array: an edge carries the whole array that its tasks share",
}
# Columns of schedules, and the methods that each is the shortest of.
_COMPARED: Final = {
    "SB-LTS": ["lts"],
    "SB-RLX": ["rlx"],
    "list": ["list-lts", "list-rlx"],
    "no streams": ["baseline"],
}
_METHODS: Final = [method for methods in _COMPARED.values() for method in methods]
_FORMS: Final = (".svg", ".dot", ".json")
_LINES: Final = 24  # combinations that are all shown


def _counts(text: str) -> list[int]:
    return [parse_count(part) for part in text.split(",")]


def _methods(text: str) -> list[str]:
    names = text.split(",")
    if not set(names) <= set(_METHODS):
        raise ValueError(text)
    return names


def _expansions(text: str) -> tuple[str, list[str]]:
    name, sign, names = text.partition("=")
    if not (name and sign and names):
        raise ValueError(text)
    return name, names.split(",")


def _typed(parse: Any, expected: str) -> Any:
    def convert(text: str) -> Any:
        try:
            return parse(text)
        except ValueError:
            raise click.BadParameter(f"{text!r}: expected {expected}") from None

    convert.__name__ = expected.split(",")[0]
    return convert


@click.command()
@click.argument("model")
@click.option(
    "--pes",
    type=_typed(_counts, "N,N,..., such as 16,128"),
    default="16,32,64,128,256",
    show_default=True,
    help="Numbers of processing elements.",
)
@click.option(
    "--expand",
    multiple=True,
    type=_typed(_expansions, "NAME=EXPANSION,..., such as conv=lmv,op"),
    help="Expansions to try for a family (conv, matmul, map, reduce, scan) or an operator.",
)
@click.option(
    "--tasks",
    "grain",
    type=click.Choice(["any", "operator", "loop", "expanded"]),
    default="any",
    show_default=True,
    help="What becomes a task unless --expand specifies it.",
)
@click.option(
    "--fuse", "fused", is_flag=True, help="Fuse adjacent elementwise operators."
)
@click.option(
    "--opaque",
    is_flag=True,
    help="Turn each operator without an expansion into one task.",
)
@click.option(
    "--volume",
    type=click.Choice(list(_READINGS)),
    default="part",
    show_default=True,
    help="Weigh an edge by the elements its tasks move, or by the array they share.",
)
@click.option(
    "--schedule",
    "methods",
    type=_typed(_methods, f"some of {','.join(_METHODS)}"),
    default=",".join(_METHODS),
    show_default=True,
    help="Schedules to try for each combination; the shortest counts.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=2000,
    show_default=True,
    help="Largest number of evaluations.",
)
@click.option(
    "--time",
    "seconds",
    type=DURATION,
    default="45s",
    show_default=True,
    help="Stop a search after this time; an exhaustive evaluation has no limit.",
)
@click.option(
    "--results",
    type=OUT,
    help="Save points as they are found; the same command resumes (.jsonl).",
)
@click.option(
    "--graph",
    type=OUT,
    help="Draw the best task graph for the largest N (.svg, .dot, .json).",
)
@click.option(
    "--dim",
    multiple=True,
    type=EXTENT,
    help="Value of a symbolic dimension, as in --dim batch=1.",
)
@click.option("--memory-limit", type=SIZE, help="Reject a model that needs more.")
@trust_option
@external_option
@click.option(
    "--report", type=OUT, help="Write a page with tables and figures (.html)."
)
@json_option
def command(
    model: str,
    pes: list[int],
    expand: Sequence[tuple[str, list[str]]],
    grain: str,
    fused: bool,
    opaque: bool,
    volume: str,
    methods: list[str],
    limit: int,
    seconds: float,
    results: Path | None,
    graph: Path | None,
    dim: Sequence[tuple[str, int]],
    memory_limit: int | None,
    trust: bool,
    external_data_root: Sequence[Path],
    report: Path | None,
    as_json: bool,
) -> None:
    """Schedule MODEL on N processing elements, with several expansions of each operator.

    MODEL is an .onnx or .pt2 file, or an operator: conv2d:1x28x28,6x5x5 (input, filters)
    or matmul:64x256x128 (N, K, M).

    \b
    Example:
      tilewright explore model.onnx --pes 16,32,64,128,256 --report explore.html
      tilewright explore conv2d:1x28x28,6x5x5 --pes 16,128 --expand conv=mv,op,lmv --volume array
    """
    from tilewright.dataflow.evaluate import Method
    from tilewright.dataflow.explore import explore
    from tilewright.dataflow.lower import network
    from tilewright.dataflow.results import ResultStore

    _check_forms(graph, report)
    how = {
        "memory_limit": memory_limit,
        "trust": trust,
        "external_data_roots": external_data_root,
    }
    read = _graph(model, dict(dim), how)
    with progress(f"exploring {read.name}"):
        found = explore(
            network(read, fused=fused, opaque=opaque),
            pes,
            _added(expand),
            volume=volume,
            grain=grain,
            methods=[Method(name) for name in methods],
            limit=limit,
            seconds=seconds,
            store=ResultStore(results),
        )
    written = _files(found, report, graph)
    if as_json:
        dump(found.to_json())
        return
    _show(found)
    _say_written(written)


def _files(found: Exploration, report: Path | None, graph: Path | None) -> list[Path]:
    """Write the requested files: the page, and the best task graph."""
    written = []
    if report is not None:
        _write(report, _page(found))
        written.append(report)
    if graph is not None:
        _write(graph, _drawn(found, graph.suffix))
        written.append(graph)
    return written


def _check_forms(graph: Path | None, report: Path | None) -> None:
    if graph is not None and graph.suffix not in _FORMS:
        raise InputError(
            f"a task graph cannot be written as {graph.suffix or 'a file without a suffix'}",
            where=str(graph),
            hint=f"known: {', '.join(_FORMS)}",
        )
    if report is not None:
        expect_suffix(report, (".html", ".htm"), "a report is an HTML page")


def _added(expand: Sequence[tuple[str, list[str]]]) -> dict[str, list[str]]:
    """The expansions to try for each name, from all --expand options."""
    wanted: dict[str, list[str]] = {}
    for name, options in expand:
        wanted.setdefault(name, []).extend(options)
    return wanted


def _write(path: Path, text: str) -> None:
    write_whole(path, lambda file: file.write(text.encode()))


def _page(found: Exploration) -> str:
    from tilewright.report.exploration import page

    schedules = (found.schedule(found.best(pes)).to_json() for pes in found.bounds)
    return page(found.to_json(), list(schedules))


def _drawn(found: Exploration, form: str) -> str:
    """The task graph of the best combination on the largest number of elements."""
    import json

    from tilewright.dataflow.text import to_dot, to_json
    from tilewright.report.taskgraph import picture

    graph = found.graph(found.best(max(found.bounds)))
    if form == ".dot":
        return to_dot(graph)
    text = to_json(graph)
    return text if form == ".json" else picture(json.loads(text))


def _graph(model: str, dims: Mapping[str, int], how: Mapping[str, Any]) -> Graph:
    if is_operator(model) and not Path(model).exists():
        names = ("dim", "memory_limit", "trust")
        refuse(names, "an operator is not a file of a model", "Leave it out", model)
        return operator_graph(model)
    return specialized(load_graph(Path(model), dims, **how), dims)


def _say_written(files: Sequence[Path]) -> None:
    """The paths of the files; printed separately from the tables, which are the output."""
    for path in files:
        note(f"wrote {path}")


def _show(found: Exploration) -> None:
    say(f"{found.network}: {_READINGS[found.volume]}; cycles, elements")
    choices = list(dict.fromkeys(p.choice for p in found.points))
    say()
    if found.exact and len(choices) <= _LINES:
        say(_all(found, choices))
    else:
        say(_best(found))
    say()
    if found.exact:
        say(f"exact: {_every(len(choices))} scheduled")
    else:
        widest = max(found.gap(pes) for pes in found.bounds)
        tried = plural(len(choices), "combination was", "combinations were")
        say(f"searched: {tried} scheduled; the optimum {_away(widest / (1 + widest))}")


def _away(share: float) -> str:
    """How much shorter the optimum may be than what was found, as a share of it."""
    if share == 0:
        return "is one of them"
    text = f"{share:.0%}" if share >= 0.01 else f"{100 * share:.1g}%"
    return f"may be up to {text} shorter (--limit allows more)"


def _every(count: int) -> str:
    return f"all {count} combinations were" if count > 1 else "the only combination was"


def _all(found: Exploration, choices: Sequence[tuple[str, ...]]) -> str:
    """A line for each combination, a column for each number of elements."""
    rows = []
    for choice in choices:
        points = {p.pes: p for p in found.points if p.choice == choice}
        first = next(iter(points.values()))
        cells = [f"{points[pes].makespan:,}" for pes in found.bounds]
        rows.append([found.label(choice), f"{first.tasks:,}", f"{first.io:,}", *cells])
    heading = ["expansion", "tasks", "I/O", *(f"{pes} PEs" for pes in found.bounds)]
    return table(heading, rows, "<" + ">" * (len(heading) - 1))


def _best(found: Exploration) -> str:
    """A line for each number of elements: the best combination, its shortest schedule, and those
    by each method, explored or not."""
    rows = []
    for pes in found.bounds:
        p = found.best(pes)
        made = {str(method): cycles for method, cycles in found.compared(p).items()}
        columns = [
            [made[method] for method in methods if method in made]
            for methods in _COMPARED.values()
        ]
        rows.append(
            [
                str(pes),
                f"{p.makespan:,}",
                *(f"{min(cycles):,}" if cycles else "-" for cycles in columns),
                f"{p.speedup:.1f}",
                f"{p.utilization:.0%}",
                f"{p.io:,}",
                f"{p.buffers:,}",
                found.label(p.choice),
            ]
        )
    heading = [
        "PEs",
        "best",
        *_COMPARED,
        "speedup",
        "used",
        "I/O",
        "buffers",
        "expansions",
    ]
    return table(heading, rows, ">>>>>>>>>><")
