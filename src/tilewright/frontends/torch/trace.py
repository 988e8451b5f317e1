"""Tracing a module on example inputs and dynamic dimensions in the forms that users pass."""

from __future__ import annotations

import inspect
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from tilewright.base.errors import InputError, ModelError, TilewrightError
from tilewright.frontends.torch.user_line import raising_line, user_line
from tilewright.runtime.dlpack import require_data

_HINT: Final = "make torch.export.export(module, inputs) succeed first"
# What to do about errors of PyTorch that contain these words.
_ADVICE: Final[Mapping[str, str]] = {
    "Could not guard on data-dependent": (
        "the module chooses by data: write torch.where or torch.cond, or use "
        'torch.compile(module, backend="tilewright"), which runs such lines in Python'
    ),
    "not a known type": (
        "return tensors in tuples, lists, dictionaries or named tuples, or name the class once: "
        "torch.export.register_dataclass(YourClass)"
    ),
}
# `  h = 16*_h` below "Suggested fixes:" in PyTorch's errors.
_FIX: Final = re.compile(r"^ +(\w+) = (.+)$", re.MULTILINE)
# A dimension is named by the user, or by the tensor that has it.
_CONSTANT: Final = re.compile(
    r"You marked (.+) as dynamic but .* constant \((\d{1,18})\)"
)
_SPECIALIZED: Final = re.compile(
    r"generated for (\w+) = .* specialized value of (\d{1,18})\."
)
_OF_TENSOR: Final = re.compile(r"L\['(\w+)'\](\S*)\.size\(\)\[(\d{1,9})\]")
_LOGS: Final = re.compile(r"!? For more information, ")


@contextmanager
def quiet(*names: str) -> Iterator[None]:
    """Silence PyTorch's log, except for uncaught errors."""
    levels = {logging.getLogger(name): logging.getLogger(name).level for name in names}
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


@contextmanager
def evaluating(module: Any) -> Iterator[None]:
    """Put the module into evaluation mode, and restore every part afterwards."""
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for m, training in modes:
            m.training = training


def arguments(
    module: Any, example_inputs: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and the named arguments of the module.

    example_inputs: a tensor, a sequence of arguments, or a mapping of arguments by name; NumPy
    arrays become tensors. Raises InputError if there are none, but the module takes some.
    """
    import torch

    if isinstance(example_inputs, torch.Tensor | np.ndarray):
        example_inputs = (example_inputs,)
    listed = isinstance(example_inputs, Mapping | Sequence)
    takes_none = not inspect.signature(module.forward).parameters
    if not listed or not (takes_none or len(example_inputs)):
        raise InputError(
            "a PyTorch module needs example inputs to be traced on",
            where=type(module).__name__,
            hint="call tw.compile(module, (example,)), or with a dictionary of arguments by name",
        )
    if isinstance(example_inputs, Mapping):
        named = {str(name): _tensors(a) for name, a in example_inputs.items()}
        return _in_order(module, named)
    return tuple(map(_tensors, example_inputs)), {}


def _in_order(
    module: Any, named: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Named arguments, as positional ones if the module takes them so."""
    try:
        bound = inspect.signature(module.forward).bind(**named)
    except TypeError as error:
        raise InputError(
            f"the example inputs are not the module's arguments: {error}",
            where=type(module).__name__,
            hint=f"it takes {inspect.signature(module.forward)}",
        ) from None
    return bound.args, dict(bound.kwargs)


def _tensors(x: Any) -> Any:
    import torch

    if isinstance(x, np.ndarray | np.generic):
        return torch.as_tensor(x)
    if isinstance(x, Mapping):
        return {k: _tensors(v) for k, v in x.items()}
    if type(x) in (list, tuple):
        return type(x)(map(_tensors, x))
    return x


def _require_data(module: Any, given: Any) -> None:
    """Raise InputError if a tensor of the module, or an example, has no data."""
    from torch.utils import _pytree

    examples = _pytree.tree_flatten_with_path(given)[0]
    held = [*module.named_parameters(), *module.named_buffers()]
    held += [(f"example input {_pytree.keystr(path)}", x) for path, x in examples]
    for name, x in held:
        try:
            require_data(x)
        except InputError as error:
            raise error.at(name) from None


def exported(
    module: Any, example_inputs: Any, dynamic_shapes: Any = None, trains: bool = False
) -> tuple[Any, dict[str, str]]:
    """The program of a module, and the user's names of dynamic dimensions.

    dynamic_shapes: as `torch.export.export` takes them. trains: keep what `torch.no_grad` encloses
    apart. Raises InputError without example inputs,
    ModelError with PyTorch's reason and the user's line if it cannot be exported.
    """
    import torch

    positional, named = arguments(module, example_inputs)
    _require_data(module, (positional, named))
    # Collected by tensor, or from more inputs.
    if hasattr(dynamic_shapes, "dynamic_shapes"):
        dynamic_shapes = dynamic_shapes.dynamic_shapes(module, positional, named)
    silent = quiet("torch", "torch.export")
    with silent, torch.set_grad_enabled(trains), evaluating(module):
        try:
            program = torch.export.export(
                module, positional, named or None, dynamic_shapes=dynamic_shapes
            )
        except TilewrightError:
            raise
        except Exception as error:
            raise ModelError(
                f"PyTorch cannot export the module: {reason(error)}",
                where=_place(module, error),
                hint=advice(error) or _HINT,
            ) from error
    return program, _symbols(module, program, (positional, named), dynamic_shapes)


def reason(error: Exception) -> str:
    """The first informative line, without colors and the names of PyTorch's logs."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    if text:
        return _LOGS.split(text.splitlines()[0])[0]
    return repr(error)


def advice(error: Exception) -> str | None:
    """What to write in `dynamic_shapes`, if PyTorch says which dimensions do not fit; and what to
    write instead of what no graph can hold."""
    text = str(error)
    for found, advised in _ADVICE.items():
        if found in text:
            return advised
    stated = [*_CONSTANT.findall(text), *_SPECIALIZED.findall(text)]
    constants = {_OF_TENSOR.sub(r"dimension \3 of \1\2", name): n for name, n in stated}
    fixes = _FIX.findall(text.partition("Suggested fixes:")[2])
    wanted = [
        f"{name} = {meaning.replace(', max=oo', '')}"
        for name, meaning in fixes
        if name not in constants
    ]
    parts = [f"write {', '.join(wanted)} in dynamic_shapes"] if wanted else []
    for name, n in constants.items():
        parts.append(f"leave {name} out of dynamic_shapes: the module fixes it at {n}")
    return "; ".join(parts) or None


def _place(module: Any, error: Exception) -> str:
    """The module, and the line of the user's program if PyTorch names one or raised within it."""
    name = type(module).__name__
    line = user_line(str(error)) or raising_line(error)
    return name if line is None else f"{name}, {line[0]}:{line[1]}"


def _symbols(
    module: Any, program: Any, given: Any, dynamic_shapes: Any
) -> dict[str, str]:
    """The user's name for each of PyTorch's dimensions s0, s1, ..."""
    if not dynamic_shapes:
        return {}
    positional, named = given
    bound = inspect.signature(module.forward).bind(*positional, **named).arguments
    if isinstance(dynamic_shapes, Mapping):
        parts = [dynamic_shapes.get(name) for name in bound]
    else:
        parts = list(dynamic_shapes)
    tensors = _dimensions(list(bound.values()), parts)
    user = set(program.graph_signature.user_inputs)
    nodes = [n for n in program.graph.nodes if n.op == "placeholder" and n.name in user]
    held = [n.meta["val"] for n in nodes if hasattr(n.meta.get("val"), "shape")]
    found = {}
    for value, axes in zip(held, tensors, strict=True):
        for axis, dimension in axes.items():
            name = getattr(dimension, "__name__", "")
            extent = value.shape[axis]
            if name and type(extent) is not int:
                found[str(extent.node.expr)] = str(name)
    return found


def _dimensions(args: Any, spec: Any) -> Iterator[dict[int, Any]]:
    """For each tensor among the arguments, the dimensions that were named."""
    if hasattr(args, "shape"):
        if isinstance(spec, Mapping):
            axes = spec
        else:
            axes = dict(enumerate(spec or ()))
        yield {int(a): d for a, d in axes.items()}
    elif isinstance(args, Mapping):
        for name, a in args.items():
            yield from _dimensions(a, (spec or {}).get(name))
    elif isinstance(args, list | tuple):
        if isinstance(spec, list | tuple):
            parts = spec
        else:
            parts = [None] * len(args)
        for a, part in zip(args, parts, strict=False):
            yield from _dimensions(a, part)
