"""`tilewright quantize`: choose quantization scales for an 8-bit target from samples."""

from __future__ import annotations

import json
from dataclasses import astuple
from pathlib import Path

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
)
from tilewright.cli.output import dump, note, progress, say


@click.command()
@model_argument
@click.option("--for", "machine", required=True, help="The target, such as vta.")
@click.option(
    "--sample",
    "samples",
    multiple=True,
    type=PATH,
    help="Sample inputs by name, one .npz file per sample.",
)
@click.option(
    "--by",
    default="shift",
    show_default=True,
    help="How sums are rescaled: shift (scales are powers of two), multiplier, or channel "
    "(one multiplier per output channel).",
)
@click.option(
    "-o", "--output", type=OUT, help="Default: MODEL with the suffix .scales.json."
)
@compile_options("memory_limit", "trust", "external_data_root", "dim")
@json_option
def command(
    model: Path,
    machine: str,
    samples: tuple[Path, ...],
    by: str,
    output: Path | None,
    options: CompileOptions,
    as_json: bool,
) -> None:
    """Choose quantization scales for MODEL (.onnx, .pt2) so that its samples fit 8 bits.

    \b
    Example:
      tilewright quantize model.onnx --for vta --sample cat.npz --sample dog.npz
      tilewright run model.onnx --target vta --scales model.scales.json --inputs cat.npz
      tilewright compile model.onnx --target vta --scales model.scales.json -o model.tw
    """
    from tilewright.frontends.onnx.reference import OnnxFallback
    from tilewright.targets import registry
    from tilewright.targets.base import Calibration

    target = registry.target(machine)
    if not target.quantizes:
        able = [name for name in registry.names() if registry.target(name).quantizes]
        raise InputError(
            f"models are not quantized for {machine!r}",
            where="--for",
            hint=f"one of {', '.join(able)}",
        )
    read = load_graph(model, options.dims, **options.reading())
    graph = specialized(read, options.dims)
    wanted = inputs.of_graph(graph)
    given = [inputs.gather(wanted, (), path, 0, options.dims) for path in samples]
    if not given:
        note("no samples are given: random inputs are used instead")
        given = [
            inputs.gather(wanted, (), None, seed, options.dims) for seed in range(2)
        ]
    with progress(f"quantizing {model.name}"):
        made = target.adapt(graph, Calibration(given, by=by), OnnxFallback())
    assert made.scales is not None
    parts = quantized.lines(map(astuple, made.placements))
    file = output or model.with_suffix(".scales.json")
    text = json.dumps(
        {"machine": machine, "by": by, "scales": dict(made.scales)}, indent=1
    )
    write_whole(file, lambda opened: opened.write(text.encode() + b"\n"))
    if as_json:
        dump({"scales": str(file), "parts": parts})
        return
    for line in parts:
        say(line)
    say(f"{file}: scales of {len(made.scales)} tensors from {len(given)} samples")
