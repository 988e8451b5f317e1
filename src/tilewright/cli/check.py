"""`tilewright check`: reports a model's needs and its share of native code, before compiling."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tilewright.base import flags
from tilewright.base.memory import memory_limit
from tilewright.base.text import human_bytes, human_count, listing, plural
from tilewright.cli.model import load_graph, symbols
from tilewright.cli.options import (
    CommandOptions,
    compile_options,
    json_option,
    model_argument,
)
from tilewright.cli.output import dump, facts, progress, say

if TYPE_CHECKING:
    from tilewright.cli.survey import Survey


@click.command()
@model_argument
@compile_options(
    "target",
    "mcpu",
    "fallback",
    "memory_limit",
    "trust",
    "external_data_root",
    "no_default",
    "dim",
)
@json_option
def command(model: Path, options: CommandOptions, as_json: bool) -> int:
    """Report what compiling MODEL (.onnx, .pt2) would encounter; exit with 1 if it would fail.

    The report covers native code and host fallbacks, memory, arithmetic, dtype hazards and symbolic
    dimensions. Dimensions not given by --dim count as 1.

    \b
    Example:
      tilewright check model.onnx
      tilewright check model.onnx --dim batch=8 --no-fallback
    """
    from tilewright.cli.survey import survey
    from tilewright.frontends.onnx.reference import OnnxFallback
    from tilewright.graph.specialize import specialize
    from tilewright.targets.registry import target

    target(options.target, options.mcpu).expect_models()
    graph = load_graph(model, options.dims, mapped=True, **options.reading())
    names = symbols(graph)
    extents = dict.fromkeys(names, 1) | options.dims
    with progress(f"checking {model.name}"):
        found = survey(
            specialize(graph, extents=extents, fallback=OnnxFallback()),
            names,
            OnnxFallback(),
            memory_limit(options.memory_limit),
        )
    problems = _problems(found, options)
    if as_json:
        dump(asdict(found) | {"memory": found.memory, "problems": problems})
    else:
        _show(found, options)
        for problem in problems:
            say(f"\nproblem: {problem}")
    return 1 if problems else 0


def _problems(found: Survey, options: CommandOptions) -> list[str]:
    problems = []
    limit = memory_limit(options.memory_limit)
    if found.memory > limit:
        problems.append(
            f"it needs {human_bytes(found.memory)}, "
            f"which exceeds the memory limit of {human_bytes(limit)}"
        )
    fallback = options.fallback or flags.FALLBACK.get()
    if fallback == "error" and found.host:
        those = plural(sum(found.host.values()), "operator has", "operators have")
        problems.append(f"{those} no native code: {listing([*found.host])}")
    return problems


def _show(found: Survey, options: CommandOptions) -> None:
    native, host = sum(found.native.values()), sum(found.host.values())
    symbolic = [
        f"{name}={options.dims[name]}"
        if name in options.dims
        else f"{name} (assumed 1)"
        for name in found.symbolic
    ]
    uncounted = f", without {listing(list(found.uncounted))}" if found.uncounted else ""
    say(
        facts(
            [
                ("inputs", ", ".join(found.inputs) or "none"),
                ("outputs", ", ".join(found.outputs)),
                (
                    "operators",
                    f"{found.operations}: {native} native, {plural(host, 'host fallback')}",
                ),
                ("native", _counted(found.native)),
                ("fallback", _counted(found.host)),
                ("symbolic", ", ".join(symbolic) or "none"),
                (
                    "memory",
                    f"{human_bytes(found.memory)}: weights {human_bytes(found.weights)} "
                    f"({human_count(found.parameters)} parameters), "
                    f"activations {human_bytes(found.activations)}",
                ),
                ("arithmetic", human_count(found.flops, "FLOP") + uncounted),
            ]
        )
    )
    for node in found.host_nodes:
        say(f"\nhost fallback: {node}")
    for hazard in found.hazards:
        say(f"\nhazard: {hazard}")


def _counted(counts: dict[str, int]) -> str:
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return listing([f"{name} x{count}" for name, count in most], 12) or "none"
