"""`tilewright compile`: compile a model to an artifact, or print one of its stages."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tilewright.base import modes
from tilewright.base.errors import InputError
from tilewright.base.files import check_writable, write_whole
from tilewright.base.text import human_bytes, human_time, listing, plural
from tilewright.cli import (
    certificate,
    derivation,
    inputs,
    library,
    quantized,
    ranged,
    records,
)
from tilewright.cli.model import (
    ARTIFACT_SUFFIX,
    check_onnx_place,
    load_graph,
    specialized,
)
from tilewright.cli.options import (
    COMPILE,
    OUT,
    CommandOptions,
    compile_options,
    json_option,
    model_argument,
    refuse,
)
from tilewright.cli.output import dump, progress, say
from tilewright.runtime.threads import keep_threads, thread_count

if TYPE_CHECKING:
    from tilewright.graph.nodes import Graph
    from tilewright.runtime.model import CompiledModel

ONNX: Final = "onnx"  # --emit writes it, too, besides the stages as text


@click.command()
@model_argument
@click.option(
    "-o",
    "--output",
    type=OUT,
    help="The artifact, or a library for C: .so .a .o .wasm; default: MODEL.tw.",
)
@click.option("--header", type=OUT, help="The library's header; default: next to it.")
@click.option(
    "--target-triple",
    metavar="TRIPLE",
    help="The library's system, such as aarch64-unknown-linux-gnu; default: this one.",
)
@click.option(
    "--emit",
    type=click.Choice((*modes.STAGES, ONNX)),
    help="Print this stage instead (or write it to -o); onnx: the optimized graph, to -o.",
)
@click.option(
    "--kernel",
    metavar="NAME",
    help="With --emit: only kernels with this in their name or an operator's.",
)
@click.option(
    "--certify",
    is_flag=True,
    help="First compare with float64, and store the result in the artifact.",
)
@click.option(
    "--seed", default=0, type=click.IntRange(0), help="Seed of the inputs of --certify."
)
@compile_options(*(name for name in COMPILE if name != "jit"), ranges=True)
@json_option
def command(
    model: Path,
    output: Path | None,
    header: Path | None,
    target_triple: str | None,
    emit: str | None,
    kernel: str | None,
    certify: bool,
    seed: int,
    options: CommandOptions,
    as_json: bool,
) -> None:
    """Compile MODEL (.onnx, .pt2) to an artifact that runs without a compiler.

    \b
    Example:
      tilewright compile model.onnx -o model.tw
      tilewright compile model.onnx --dim batch=1..64 -o model.tw
      tilewright compile model.onnx --mcpu x86-64-v3 --emit asm | less
      tilewright compile model.onnx --certify && tilewright verify model.tw
      tilewright compile model.onnx --mcpu multi -o libmodel.so --header model.h
      tilewright compile model.onnx --target vta --scales model.scales.json -o model.tw
    """
    _refuse_meaningless(emit, certify)
    if emit is not None:
        ranged.refuse_ranges(options, "--emit")
    if output is not None and output.suffix in library.SUFFIXES and emit is None:
        ranged.refuse_ranges(options, f"a library ({output.name})")
        library.write(model, output, header, target_triple, options, as_json)
        return
    if output is not None and emit is None:
        _check_artifact_name(output)
    refuse(
        ("header", "target_triple"),
        "only a library has one",
        "Name it with -o, as in -o libmodel.so",
    )
    read = load_graph(model, options.dims, **options.reading())
    place = output or model.with_suffix(ARTIFACT_SUFFIX)
    if emit is None:
        check_writable(place)
    if options.ranges:
        ranged.write(read, place, options, _keywords(read, options), as_json)
        return
    graph = specialized(read, options.dims)
    _refuse_to_certify_bytes(options)
    given = _keywords(graph, options)
    if emit == ONNX:
        _emit_onnx(graph, output, given, as_json)
        return
    if emit is not None:
        _emit(graph, emit, output, given | {"kernel": kernel}, as_json)
        return
    with progress(f"compiling {model.name}"):
        made, facts = _made(graph, given, options, seed if certify else None, place)
    if as_json:
        dump(facts)
    else:
        _say_made(made, place, facts)


def _check_artifact_name(output: Path) -> None:
    """Raise InputError for a file that other commands would not take for an artifact.

    It could be the model, which would be lost. A device, as /dev/null, may have any name.
    """
    device = output.exists() and not output.is_file()
    if output.suffix != ARTIFACT_SUFFIX and not device:
        raise InputError(
            f"the name of an artifact ends in {ARTIFACT_SUFFIX}",
            where=str(output),
            hint=f"Name it {output.with_suffix(ARTIFACT_SUFFIX).name}, or a library "
            f"*{listing(library.SUFFIXES, 8).replace(', ', ', *')}",
        )


def _made(
    graph: Graph,
    given: dict[str, Any],
    options: CommandOptions,
    certified: int | None,
    place: Path,
) -> tuple[CompiledModel, dict[str, Any]]:
    """The model that is stored at `place`, and its description.

    certified: the seed of the inputs for a comparison with float64 before that, or None.
    """
    from tilewright.cli.diverge import asked_for
    from tilewright.driver.options import Options
    from tilewright.driver.steps import build
    from tilewright.runtime import bundle

    start = time.perf_counter()
    # Not driver.compile: an artifact for another processor can be compiled, but not run here.
    made = build(graph, Options(**given))
    seconds = time.perf_counter() - start
    said = None
    if certified is not None:
        allowed = asked_for(options.precision, None)
        how = graph, certified, options.threads, allowed
        said = certificate.certify(made, *how)
        made = replace(made, meta={**made.meta, "certificate": said})
    meta = keep_threads(made.meta, options.threads)
    bundle.save(replace(made, meta=meta), place)
    return made, _facts(made, place, seconds, options, said)


def _say_made(made: CompiledModel, place: Path, facts: dict[str, Any]) -> None:
    """A summary of what was written."""
    holds = plural(facts["kernels"], "kernel")
    say(
        f"{place}: {human_bytes(place.stat().st_size)}, {holds}, compiled "
        f"in {human_time(facts['compile_seconds'])}; a run needs {human_bytes(facts['memory'])} "
        "besides its inputs and outputs"
    )
    for line in (records.used_line(made.meta), derivation.used_line(made.meta)):
        if line:
            say(line)


def _refuse_meaningless(emit: str | None, certify: bool) -> None:
    """Reject options that would have no effect with the others."""
    if not certify:
        refuse(["seed"], "it seeds the inputs of --certify", "Add --certify")
    if emit is None:
        refuse(["kernel"], "it chooses what --emit prints", "Add --emit kernel")
    if emit is not None:
        names = ("certify", "fallback", "use_cache", "sanitize")
        refuse(names, f"--emit {emit} writes no artifact", "Leave it out")


def _refuse_to_certify_bytes(options: CommandOptions) -> None:
    """Reject a certificate for a target that computes in bytes: float64 is not its reference."""
    target = quantized.accelerator(options)
    if target is not None and target.quantizes:
        why = f"--target {options.target} rounds to bytes"
        refuse(["certify"], why, "Leave it out")


def _facts(
    made: CompiledModel,
    place: Path,
    seconds: float,
    options: CommandOptions,
    said: Any,
) -> dict[str, Any]:
    """The description of an artifact; said: its certificate, if requested."""
    return {
        "artifact": str(place),
        "bytes": place.stat().st_size,
        "compile_seconds": seconds,
        "kernels": len(made.kernels) + len(made.launches),
        "memory": made.memory(thread_count(options.threads)) + len(made.constants),
        "requirements": dict(made.requirements),
        **({} if said is None else {"certificate": said}),
        "tuned": made.meta.get("tuned", []),
        "substitutions": made.meta.get("substitutions", []),
    }


def _emit(
    graph: Graph,
    stage: str,
    output: Path | None,
    given: dict[str, Any],
    as_json: bool,
) -> None:
    from tilewright import driver

    with progress(f"compiling to {stage}"):
        text = driver.text(graph, stage, **given)
    _put(text, stage, output, as_json)


def _emit_onnx(
    graph: Graph, output: Path | None, given: dict[str, Any], as_json: bool
) -> None:
    """Write the graph after its passes as an ONNX model, for other tools to show or run."""
    from tilewright.driver.explain import optimized
    from tilewright.driver.options import Options
    from tilewright.frontends.onnx.save import save_onnx

    if output is None:
        raise InputError(
            "--emit onnx writes a file",
            where="compile",
            hint="Name it: -o optimized.onnx",
        )
    check_onnx_place(output)
    with progress(f"compiling to {ONNX}"):
        files = save_onnx(optimized(graph, Options(**given)), output)
    if as_json:
        dump({"stage": ONNX, "file": str(output)})
    else:
        say("\n".join(map(str, files)))


def _put(text: str, stage: str | None, output: Path | None, as_json: bool) -> None:
    if output is not None:
        write_whole(output, lambda file: file.write(text.encode() + b"\n"))
        if as_json:
            dump({"stage": stage, "file": str(output)})
    elif as_json:
        dump({"stage": stage, "text": text})
    else:
        say(text)


def _keywords(graph: Graph, options: CommandOptions) -> dict[str, Any]:
    """The options without extents, which the graph already has, and with its quantization."""
    given = {name: v for name, v in options.keywords().items() if name != "dims"}
    target = quantized.accelerator(options)
    feeds: dict[str, Any] = {}
    if target is not None and target.quantizes and options.scales is None:
        feeds = inputs.gather(inputs.of_graph(graph), (), None, 0, options.dims)
    return given | quantized.samples(options, feeds, "random inputs")
