"""The model given to a command: a file to compile, or an artifact to load."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ArtifactError, InputError
from tilewright.base.files import check_writable
from tilewright.base.text import listing
from tilewright.cli import inputs, quantized
from tilewright.cli.options import COMPILE, CommandOptions, refuse
from tilewright.cli.output import progress
from tilewright.cli.wrong_option import OptionError
from tilewright.runtime.threads import thread_count

if TYPE_CHECKING:
    from tilewright.driver.tiered import TieredExecutable
    from tilewright.graph.infer import Decomposition
    from tilewright.graph.nodes import Graph
    from tilewright.runtime.executable import Executable

ARTIFACT_SUFFIX = ".tw"
# torch.export.save keeps no names of dimensions, but generates such names.
_NUMBERED: Final = re.compile(r"[su]\d+")
Files = tuple[tuple[str, Path], ...]


def is_artifact(path: Path) -> bool:
    """Whether the path names a saved artifact, by its suffix."""
    return path.suffix == ARTIFACT_SUFFIX


def check_onnx_place(path: Path) -> None:
    """Raise InputError unless an ONNX model can be written there, and read by its name."""
    from tilewright.frontends.load import is_onnx_name

    if not is_onnx_name(path):
        raise InputError(
            f"an ONNX model is written, and {path.suffix} files are something else",
            where=str(path),
            hint=f"Name it {path.with_suffix('.onnx').name}",
        )
    check_writable(path)


def load_graph(path: Path, dims: Collection[str] = (), **how: Any) -> Graph:
    """The graph of a model file; `how` is as for `frontends.load`.

    dims: names of symbolic dimensions that it must have. Raises ModelError, UnsupportedError,
    InputError for artifacts and for a dimension that no input has.
    """
    from tilewright.frontends.load import load

    if is_artifact(path):
        raise InputError(
            "an artifact contains machine code, not the model",
            where=str(path),
            hint="Give the .onnx or .pt2 file it was compiled from",
        )
    with progress(f"reading {path.name}"):
        graph = load(path, **how)
    known = symbols(graph)
    for name in dims:
        if name not in known:
            have = (
                f"the inputs have: {', '.join(map(_placed(graph), known))}"
                if known
                else "all extents are numbers"
            )
            raise OptionError(
                f"no dimension is called {name!r}", where="--dim", hint=have
            )
    return graph


def load_given(
    path: Path, options: CommandOptions, files: Files, archive: Path | None
) -> tuple[Graph, CommandOptions]:
    """The graph in which the arrays of the files are inputs, and the options for that."""
    graph = load_graph(path, dict(options.dim), **options.reading())
    defaults = {value.name for value in graph.defaults}
    given = defaults and defaults.intersection(inputs.names(files, archive))
    if given:
        options = replace(options, no_default=(*options.no_default, *sorted(given)))
        graph = load_graph(path, dict(options.dim), **options.reading())
    return graph, options


def specialized(
    graph: Graph, dims: Mapping[str, int], decompose: Decomposition = True
) -> Graph:
    """The graph with the extents of --dim; decompose: as for `specialize`.

    Raises InputError if symbolic ones are left.
    """
    from tilewright.frontends.onnx.reference import OnnxFallback
    from tilewright.graph.specialize import specialize

    if dims:
        graph = specialize(graph, dims, fallback=OnnxFallback(), decompose=decompose)
    left = symbols(graph)
    if left:
        raise InputError(
            f"dimensions {listing(left)} have no values",
            where=f"graph {graph.name!r}",
            hint=f"Give them: {' '.join(f'--dim {name}=1' for name in left)}",
        )
    return graph


def symbols(graph: Graph) -> list[str]:
    """The names of symbolic extents of the inputs; `input.axis` for one without a name."""
    found: dict[str, None] = {}
    for value in graph.inputs:
        for axis, dim in enumerate(value.shape or ()):
            if not isinstance(dim, int):
                found[dim if dim is not None else f"{value.name}.{axis}"] = None
    return list(found)


def _placed(graph: Graph) -> Callable[[str], str]:
    """Shows a dimension with a meaningless generated name of PyTorch by its position."""
    places = {
        dim: f"{dim} (axis {axis} of {value.name})"
        for value in reversed(graph.inputs)
        for axis, dim in reversed(list(enumerate(value.shape or ())))
        if isinstance(dim, str) and _NUMBERED.fullmatch(dim)
    }
    return lambda name: places.get(name, name)


def compile_model(
    source: Any,
    options: CommandOptions,
    title: str,
    feeds: Mapping[str, Any] | None = None,
    **more: Any,
) -> Executable:
    """`source` compiled for the shapes of `feeds`, with a progress bar; more: for `compile`."""
    from tilewright.driver import compile
    from tilewright.runtime.executable import Executable

    # An invalid number of threads is reported before the work, not after it.
    thread_count(options.threads)
    with progress(f"compiling {title}"):
        made = compile(source, **options.keywords(), **more)
        return made if isinstance(made, Executable) else made.specialized(feeds or {})


@dataclass(frozen=True)
class Prepared:
    """A model ready to run on data.

    seconds: the time to compile or load it. compiled: the graph and the options that it was
    compiled with; None for an artifact. first_result: with tiers, seconds until the interpreter's.
    """

    executable: Executable
    feeds: dict[str, inputs.Array]
    seconds: float
    compiled: tuple[Graph, CommandOptions] | None = None
    first_result: float | None = None

    @property
    def loaded(self) -> bool:
        """Whether it came from an artifact."""
        return self.compiled is None


def prepare(
    path: Path,
    options: CommandOptions,
    files: Files,
    archive: Path | None,
    seed: int,
    tiered: bool = False,
) -> Prepared:
    """Compile or load the model at `path`, and make its inputs.

    The inputs come first, so that their errors are reported before anything is compiled. tiered:
    run the model once before it is compiled.
    """
    if is_artifact(path):
        return _loaded(path, options, files, archive, seed)
    from tilewright.driver.dims import greatest_of, said_by

    graph, options = load_given(path, options, files, archive)
    wanted = inputs.of_graph(graph)
    said = {} if options.jit else dict(said_by(graph))
    greatest = {n: max(e) for n, e in said.items()} | greatest_of(options.ranges)
    feeds = inputs.gather(wanted, files, archive, seed, options.dims, greatest)
    if not symbols(graph):
        refuse(["jit"], "all extents are numbers", "Leave it out", str(path))
    if options.jit:
        # A range stays a range: it includes the shapes of the inputs.
        found = extents(graph, feeds) | options.ranges
        options = replace(options, dim=tuple(found.items()))
    start = time.perf_counter()
    given = quantized.samples(options, feeds, "this input")
    first = None
    if tiered:
        made = interpreted(graph, options, path.name, **given)
        made.run(feeds)
        first = time.perf_counter() - start
        with progress(f"compiling {path.name}"):
            exe = made.wait()
    else:
        exe = compile_model(graph, options, path.name, feeds, **given)
    return Prepared(exe, feeds, time.perf_counter() - start, (graph, options), first)


def interpreted(
    source: Any, options: CommandOptions, title: str, **more: Any
) -> TieredExecutable:
    """As `compile_model`, but interpreted until it is compiled."""
    from tilewright.driver import compile
    from tilewright.driver.tiered import TieredExecutable

    thread_count(options.threads)
    with progress(f"reading {title}"):
        made = compile(source, tiered=True, **options.keywords(), **more)
    assert isinstance(made, TieredExecutable)
    return made


def _loaded(
    path: Path, options: CommandOptions, files: Files, archive: Path | None, seed: int
) -> Prepared:
    """`prepare` for an artifact; one for ranges of shapes runs at the extents of --dim."""
    from tilewright.frontends.files import near_file
    from tilewright.runtime.executable import Executable
    from tilewright.runtime.ranged import load

    if not path.exists():
        raise ArtifactError("no such file", where=str(path), hint=near_file(path))
    why = ("an artifact is already compiled", "Compile the model with these options")
    refuse({*COMPILE} - {"threads", "dim"}, *why, str(path))
    start = time.perf_counter()
    found = load(path, threads=options.threads)
    seconds = time.perf_counter() - start
    if isinstance(found, Executable):
        refuse({"dim"}, *why, str(path))
        feeds = inputs.gather(inputs.of_executable(found), files, archive, seed)
        return Prepared(found, feeds, seconds)
    wanted, greatest = inputs.of_ranges(found, options.dims, options.ranges)
    feeds = inputs.gather(wanted, files, archive, seed, options.dims, greatest)
    return Prepared(found.specialized(feeds), feeds, seconds)


def extents(graph: Graph, feeds: Mapping[str, inputs.Array]) -> dict[str, int]:
    """The symbolic extents of the inputs, from the arrays."""
    found: dict[str, int] = {}
    for value in graph.inputs:
        if value.shape is not None and value.name in feeds:
            for dim, extent in zip(value.shape, feeds[value.name].shape):
                if isinstance(dim, str):
                    found[dim] = extent
    return found
