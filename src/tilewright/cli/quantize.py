"""`tilewright quantize`: a model in 8 bits from sample data, or scales for an 8-bit target."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tilewright.base.errors import InputError
from tilewright.base.files import write_whole
from tilewright.cli import inputs, quantized
from tilewright.cli.model import load_graph, specialized
from tilewright.cli.options import (
    OUT,
    PATH,
    CompileOptions,
    compile_options,
    json_option,
    model_argument,
    refuse,
)
from tilewright.cli.output import dump, note, progress, say
from tilewright.cli.weight_only import FOR_WEIGHTS, quantize_weights, weight_options

if TYPE_CHECKING:
    from tilewright.graph.nodes import Graph

_HOST: Final = "cpu"
_METHODS: Final = ("min-max", "percentile", "entropy", "mse")


def _share(text: str) -> float:
    """`0.5%` or `0.005`."""
    number = text.removesuffix("%")
    try:
        value = float(number) / (1 if number == text else 100)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise click.BadParameter(f"{text!r}: expected a share, such as 0.5% or 0.005")
    return value


_share.__name__ = "share"

# Of the float model for the host; they are the fields of `Recipe`.
_RECIPE: Final = (
    click.option("--percentile", type=float, help="For --method percentile; 99.99."),
    click.option(
        "--activations",
        type=click.Choice(["uint8", "int8"]),
        default="uint8",
        show_default=True,
        help="uint8 is asymmetric, int8 symmetric.",
    ),
    click.option(
        "--rounding",
        type=click.Choice(["nearest", "gptq"]),
        default="nearest",
        show_default=True,
        help="How weights are rounded.",
    ),
    click.option("--equalize", is_flag=True, help="Equalize ranges across layers."),
    click.option("--smooth", type=float, help="SmoothQuant's strength, such as 0.5."),
    click.option(
        "--search", is_flag=True, help="Search scales of weights as AWQ does."
    ),
    click.option(
        "--correct-bias", is_flag=True, help="Undo what rounding does on average."
    ),
)
_DATA: Final = (
    click.option(
        "--calibrate",
        "archive",
        type=PATH,
        help="Samples by input name, several along the first axis (.npz).",
    ),
    click.option(
        "--sample",
        "samples",
        multiple=True,
        type=PATH,
        help="One sample by input name (.npz); may be given several times.",
    ),
    click.option(
        "--method",
        type=click.Choice(_METHODS),
        default="min-max",
        show_default=True,
        help="How ranges are chosen from the samples.",
    ),
)
_LAYERS: Final = (
    click.option(
        "--max-drop",
        type=_share,
        help="Keep layers in floats until no more is lost, as in 0.5%.",
    ),
    click.option(
        "--metric",
        type=click.Choice(["both", "cosine"]),
        default="both",
        show_default=True,
        help="both is top-1 and cosine; cosine, where outputs are no scores of classes.",
    ),
    click.option("--keep", multiple=True, help="A layer that stays in floats."),
)
_FOR_HOST: Final = (
    "percentile",
    "activations",
    "rounding",
    "equalize",
    "smooth",
    "search",
    "correct_bias",
    "max_drop",
    "metric",
    "keep",
    "threads",
)


_FOR_SAMPLES: Final = ("machine", "archive", "samples", "method", "by", *_FOR_HOST)


def _options(verb: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed((*_DATA, *_LAYERS, *_RECIPE)):
        verb = option(verb)
    return verb


@click.command()
@model_argument
@weight_options
@click.option(
    "--for", "machine", default=_HOST, show_default=True, help="cpu, or such as vta."
)
@_options
@click.option(
    "--by",
    help="With --for vta, how sums are rescaled: shift (scales are powers of two; default), "
    "multiplier, or channel (one multiplier per output channel).",
)
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
    machine: str,
    archive: Path | None,
    samples: tuple[Path, ...],
    method: str,
    by: str | None,
    output: Path | None,
    options: CompileOptions,
    as_json: bool,
    weights: str | None,
    **recipe: Any,
) -> None:
    """Quantize MODEL (.onnx, .pt2) to 8 bits by what samples show of its tensors.

    \b
    Example:
      tilewright quantize model.onnx --calibrate data.npz --max-drop 0.5% -o q.onnx
      tilewright run q.onnx --profile
      tilewright quantize model.onnx --for vta --sample cat.npz --sample dog.npz
      tilewright run model.onnx --target vta --scales model.scales.json --inputs cat.npz
    """
    of_weights = {name: recipe.pop(name) for name in FOR_WEIGHTS}
    if weights is not None:
        refuse(_FOR_SAMPLES, "not with --weights", "weights need no samples")
        quantize_weights(model, output, options, as_json, weights=weights, **of_weights)
        return
    refuse(FOR_WEIGHTS, "it is for --weights", "give --weights int4 or int8")
    graph = _graph(model, options)
    if machine != _HOST:
        refuse(_FOR_HOST, f"not with --for {machine}", "these are for the host")
        target = _target(machine)
        given = _samples(graph, archive, samples, options)
        _for_target(
            graph, model, target, given, (by or "shift", method), output, as_json
        )
        return
    refuse(("by",), "it is for accelerators", "leave it out, or give --for vta")
    given = _samples(graph, archive, samples, options)
    _for_host(
        graph, model, given, {"method": method, **recipe}, options, output, as_json
    )


def _graph(model: Path, options: CompileOptions) -> Graph:
    read = load_graph(model, options.dims, **options.reading())
    return specialized(read, options.dims)


def _samples(
    graph: Graph,
    archive: Path | None,
    files: Sequence[Path],
    options: CompileOptions,
) -> list[Any]:
    """The samples of all files, checked. Random ones where none is given, which is said."""
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
    options: CompileOptions,
    output: Path | None,
    as_json: bool,
) -> None:
    """Write the model in QDQ form, and say what was quantized."""
    from tilewright.driver.quantize import quantize
    from tilewright.frontends.onnx.save import save_onnx

    with progress(f"quantizing {model.name}"):
        made = quantize(graph, samples, threads=options.threads, **recipe)
    file = output or model.with_suffix(".int8.onnx")
    written = save_onnx(made.graph, file)
    if as_json:
        dump({"model": str(file), "files": list(map(str, written))}
             | made.report.as_dict())  # fmt: skip
        return
    for line in str(made.report).splitlines():
        say(line)
    say(f"{file}: written")


def _target(machine: str) -> Any:
    """The accelerator of that name. Raises InputError for one that takes no bytes."""
    from tilewright.targets import registry

    target = registry.target(machine)
    if target.quantizes:
        return target
    able = [name for name in registry.names() if registry.target(name).quantizes]
    raise InputError(
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
    """Write the scales of an accelerator's tensors, and say what runs where."""
    from tilewright.frontends.onnx.reference import OnnxFallback
    from tilewright.targets.base import Calibration

    by, method = how
    given = Calibration(samples, by=by, method=method)
    with progress(f"quantizing {model.name}"):
        made = target.adapt(graph, given, OnnxFallback())
    assert made.scales is not None
    parts = quantized.lines(map(astuple, made.placements))
    file = output or model.with_suffix(".scales.json")
    content = {"machine": target.name, "by": by, "scales": dict(made.scales)}
    text = json.dumps(content, indent=1)
    write_whole(file, lambda opened: opened.write(text.encode() + b"\n"))
    if as_json:
        dump({"scales": str(file), "parts": parts})
        return
    for line in parts:
        say(line)
    say(f"{file}: scales of {len(made.scales)} tensors from {len(samples)} samples")
