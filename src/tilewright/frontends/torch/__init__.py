"""Importing PyTorch modules and exported programs, through torch.export and ONNX in memory."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tilewright.base.errors import (
    InputError,
    ModelError,
    TilewrightError,
    UnsupportedError,
)

# Of the files that torch.export.save writes.
SUFFIX: Final = ".pt2"
# What makes ONNX of them.
PACKAGES: Final = ("torch", "onnxscript")


def is_module(source: object) -> bool:
    """Whether `source` is a `torch.nn.Module` or an exported program; torch is not imported."""
    kinds = {f"{c.__module__}.{c.__qualname__}" for c in type(source).__mro__}
    return bool(
        kinds
        & {
            "torch.nn.modules.module.Module",
            "torch.export.exported_program.ExportedProgram",
        }
    )


def to_onnx(
    module: Any, example_inputs: Sequence[Any] = (), optimize: bool = True
) -> bytes:
    """The ONNX model (serialized) of a module traced on `example_inputs`, or of a program.

    optimize: let PyTorch compute ahead what depends on parameters alone, which replaces them. An
    exported program was traced already, on inputs that it holds. Raises InputError for a module
    without example inputs, ModelError if PyTorch cannot export it.
    """
    import torch

    named: dict[str, Any] = {}
    if isinstance(module, torch.export.ExportedProgram):
        example_inputs, named = module.example_inputs or (tuple(example_inputs), {})
    elif not example_inputs:
        raise InputError(
            "a PyTorch module needs example inputs to be traced on",
            where=type(module).__name__,
            hint="call tw.compile(module, (example,))",
        )
    if isinstance(module, torch.nn.Module):
        module = module.eval()
    buffer = io.BytesIO()
    with warnings.catch_warnings(), _quiet(_EXPORTER), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            program = torch.onnx.export(
                module,
                tuple(example_inputs),
                kwargs=named,
                dynamo=True,
                optimize=optimize,
                verbose=False,
                external_data=False,
            )
        except Exception as error:
            raise ModelError(
                f"PyTorch cannot export the module: {_reason(error)}",
                where=type(module).__name__,
                hint="make torch.export.export(module, inputs) succeed first",
            ) from error
        program.save(buffer)
    return buffer.getvalue()


def load(path: Path, *, memory_limit: int, trust: bool = False) -> Any:
    """The program in a file that torch.export.save wrote.

    Nothing of the file is run, and what cannot be read without that is refused: see `program` and
    `archive`. trust: let PyTorch itself read the file, which runs what is pickled in it.

    Raises ModelError for a file that holds something else, MemoryLimitError for one whose tensors
    take more than `memory_limit` bytes, UnsupportedError where PyTorch is not installed.
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
            hint=f"Run: pip install {' '.join(PACKAGES)}",
        ) from None
    with (
        warnings.catch_warnings(),
        _quiet("torch.export", "torch._export.serde.serialize"),
    ):
        warnings.simplefilter("ignore")
        try:
            return torch.export.load(path) if trust else _read(path, memory_limit)
        except TilewrightError as error:
            raise error.at(where) from None
        except Exception as error:
            raise ModelError(
                f"not an exported program, or a damaged one: {_reason(error)}",
                where=where,
                hint="Write it by torch.export.save(torch.export.export(module, inputs), path)",
            ) from None


def _read(path: Path, limit: int) -> Any:
    import zipfile

    from tilewright.frontends.torch import program
    from tilewright.frontends.torch.archive import Archive

    with zipfile.ZipFile(path) as file:
        return program.read(Archive(file, limit))


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else repr(error)


# Without torchvision the exporter logs a line for each operator of it, which nobody asked.
_EXPORTER: Final = "torch.onnx._internal.exporter._registration"


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Nothing but errors that nobody catches is worth a line of PyTorch's own."""
    levels = {logging.getLogger(name): logging.getLogger(name).level for name in names}
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
