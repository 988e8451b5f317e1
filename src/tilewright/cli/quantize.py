"""`tilewright quantize`: a model in 8 bits from sample data, or scales for an 8-bit target."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tilewright.base.files import check_writable, write_whole
from tilewright.base.text import plural
from tilewright.cli import inputs, quantized
from tilewright.cli.model import check_onnx_place, load_graph, specialized
from tilewright.cli.options import (
    OUT,
    CommandOptions,
    compile_options,
    json_option,
    model_argument,
)
from tilewright.cli.output import dump, note, progress, say
from tilewright.cli.quantize_options import QuantizeUse, check, quantize_options, taken
from tilewright.cli.weight_only import quantize_weights
from tilewright.cli.wrong_option import OptionError, of_option

if TYPE_CHECKING:
    from tilewright.graph.nodes import Graph

_HOST: Final = "cpu"


@click.command()
@model_argument
@quantize_options
@click.option(
    "-o",
    "--output",
    type=OUT,
    help="Default: MODEL with the suffix .int8.onnx, or .scales.json for an accelerator.",
)
@compile_options("threads", "memory_limit", "trust", "external_data_root", "dim")
@json_option
def command(
    model: Path,
    output: Path | None,
    options: CommandOptions,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Quantize MODEL (.onnx, .pt2) to 8 bits, with ranges from sample inputs.

    \b
    Example:
      tilewright quantize model.onnx --calibrate data.npz --max-drop 0.5% -o q.onnx
      tilewright run q.onnx --profile
      tilewright quantize model.onnx --for vta --sample cat.npz --sample dog.npz
      tilewright run model.onnx --target vta --scales model.scales.json --inputs cat.npz
    """
    machine, method = chosen["machine"], chosen["method"]
    use = _use(chosen["weights"], machine)
    check(use, machine)
    own = taken(use, chosen)
    if use is QuantizeUse.WEIGHTS:
        quantize_weights(model, output, options, as_json, **own)
        return
    target = None if use is QuantizeUse.HOST else _target(machine)
    standard = target is None
    read = load_graph(model, options.dims, standard=standard, **options.reading())
    extents = _extents(read, chosen["archive"], chosen["samples"])
    graph = specialized(read, extents | options.dims, decompose=not standard)
    given = _samples(graph, chosen["archive"], chosen["samples"], options)
    if target is None:
        recipe = {"method": method, **own}
        _for_host(graph, model, given, recipe, options, output, as_json)
    else:
        how = own["by"] or "shift", method
        _for_target(graph, model, target, given, how, output, as_json)


def _use(weights: str | None, machine: str) -> QuantizeUse:
    """The kind of result."""
    if weights is not None:
        return QuantizeUse.WEIGHTS
    return QuantizeUse.HOST if machine == _HOST else QuantizeUse.ACCELERATOR


def _extents(
    graph: Graph, archive: Path | None, files: Sequence[Path]
) -> dict[str, int]:
    """The extents of symbolic dimensions that the first sample shows.

    In the archive of several samples they are along the first axis, which then says nothing of the
    input's. That the other samples have the same extents is checked with their shapes.
    """
    found: dict[str, int] = {}
    for path in [*files, *filter(None, [archive])]:
        arrays = inputs.archive_of(path)
        for v in graph.inputs:
            shape = arrays[v.name].shape if v.name in arrays else ()
            axes = v.shape or ()
            if path is archive:
                axes, shape = axes[len(axes) == len(shape) :], shape[1:]
            if len(axes) != len(shape):
                continue
            pairs = zip(axes, shape, strict=True)
            found = {a: n for a, n in pairs if isinstance(a, str)} | found
    return found


def _samples(
    graph: Graph,
    archive: Path | None,
    files: Sequence[Path],
    options: CommandOptions,
) -> list[Any]:
    """The samples of all files, checked; without files, random ones, with a note."""
    from tilewright.graph.quantize.data import samples_of

    found: list[Any] = []
    if archive is not None:
        found += samples_of(graph, inputs.archive_of(archive))
    wanted = inputs.of_graph(graph)
    found += [inputs.gather(wanted, (), path, 0, options.dims) for path in files]
    if not found:
        note("no samples are given: random inputs are used instead")
        found = [
            inputs.gather(wanted, (), None, seed, options.dims) for seed in range(2)
        ]
    return samples_of(graph, found)


def _for_host(
    graph: Graph,
    model: Path,
    samples: Sequence[Any],
    recipe: dict[str, Any],
    options: CommandOptions,
    output: Path | None,
    as_json: bool,
) -> None:
    """Write the model in QDQ form, and report what was quantized."""
    from tilewright.driver.quantize import quantize
    from tilewright.frontends.onnx.save import save_onnx

    file = output or model.with_suffix(".int8.onnx")
    check_onnx_place(file)
    with progress(f"quantizing {model.name}"):
        made = quantize(graph, samples, threads=options.threads, **recipe)
    written = save_onnx(made.graph, file)
    if as_json:
        dump({"model": str(file), "files": list(map(str, written))}
             | made.report.as_dict())  # fmt: skip
        return
    for line in str(made.report).splitlines():
        say(line)
    say(f"{file}: written")


def _target(machine: str) -> Any:
    """The accelerator of that name. Raises InputError for one that does not compute in bytes."""
    from tilewright.targets import registry

    with of_option("--for"):
        target = registry.target(machine)
    if target.quantizes:
        return target
    able = [name for name in registry.names() if registry.target(name).quantizes]
    raise OptionError(
        f"models are not quantized for {machine!r}",
        where="--for",
        hint=f"one of {_HOST}, {', '.join(able)}",
    )


def _for_target(
    graph: Graph,
    model: Path,
    target: Any,
    samples: Sequence[Any],
    how: tuple[str, str],
    output: Path | None,
    as_json: bool,
) -> None:
    """Write the scales of an accelerator's tensors, and report what runs where."""
    from tilewright.frontends.onnx.reference import OnnxFallback
    from tilewright.targets.base import Calibration

    by, method = how
    file = output or model.with_suffix(".scales.json")
    check_writable(file)
    given = Calibration(samples, by=by, method=method)
    with progress(f"quantizing {model.name}"):
        made = target.adapt(graph, given, OnnxFallback())
    assert made.scales is not None
    parts = quantized.lines(map(astuple, made.placements))
    content = {"machine": target.name, "by": by, "scales": dict(made.scales)}
    text = json.dumps(content, indent=1)
    write_whole(file, lambda opened: opened.write(text.encode() + b"\n"))
    if as_json:
        dump({"scales": str(file), "parts": parts})
        return
    for line in parts:
        say(line)
    tensors, seen = plural(len(made.scales), "tensor"), plural(len(samples), "sample")
    say(f"{file}: scales of {tensors} from {seen}")
