"""`tilewright explain`: a page on how a model runs and why, or on how two pages differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from tilewright.base.errors import InputError
from tilewright.base.files import check_writable, write_whole
from tilewright.base.text import human_bytes
from tilewright.cli.model import Prepared, extents, prepare, specialized
from tilewright.cli.options import (
    COMPILE,
    OUT,
    PATH,
    CommandOptions,
    compile_options,
    input_options,
    json_option,
)
from tilewright.cli.output import dump, expect_suffix, note, progress, say
from tilewright.cli.wrong_option import OptionError

_PAGES: Final = (".html", ".htm")
# A page is of a model on this machine's processor, compiled as usual.
_OPTIONS: Final = [
    name for name in COMPILE if name not in ("sanitize", "scales", "use_cache")
]
_TARGET: Final = "cpu"


@click.command()
@click.argument("model", type=PATH)
@click.argument("newer", type=PATH, required=False)
@click.option("-o", "--output", type=OUT, help="The page; default: MODEL.html.")
@click.option(
    "--diff", "older", type=PATH, help="Also compare with this earlier report."
)
@click.option(
    "--repeat", type=click.IntRange(1), default=20, show_default=True,
    help="Number of timed runs.",
)  # fmt: skip
@click.option(
    "--roofline/--no-roofline",
    default=True,
    help="Measure the machine's peaks first (about two seconds).",
)
@input_options
@compile_options(*_OPTIONS)
@json_option
def command(
    model: Path,
    newer: Path | None,
    output: Path | None,
    older: Path | None,
    repeat: int,
    roofline: bool,
    files: tuple[tuple[str, Path], ...],
    archive: Path | None,
    seed: int,
    options: CommandOptions,
    as_json: bool,
) -> None:
    """Explain how MODEL (.onnx, .pt2) runs, in one HTML file; or compare two such files.

    \b
    Example:
      tilewright explain model.onnx -o report.html
      tilewright explain model.onnx -o new.html --diff report.html
      tilewright explain report.html new.html -o difference.html
    """
    from tilewright.report.explain import difference, page

    _expect_page(output)
    _expect_processor(options.target)
    before = None if older is None else difference.read(older)
    if newer is not None:
        found = difference.compared(difference.read(model), difference.read(newer))
        text = difference.page(found)
        place = output or newer.with_name(f"{model.stem}-{newer.stem}.html")
    else:
        place = output or model.with_suffix(".html")
        check_writable(place)
        made = _facts(model, files, archive, seed, repeat, roofline, options)
        found = made if before is None else difference.compared(before, made)
        text = page.page(made, before)
    # The name of a file, read in a locale without its letters, becomes its bytes again.
    code = text.encode(errors="surrogateescape")
    write_whole(place, lambda file: file.write(code))
    if as_json:
        dump({"report": str(place), **found})
        return
    if newer is not None or before is not None:
        say(difference.text(found))
    say(f"{place}: {human_bytes(place.stat().st_size)}, open it in a browser")


def _expect_page(output: Path | None) -> None:
    if output is not None:
        expect_suffix(output, _PAGES, "a report is an HTML page")


def _expect_processor(target: str) -> None:
    """Raise OptionError for a target other than a processor."""
    if target != _TARGET:
        raise OptionError(
            f"a page explains the kernels of a processor, and none of {target!r}",
            where="--target",
            hint=f"see compile --target {target} --emit schedule",
        )


def _facts(
    model: Path,
    files: tuple[tuple[str, Path], ...],
    archive: Path | None,
    seed: int,
    repeat: int,
    roofline: bool,
    options: CommandOptions,
) -> dict[str, Any]:
    from tilewright.cli import roofline as machine
    from tilewright.driver.explain import explained, explained_range
    from tilewright.driver.options import Options
    from tilewright.report.explain.facts import facts

    if model.suffix in (".tw", *_PAGES):
        raise InputError(
            "this file is not a model: it holds neither operators nor loops",
            where=str(model),
            hint="give the .onnx or .pt2 file; two reports are compared: OLD.html NEW.html",
        )
    prepared = prepare(model, options, files, archive, seed)
    assert prepared.compiled is not None
    graph, given = prepared.compiled
    sizes = {**extents(graph, prepared.feeds), **given.dims}
    with progress(f"explaining {model.name}"):
        peaks = machine.measure(prepared.executable.threads) if roofline else None
        profile = _profile(prepared, repeat, peaks)
        keywords = {k: v for k, v in given.keywords().items() if k != "dims"}
        chosen, here = Options(**keywords), specialized(graph, sizes)
        if prepared.executable.model.sizes:
            made = explained_range(graph, dict(given.dim), here, chosen)
        else:
            made = explained(here, chosen)
        both = None if peaks is None else (peaks.gflops, peaks.gbs)
        if peaks is not None and peaks.note:
            note(f"warning: {peaks.note}")
        exe, seconds = prepared.executable, prepared.seconds
        return facts(model.name, made, exe, profile, seconds, both)


def _profile(prepared: Prepared, repeat: int, peaks: Any) -> Any:
    from tilewright.cli.doctor import caches

    exe, feeds = prepared.executable, prepared.feeds
    if peaks is None:
        return exe.profile(feeds, repeat=repeat)
    # Data in the caches are not bound by memory bandwidth.
    in_memory = exe.peak_bytes > max(caches().values(), default=0)
    gbs = peaks.gbs if in_memory else None
    return exe.profile(feeds, repeat=repeat, peak_gflops=peaks.gflops, peak_gbs=gbs)
