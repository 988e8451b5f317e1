"""`compile_library()`: a model as a library for C programs, on this machine or another."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Unpack

import numpy as np

from tilewright.base import events
from tilewright.base.arguments import NAME_OR_NAMES, expect, shown
from tilewright.base.dataclass import dataclass
from tilewright.base.dims_hint import DimsHint
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.base.files import write_whole
from tilewright.base.text import listing, reason
from tilewright.driver import sources, steps
from tilewright.driver.c_library import check_name
from tilewright.driver.compilation import onnx_fallback
from tilewright.driver.compile_lock import exclusive
from tilewright.driver.deciding_inputs import deciding_inputs
from tilewright.driver.library.container import SUFFIXES, check_format, contained
from tilewright.driver.library.interface import (
    LibraryDescription,
    LibraryParameter,
    header,
    manifest,
    parameters,
)
from tilewright.driver.options import Options
from tilewright.graph.nodes import Graph
from tilewright.runtime import abi
from tilewright.runtime.model import CompiledModel, CopyStep, NativeStep, ValueSlot
from tilewright.targets.base import (
    LibraryCall,
    LibraryCopy,
    LibrarySignature,
    LibraryVariant,
    Target,
    TensorLocation,
)
from tilewright.targets.registry import target as find_target

if TYPE_CHECKING:
    from tilewright.driver.keywords import LibraryOptions

MULTI: Final = "multi"
_LEVELS: Final = ("x86-64-v4", "x86-64-v3", "x86-64-v2")


@dataclass(frozen=True, slots=True)
class Library:
    """The files of a library, and its interface."""

    path: Path
    header: Path
    manifest: Path
    described: LibraryDescription


def compile_library(
    source: Any,
    path: str | os.PathLike[str],
    example_inputs: Sequence[Any] = (),
    *,
    name: str | None = None,
    header: str | os.PathLike[str] | None = None,
    mcpu: str | Sequence[str] = "native",
    triple: str | None = None,
    dims: Mapping[str, int] | None = None,
    **options: Unpack[LibraryOptions],
) -> Library:
    """Compile a model to a library, a C header and a JSON manifest.

    source, example_inputs, dims, options: as for `compile`; threads: the number of threads that
    loops are scheduled for, 1 by default. path: the library; its suffix selects the format: .so,
    .a, .o or .wasm. The manifest is written to the same folder. name: the prefix of its functions;
    by default the stem of the path. header: by default in the same folder. mcpu: the processor, or
    several x86-64 processors: when the library runs, it selects the first that fits; "multi" means
    x86-64-v4, v3 and v2. triple: the target system, such as aarch64-unknown-linux-gnu; by default
    this one.

    Raises InputError for an invalid suffix or name, files that cannot be written, and shapes known
    only at run time; UnsupportedError for operators without native code, and unknown processors and
    systems; and the errors of `compile`. If it raises, no file is written.
    """
    expect(path=path, name=name, header=header, triple=triple, dims=dims)
    files = _files(Path(path), None if header is None else Path(header))
    called = name or _plain(files.path.stem)
    check_name(f"{called}_run", str(files.path))
    chosen = Options.of({**options, "fallback": "error"})
    if chosen.sanitize:
        raise InputError(
            "sanitize: a library has nowhere to report to",
            hint="leave it out, or compile an artifact (.tw)",
        )
    with exclusive(), events.span("compile"):
        targets = _targets(mcpu, triple, chosen)
        _check_format(files.path.name, targets)
        graph = sources.import_model(source, example_inputs, chosen)
        graph = sources.with_dims(graph, dims, chosen) if dims else graph
        _check_static(graph)
        built = {n: steps.build(graph, chosen, t) for n, t in targets.items()}
        described, code = _joined(called, targets, built)
    data = contained(code, files.path.name, described)
    _write(files, described, data)
    return replace(files, described=described)


def _plain(stem: str) -> str:
    """The C name for the stem of a file name: my_model for libmy-model, m3 for 3."""
    plain = re.sub(r"\W", "_", stem.removeprefix("lib"), flags=re.ASCII)
    return re.sub(r"^(?![A-Za-z])", "m", plain)


def _files(path: Path, header: Path | None) -> Library:
    """The paths of all files. Raises InputError for paths that cannot be written."""
    if path.suffix not in SUFFIXES:
        raise InputError(
            f"a library cannot be written as {path.suffix or 'a file without a suffix'}",
            where=str(path),
            hint=f"name it {listing([f'*{s}' for s in SUFFIXES])}",
        )
    files = (path, header or path.with_suffix(".h"), path.with_suffix(".json"))
    for file in files:
        if not file.parent.is_dir():
            raise InputError(
                f"the folder {str(file.parent)!r} does not exist",
                where=str(file),
                hint="create it first",
            )
        if file.is_dir():
            raise InputError("it is a folder", where=str(file), hint="name a file")
    if len({file.resolve() for file in files}) < len(files):
        raise InputError(
            "the library, its header and its manifest need different names",
            where=str(path),
            hint="name the header *.h",
        )
    return Library(*files, described=_NOTHING)


_NOTHING: Final = LibraryDescription("", "", {}, (), (0, 0), 0)


def _targets(
    mcpu: str | Sequence[str], triple: str | None, options: Options
) -> dict[str, Target]:
    """The target for each processor. Raises InputError or UnsupportedError."""
    if not NAME_OR_NAMES.holds(mcpu) or not mcpu:
        raise InputError(
            f"mcpu={shown(mcpu)}", hint="give the name of a processor, or several"
        )
    names = [mcpu] if isinstance(mcpu, str) else list(mcpu)
    names = [*_LEVELS] if names == [MULTI] else names
    exact = options.math == "exact"
    made = [
        find_target(
            options.target,
            options.mcpu if n == "native" and triple is None else n,
            exact,
            options.threads or 1,
            options.description,
            triple=triple,
        ).parts()
        for n in names
    ]
    # "native" is this processor, or the baseline processor of another system.
    other = triple is not None
    found = {
        t.requirements["arch"] if n == "native" and other else n: t
        for n, t in zip(names, made, strict=True)
    }
    others = [n for n, t in found.items() if t.requirements["arch"] != "x86_64"]
    if len(found) > 1 and others:
        raise UnsupportedError(
            f"several processors: {listing(others)} is not x86-64, and a library selects only "
            "among x86-64 processors when it runs",
            code="TW-MCPU",
            hint="compile a library for each",
        )
    return found


def _check_static(graph: Graph) -> None:
    """Raise InputError, naming the dimensions, for shapes known only at run time."""
    loose = [v for v in graph.inputs if v.kind == "tensor" and not v.static]
    if loose:
        free = sorted({d for v in loose for d in v.shape or () if isinstance(d, str)})
        raise InputError(
            f"the shape of {listing([repr(v.name) for v in loose])} is symbolic, but a library "
            "has fixed shapes",
            hint=DimsHint("give its dimensions").of(dict.fromkeys(free, 1))
            if free
            else "export the model with a shape for it",
        )
    if found := deciding_inputs(graph, onnx_fallback()):
        raise InputError(
            f"the values of {listing([repr(v.name) for v in found])} determine shapes, but a "
            "library has fixed shapes",
            hint="make them constants of the model",
        )


def _check_format(file: str, targets: Mapping[str, Target]) -> None:
    """Raise UnsupportedError for a file that their system does not have, before compiling."""
    first = next(iter(targets.values()))
    empty = LibrarySignature("empty", 0, False, memoryview(b""))
    code = first.library([LibraryVariant(first, (), (), 0)], empty)
    check_format(code, file, first.requirements["triple"])


def _joined(
    name: str, targets: Mapping[str, Target], built: Mapping[str, CompiledModel]
) -> tuple[LibraryDescription, bytes]:
    """The description of the library, and its code as one object file."""
    variants, blocks, size = [], [], 0
    for processor, model in built.items():
        given = parameters(model)
        actions = tuple(_action(s, model, given) for s in model.steps)
        variants.append(
            LibraryVariant(targets[processor], model.objects, actions, size)
        )
        padding = -len(model.constants) % abi.ALIGNMENT
        blocks += [model.constants, np.zeros(padding, np.uint8)]
        size += len(model.constants) + padding
    constants = np.concatenate(blocks).data if size else memoryview(b"")
    shared = max(m.arena_bytes + m.workspace for m in built.values())
    thread = max(m.thread_workspace for m in built.values())
    first = next(iter(targets.values()))
    described = LibraryDescription(
        name,
        first.requirements["triple"],
        {n: t.requirements["features"] for n, t in targets.items()},
        given,
        (shared, thread),
        len(constants),
    )
    interface = LibrarySignature(name, len(given), shared + thread > 0, constants)
    with events.span("library"):
        return described, first.library(variants, interface)


def _action(
    step: Any, model: CompiledModel, given: Sequence[LibraryParameter]
) -> LibraryCall | LibraryCopy:
    """A step of the model as a step of the library. Raises UnsupportedError if it needs Python."""
    places = _Places(model, given)
    match step:
        case NativeStep(symbol=symbol, values=values):
            return LibraryCall(symbol, tuple(places(slot) for slot in values))
        case CopyStep(source=source, target=target):
            size = source.tensor.nbytes
            return LibraryCopy(places(source), places(target), size)
    raise UnsupportedError(
        f"{type(step).__name__} of {getattr(step, 'node', getattr(step, 'name', ''))!r} does "
        "not run as native code on the processor",
        code="TW-LIBRARY",
        hint="save an artifact (.tw)",
    )


class _Places:
    """Maps slots of the model to locations in the library's memory."""

    def __init__(self, model: CompiledModel, given: Sequence[LibraryParameter]) -> None:
        over = dict(model.aliases)
        free = [n for n in range(len(model.outputs)) if n not in over]
        first = len(model.inputs)
        self._outputs = over | {n: first + k for k, n in enumerate(free)}

    def __call__(self, slot: ValueSlot) -> TensorLocation:
        match slot.kind:
            case "input":
                return TensorLocation("parameter", slot.at)
            case "output":
                return TensorLocation("parameter", self._outputs[slot.at])
            case "arena" | "constant":
                return TensorLocation(slot.kind, slot.at)
        raise UnsupportedError(
            f"{slot.tensor} is a Python value",
            code="TW-LIBRARY",
            where=slot.tensor.name,
        )


def _write(files: Library, described: LibraryDescription, data: bytes) -> None:
    """Write the three files, or none of them.

    All contents are in temporary files before the first is renamed into place.
    """
    contents = [
        (files.path, data),
        (files.header, header(described).encode()),
        (files.manifest, manifest(described).encode()),
    ]
    # The last one is written first, so a device that is full leaves no other file.
    contents.sort(key=lambda item: item[0].exists() and not item[0].is_file())

    def rest(n: int) -> None:
        if n == len(contents):
            return
        path, text = contents[n]

        def put(file: BinaryIO) -> None:
            file.write(text)
            rest(n + 1)

        write_whole(path, put)

    try:
        rest(0)
    except OSError as error:
        raise InputError(
            f"it cannot be written: {reason(error)}",
            where=str(error.filename or files.path),
            hint="choose another place with -o and --header",
        ) from None
