"""Importing PyTorch modules and exported programs, by rules for ATen operators."""

from __future__ import annotations

import io
from collections.abc import Collection, Sized
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tilewright.base.errors import (
    InputError,
    ModelError,
    TilewrightError,
    UnsupportedError,
)

if TYPE_CHECKING:  # a cached model loads without the compiler
    from tilewright.graph.infer import FallbackProvider
    from tilewright.graph.nodes import Graph

# Suffixes of files written by torch.export.save.
SUFFIX: Final = ".pt2"
# PyTorch's own index: the Linux build on PyPI depends on gigabytes of GPU libraries.
PROCESSORS_INDEX: Final = "https://download.pytorch.org/whl/cpu"
_MODULE: Final = "torch.nn.modules.module.Module"
_PROGRAM: Final = "torch.export.exported_program.ExportedProgram"
INSTALL: Final = f"pip install torch --index-url {PROCESSORS_INDEX}"


def is_module(source: object) -> bool:
    """Whether `source` is a `torch.nn.Module` or an exported program; does not import torch."""
    return not _kinds(source).isdisjoint((_MODULE, _PROGRAM))


def _kinds(source: object) -> set[str]:
    return {f"{c.__module__}.{c.__qualname__}" for c in type(source).__mro__}


def refuse_examples(source: object, example_inputs: Any) -> None:
    """Raise InputError for example inputs of a source that is not traced with them."""
    left_out = isinstance(example_inputs, Sized) and not len(example_inputs)
    given = example_inputs is not None and not left_out
    if given and _MODULE not in _kinds(source):
        raise InputError(
            "example_inputs: only a torch.nn.Module is traced",
            hint="leave them out: a call compiles for its shapes, as does dims={...}",
        )


def to_graph(
    source: Any,
    example_inputs: Any = (),
    *,
    dynamic_shapes: Any = None,
    limit: int,
    fallback: FallbackProvider | None = None,
    standard: bool = False,
    trained: Collection[str] = (),
) -> tuple[Graph, Any]:
    """The Graph of a module traced on `example_inputs`, or of an exported program; and the program.

    example_inputs: a tensor, a sequence of arguments, or a mapping of arguments by name.
    dynamic_shapes: dimensions that differ between calls, as `torch.export.export` takes them; their
    names are those of the graph. limit: bytes of memory. standard: keep ONNX's operators. trained:
    names of parameters that will change, so that nothing is computed from them in advance.

    Raises InputError for a module without example inputs, ModelError if PyTorch cannot export it,
    UnsupportedError naming the operators without a rule that PyTorch does not decompose, with the
    user's line.
    """
    from tilewright.frontends.torch.aten.importer import ImportSettings
    from tilewright.frontends.torch.aten.program import import_program
    from tilewright.frontends.torch.trace import exported

    symbols: dict[str, str] = {}
    program = source
    if not hasattr(source, "graph_signature"):
        program, symbols = exported(
            source, example_inputs, dynamic_shapes, bool(trained)
        )
    elif dynamic_shapes is not None:
        raise InputError(
            "dynamic_shapes: the program is already exported",
            hint="pass them to torch.export.export",
        )
    settings = ImportSettings(limit, fallback, standard, symbols, trained)
    return import_program(program, settings), program


def parameters(source: Any) -> list[str]:
    """The names of a module's or program's parameters that require gradients, all names of each.

    Raises InputError for a complex one.
    """
    if hasattr(source, "graph_signature"):
        pairs = source.named_parameters()
    else:
        pairs = source.named_parameters(remove_duplicate=False)
    found = []
    for name, p in pairs:
        if not p.requires_grad:
            continue
        if p.is_complex():
            raise InputError(
                f"parameter {name!r} is complex",
                hint="keep its real and imaginary parts as two parameters",
            )
        found.append(name)
    return found


def to_onnx(module: Any, example_inputs: Any = ()) -> bytes:
    """The serialized ONNX model that PyTorch writes of a module traced on `example_inputs`, or of a
    program, for other engines: it converts some operators wrongly, so nothing is imported this way.

    An exported program is already traced, on inputs that it contains; the extents for which it is
    right are in the model's metadata (`frontends/extents.py`). Raises InputError for a
    module without example inputs, ModelError if PyTorch cannot export it.
    """
    import torch

    from tilewright.frontends.torch.trace import arguments, evaluating, quiet, reason

    around: Any = nullcontext()
    if isinstance(module, torch.export.ExportedProgram):
        positional, named = module.example_inputs or ((), {})
    else:
        positional, named = arguments(module, example_inputs)
        around = evaluating(module)
    buffer = io.BytesIO()
    with quiet(_EXPORTER), torch.no_grad(), around:
        try:
            program = torch.onnx.export(
                module,
                tuple(positional),
                kwargs=named,
                dynamo=True,
                verbose=False,
                external_data=False,
            )
        except Exception as error:
            raise ModelError(
                f"PyTorch cannot export the module: {reason(error)}",
                where=type(module).__name__,
                hint="make torch.export.export(module, inputs) succeed first",
            ) from error
        if isinstance(module, torch.export.ExportedProgram):
            held = _made_for(module, program.model.graph)
            program.model.metadata_props.update(held)
        program.save(buffer)
    return buffer.getvalue()


def _made_for(program: Any, graph: Any) -> dict[str, str]:
    """What a program says of its extents; PyTorch names dimensions in ONNX by its expressions."""
    from tilewright.frontends.extents import metadata
    from tilewright.frontends.torch.aten.program import limits_of

    names = {str(n) for v in graph.inputs for n in v.shape or ()}
    return metadata(names, *limits_of(program, {}))


def load(path: Path, *, memory_limit: int, trust: bool = False) -> Any:
    """The program in a file written by torch.export.save.

    No code from the file runs, and contents that cannot be read without that are rejected: see
    `program` and `archive`. trust: let PyTorch read the file, which executes its pickles.

    Raises ModelError for other files, MemoryLimitError if the tensors take more than `memory_limit`
    bytes, UnsupportedError if PyTorch is not installed.
    """
    where = str(path)
    if path.exists() and not path.is_file():
        raise ModelError(
            "it is not a file", where=where, hint="Name the file, not a pipe or folder"
        )
    try:
        import torch
    except ImportError as error:
        raise UnsupportedError(
            f"an exported program is read by PyTorch, which cannot be imported: {error}",
            where=where,
            hint=f"Run: {INSTALL}",
        ) from None
    from tilewright.frontends.torch.trace import quiet, reason

    with quiet("torch.export", "torch._export.serde.serialize"):
        try:
            if trust:
                return torch.export.load(path)
            return _read(path, memory_limit)
        except TilewrightError as error:
            raise error.at(where) from None
        except Exception as error:
            raise ModelError(
                f"not an exported program, or a damaged one: {reason(error)}",
                where=where,
                hint="Write it by torch.export.save(torch.export.export(module, inputs), path)",
            ) from None


def _read(path: Path, limit: int) -> Any:
    import zipfile

    from tilewright.frontends.torch import program
    from tilewright.frontends.torch.archive import Archive

    with zipfile.ZipFile(path) as file:
        return program.read(Archive(file, limit))


# Without torchvision the exporter logs a warning for each of its operators.
_EXPORTER: Final = "torch.onnx._internal.exporter._registration"
