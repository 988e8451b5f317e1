"""The program in an archive: every string is checked before PyTorch creates objects from it.

PyTorch turns these strings into code: sizes are evaluated by sympy; targets are looked up below the
module `torch`, even `torch.os.system`; names are written into Python source that is compiled;
argument structures name modules to import; guards are source code. So each string field has a rule
here, and a field without a rule is rejected. Fields that only describe the program's origin
(classes of modules, stack traces except for the user's line) are dropped.
"""

from __future__ import annotations

import dataclasses
import json
import keyword
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from tilewright.base.errors import ModelError
from tilewright.frontends.torch import expressions, guards
from tilewright.frontends.torch.archive import (
    CONSTANTS,
    PROGRAM,
    WEIGHTS,
    Archive,
    malformed,
    untrusted,
)
from tilewright.frontends.torch.user_line import user_line

Rule = Callable[[str], bool]

_PATH: Final = re.compile(r"[\w./:+\- ]*")
_STACK: Final = "nn_module_stack"
_TRACE: Final = "stack_trace"
_MODULE: Final = re.compile(r"[\w.]*")
_TAG: Final = re.compile(r"[\w.+<=\- ]*")
_DEVICE: Final = re.compile(r"[a-z]{1,20}")
_OPERATOR: Final = re.compile(r"torch\.ops\.(\w+)\.([a-z_]\w*)\.(\w+)")

# Operators of these only describe arithmetic on tensors.
_NAMESPACES: Final = frozenset(
    {"aten", "prims", "onnx", "onnx_symbolic", "quantized_decomposed", "torchvision"}
)
# These read or write files.
_REFUSED: Final = frozenset(
    {"aten.from_file", "torchvision.read_file", "torchvision.write_file"}
)
_HIGHER: Final = frozenset(
    f"torch.ops.higher_order.{name}"
    for name in (
        "cond while_loop scan map_impl associative_scan wrap_with_set_grad_enabled "
        "wrap_with_autocast invoke_subgraph"
    ).split()
)
_SCALAR: Final = frozenset(
    f"_operator.{name}"
    for name in (
        "eq ne le ge lt gt neg pos mul add sub floordiv mod pow truediv and_ or_ lshift rshift "
        "getitem"
    ).split()
) | frozenset(
    f"torch.sym_{name}" for name in ("not", "int", "float", "ite", "max", "min", "sqrt", "sum")
) | frozenset({"math.trunc", "math.ceil", "math.floor"})  # fmt: skip

# Containers of the standard library; others come with code that rebuilds them.
_CONTAINERS: Final = frozenset(
    {"builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"}
)


def read(archive: Archive) -> Any:
    """The `torch.export.ExportedProgram` of an archive. Raises ModelError, MemoryLimitError.

    Other exceptions of PyTorch for a program that it rejects propagate.
    """
    from torch._export.serde import schema, serialize

    make = serialize._dict_to_dataclass
    program = make(schema.ExportedProgram, archive.json(PROGRAM))
    configs = [
        make(schema.PayloadConfig, archive.json(f"{folder}model_{kind}_config.json"))
        for folder, kind in ((WEIGHTS, "weights"), (CONSTANTS, "constants"))
    ]
    _forget(program)
    for part in (program, *configs):
        _check(part, "")
    weights, constants = (
        archive.tensors(folder, config.config)
        for folder, config in zip((WEIGHTS, CONSTANTS), configs)
    )
    return serialize.ExportedProgramDeserializer().deserialize(
        program, weights, constants, None
    )


def _forget(program: Any) -> None:
    """Drop descriptions of the program's origin."""
    program.graph_module.metadata = {}
    program.graph_module.treespec_namedtuple_fields = {}


def _check(value: Any, field: str) -> None:
    """Raise ModelError for a string that its field forbids. `field`: its name in the schema."""
    if value is None or isinstance(value, bool | int | float):
        return
    if isinstance(value, str):
        _check_text(value, field)
    elif isinstance(value, list):
        for item in value:
            _check(item, field)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_text(key, f"{field} key")
            _check(item, field)
    elif hasattr(value, "type") and hasattr(value, "value"):  # unions of the schema
        _check(value.value, value.type)
    elif hasattr(value, "class_fqn"):
        raise untrusted("the program contains an object of a custom class")
    elif dataclasses.is_dataclass(value):
        if hasattr(value, "metadata"):
            value.metadata = _modules(value.metadata) | _line(value.metadata)
        for part in dataclasses.fields(value):
            _check(getattr(value, part.name), part.name)
    else:
        raise malformed(f"the program holds a {type(value).__name__}")


def _modules(metadata: Mapping[str, Any]) -> dict[str, str]:
    """From a node's metadata, the paths of its modules, for names of kernels and errors.

    PyTorch stores `key,path,class` for each, the outermost first; classes are dropped.
    """
    stack = metadata.get(_STACK)
    if isinstance(stack, str):
        entries = stack.split(";")
    else:
        entries = []
    paths = [e.split(",")[1] for e in entries if e.count(",") >= 2]
    if not paths or not all(map(_MODULE.fullmatch, paths)):
        return {}
    return {_STACK: ";".join(f"{n},{path}," for n, path in enumerate(paths))}


def _line(metadata: Mapping[str, Any]) -> dict[str, str]:
    """From a node's metadata, the user's line, for errors, as a trace of one frame.

    Without it PyTorch records its own lines when it rewrites the node.
    """
    trace = metadata.get(_TRACE)
    found = user_line(trace)
    if found is None:
        return {}
    return {_TRACE: f'File "{found[0]}", line {found[1]}, in forward'}


def _check_text(text: Any, field: str) -> None:
    rule = _RULES.get(field)
    if not isinstance(text, str) or rule is None or not rule(text):
        raise ModelError(
            f"the program has {str(text)[:80]!r} as a {field or 'text'}, which no exporter writes",
            hint="The file is damaged, crafted to run code, or needs a later version",
        )


def _is_identifier(text: str) -> bool:
    """A name or an empty string; PyTorch writes names into Python source."""
    return not text or (text.isidentifier() and not keyword.iskeyword(text))


def _is_expression(text: str) -> bool:
    expressions.check(text)
    return True


def _is_operator(text: str) -> bool:
    if text in _SCALAR or text in _HIGHER:
        return True
    found = _OPERATOR.fullmatch(text)
    if found is None or f"{found[1]}.{found[2]}" in _REFUSED:
        return False
    if found[1] not in _NAMESPACES:
        raise untrusted(f"the program calls {text[:80]!r}, which is a custom operator")
    import torch

    # A namespace also has Python attributes besides its operators.
    packet = getattr(getattr(torch.ops, found[1]), found[2], None)
    return isinstance(getattr(packet, found[3], None), torch._ops.OpOverload)


def _is_structure(text: str) -> bool:
    """How results nest: `[1, {"type", "context", "children_spec"}]`."""
    version, tree = json.loads(text)
    return version == 1 and _is_tree(tree)


def _is_signature(text: str) -> bool:
    """How arguments nest: a tuple of positional ones and a dict of named ones."""
    if not _is_structure(text):
        return False
    _, named = json.loads(text)[1]["children_spec"]
    return all(
        isinstance(k, str) and k and _is_identifier(k)
        for k in json.loads(named["context"])
    )


def _is_tree(tree: Mapping[str, Any]) -> bool:
    kind = tree["type"]
    context = tree["context"]
    if kind is None:
        return context is None and not tree["children_spec"]
    if not isinstance(kind, str) or not isinstance(context, str):
        return False
    if kind not in _CONTAINERS:
        raise untrusted(f"the program's arguments or results are in a {kind[:80]!r}")
    keys = json.loads(context)
    if keys is not None and not all(isinstance(k, int) or _is_key(k) for k in keys):
        return False
    return all(map(_is_tree, tree["children_spec"]))


def _is_key(key: Any) -> bool:
    return isinstance(key, str) and _PATH.fullmatch(key) is not None


def _matches(pattern: re.Pattern[str]) -> Rule:
    return lambda text: pattern.fullmatch(text) is not None


def _is_anything(text: str) -> bool:
    """It remains a value: PyTorch writes its repr where it generates code."""
    return True


_RULES: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(
        ("name", "as_name", "forward_arg_names", "user_input_name", "tensor_values key",
         "sym_int_values key", "sym_bool_values key", "sym_float_values key",
         "custom_obj_values key", "opset_version key", "as_string_to_argument key"),
        _is_identifier,
    ),
    **dict.fromkeys(
        ("parameter_name", "buffer_name", "tensor_constant_name", "fqn", "config key"),
        _matches(_PATH),
    ),
    **dict.fromkeys(("as_string", "as_strings"), _is_anything),
    "guards_code": guards.check,
    **dict.fromkeys(("target", "as_operator"), _is_operator),
    # Built from checked strings, see `_modules` and `_line`.
    "metadata key": _matches(re.compile(f"{_STACK}|{_TRACE}")),
    "metadata": _matches(re.compile(r'[\w.,;]+|File "[\w.\-]+", line \d+, in forward')),
    "in_spec": _is_signature,
    "out_spec": _is_structure,
    **dict.fromkeys(("torch_version", "verifiers", "path_name"), _matches(_TAG)),
    "expr_str": _is_expression,
    "range_constraints key": _matches(expressions.SYMBOL),
    "type": _matches(_DEVICE),
}  # fmt: skip
