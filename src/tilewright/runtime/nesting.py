"""The nested arguments and results of a PyTorch module, around a model's flat tensors.

A `Tree` is a tensor's name, a value that was fixed when the module was traced, or a container of
trees. It is plain data, stored in artifacts; reading one imports nothing: classes that this process
has not loaded are replaced by stand-ins with the same fields.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final
from weakref import WeakValueDictionary

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ArtifactError, InputError
from tilewright.base.text import listing, plural

# What a fixed argument or result may be; JSON holds it, and == compares it.
CONSTANT: Final = (type(None), bool, int, float, str)
# Of nodes: how their parts are distinguished.
_IN_ORDER: Final = ("tuple", "list", "namedtuple")
_BY_KEY: Final = ("dict", "OrderedDict", "record")


@dataclass(frozen=True, slots=True)
class FixedLeaf:
    """What is not a tensor: a number, a string, None. output: its name, where it is one as well."""

    value: Any
    output: str = ""


@dataclass(frozen=True, slots=True)
class ContainerNode:
    """A container. keys: of a mapping, or the names of fields; of: the class that has these."""

    kind: str
    parts: tuple[Tree, ...]
    keys: tuple[Any, ...] = ()
    of: str = ""


Tree = str | FixedLeaf | ContainerNode


@dataclass(frozen=True, slots=True)
class ArgumentNesting:
    """arguments: by name, in order; the first `positional` ones may be passed by position.

    Fixed arguments may be omitted. Tensors are named after the model's inputs and outputs.
    """

    arguments: tuple[tuple[str, Tree], ...]
    positional: int
    results: Tree

    def fits(self, inputs: Sequence[str], outputs: Sequence[str]) -> bool:
        """Whether these are the tensors that it speaks of, each of them once."""
        given = [n for _, tree in self.arguments for n in tensors(tree)]
        got = list(tensors(self.results))
        return sorted(given) == sorted(inputs) and sorted(got) == sorted(outputs)

    def bind(self, args: Sequence[Any], named: Mapping[str, Any]) -> Mapping[str, Any]:
        """The tensors of a call, by name; a call that names tensors itself is left alone.

        Raises InputError naming the argument that is missing, unknown, or built otherwise.
        """
        own = {n for _, tree in self.arguments for n in tensors(tree)}
        only = args[0] if len(args) == 1 and not named else named if not args else None
        if isinstance(only, Mapping) and only and only.keys() <= own:
            return only
        given = self._arguments(args, named)
        found: dict[str, Any] = {}
        for name, tree in self.arguments:
            if name in given:
                _flatten(tree, given[name], f"argument {name!r}", found, self)
            elif next(tensors(tree), None) is not None:
                raise InputError(f"missing argument {name!r}", hint=self._hint)
        return found

    def _arguments(
        self, args: Sequence[Any], named: Mapping[str, Any]
    ) -> dict[str, Any]:
        names = [name for name, _ in self.arguments]
        if len(args) > self.positional:
            raise InputError(
                f"{plural(len(args), 'argument')} given by position, {self.positional} can be",
                hint=self._hint,
            )
        given = dict(zip(names, args, strict=False))
        for name, value in named.items():
            if name not in names:
                raise InputError(f"no argument is called {name!r}", hint=self._hint)
            if name in given:
                raise InputError(f"argument {name!r} is given twice", hint=self._hint)
            given[name] = value
        return given

    @property
    def _hint(self) -> str:
        shown = ", ".join(f"{name}={show(tree)}" for name, tree in self.arguments)
        return f"call it as it was exported: ({shown})"

    def restore(self, outputs: Mapping[str, Any]) -> Any:
        """The results in the structure that the module returns."""
        return _built(self.results, outputs)

    def to_json(self) -> dict[str, Any]:
        """What `of` reads."""
        return {
            "arguments": [[name, _to_json(tree)] for name, tree in self.arguments],
            "positional": self.positional,
            "results": _to_json(self.results),
        }

    @staticmethod
    def of(
        meta: Mapping[str, Any], inputs: Sequence[str], outputs: Sequence[str]
    ) -> ArgumentNesting | None:
        """That of a compiled model, or None. Raises ArtifactError for a damaged one."""
        found = meta.get("nesting")
        if found is None:
            return None
        try:
            arguments = tuple((str(n), _from_json(t)) for n, t in found["arguments"])
            made = ArgumentNesting(
                arguments, int(found["positional"]), _from_json(found["results"])
            )
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ArtifactError(
                f"how arguments and results nest is damaged: {error!r}"
            ) from None
        if not made.fits(inputs, outputs):
            raise ArtifactError("arguments and results nest around other tensors")
        return made


def is_plain(arguments: Sequence[tuple[str, Tree]], results: Tree) -> bool:
    """Whether it is a flat sequence of tensors, as models without nesting take and return."""
    several = isinstance(results, ContainerNode) and results.kind == "tuple"
    flat = (
        several and len(results.parts) > 1
        if isinstance(results, ContainerNode)
        else True
    )
    ends = results.parts if isinstance(results, ContainerNode) else (results,)
    leaves = [tree for _, tree in arguments] + list(ends)
    return flat and all(isinstance(tree, str) for tree in leaves)


def tensors(tree: Tree) -> Iterator[str]:
    """The names of the tensors, in order."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, FixedLeaf) and tree.output:
        yield tree.output
    elif isinstance(tree, ContainerNode):
        for part in tree.parts:
            yield from tensors(part)


def show(tree: Tree) -> str:
    """As Python writes it, a name for each tensor."""
    match tree:
        case str():
            return tree
        case FixedLeaf(value=value):
            return repr(value)
        case ContainerNode(kind="tuple" | "list"):
            inner = ", ".join(map(show, tree.parts))
            return f"[{inner}]" if tree.kind == "list" else f"({inner},)"
    pairs = zip(tree.keys, tree.parts, strict=True)
    if tree.of:
        inner = ", ".join(f"{key}={show(part)}" for key, part in pairs)
        return f"{tree.of.rpartition(':')[2]}({inner})"
    return "{" + ", ".join(f"{key!r}: {show(part)}" for key, part in pairs) + "}"


# -- calls


def _flatten(
    tree: Tree, value: Any, where: str, found: dict[str, Any], of: ArgumentNesting
) -> None:
    """Put the tensors of `value` into `found`. Raises InputError where it is built otherwise."""
    if isinstance(tree, str):
        if isinstance(value, Mapping | tuple) or value is None:
            raise _unlike(tree, value, where, of)
        found[tree] = value
        return
    if isinstance(tree, FixedLeaf):
        same = type(value) in CONSTANT and value == tree.value
        if not same:
            raise InputError(
                f"{where} was {tree.value!r} when the module was traced, got {value!r}",
                hint="it is part of the code: compile the module again with the other value",
            )
        return
    parts = _parts(tree, value)
    if parts is None:
        raise _unlike(tree, value, where, of)
    labels = tree.keys or range(len(parts))
    for label, part, inner in zip(labels, tree.parts, parts, strict=True):
        _flatten(part, inner, f"{where}, {label!r}", found, of)


def _parts(node: ContainerNode, value: Any) -> list[Any] | None:
    """The parts of a value that is built as the node; None for any other."""
    if node.kind in _IN_ORDER:
        matches = isinstance(value, list | tuple) and len(value) == len(node.parts)
        return list(value) if matches else None
    if isinstance(value, Mapping):
        parts = zip(node.keys, node.parts, strict=True)
        same = value.keys() == {
            k for k, p in parts if k in value or p != FixedLeaf(None)
        }
        return [value.get(k) for k in node.keys] if same else None
    if node.kind == "record" and all(hasattr(value, str(k)) for k in node.keys):
        return [getattr(value, str(k)) for k in node.keys]
    return None


def _unlike(tree: Tree, value: Any, where: str, of: ArgumentNesting) -> InputError:
    got = type(value).__name__
    if isinstance(value, Mapping):
        got += f" of {listing([repr(k) for k in value])}" if value else " without keys"
    elif isinstance(value, list | tuple):
        got += f" of {len(value)}"
    wanted = "a tensor" if isinstance(tree, str) else show(tree)
    return InputError(f"{where}: expected {wanted}, got {got}", hint=of._hint)


# -- results


class RecordFields(OrderedDict[str, Any]):
    """Stands for an object of a class that is not loaded here: its fields by name."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no field {name!r}") from None


def _built(tree: Tree, outputs: Mapping[str, Any]) -> Any:
    match tree:
        case str():
            return outputs[tree]
        case FixedLeaf(value=value):
            return value
    return _BUILDERS[tree.kind](tree, [_built(part, outputs) for part in tree.parts])


def field_names(cls: type) -> tuple[str, ...] | None:
    """The fields of a named tuple, also of one that is made in C; None for other classes."""
    return getattr(cls, "_fields", getattr(cls, "__match_args__", None))


def _named_tuple(node: ContainerNode, parts: list[Any]) -> Any:
    cls = _loaded(node.of)
    if isinstance(cls, type) and issubclass(cls, tuple):
        if field_names(cls) == node.keys:
            return cls(*parts) if hasattr(cls, "_fields") else cls(parts)
    name = node.of.rpartition(".")[2].rpartition(":")[2]
    return namedtuple(name, map(str, node.keys), rename=True)(*parts)


def _record(node: ContainerNode, parts: list[Any]) -> Any:
    cls = _loaded(node.of)
    held = dict(zip(map(str, node.keys), parts, strict=True))
    if isinstance(cls, type) and is_dataclass(cls):
        if held.keys() <= {f.name for f in fields(cls) if f.init}:
            return cls(**held)
    return RecordFields((k, v) for k, v in held.items() if v is not None)


_BUILDERS: Final[Mapping[str, Callable[[ContainerNode, list[Any]], Any]]] = {
    "tuple": lambda _, parts: tuple(parts),
    "list": lambda _, parts: parts,
    "dict": lambda node, parts: dict(zip(node.keys, parts, strict=True)),
    "OrderedDict": lambda node, parts: OrderedDict(zip(node.keys, parts, strict=True)),
    "namedtuple": _named_tuple,
    "record": _record,
}

# Classes of modules traced in this process; some cannot be imported by name.
_KNOWN: Final[WeakValueDictionary[str, type]] = WeakValueDictionary()


def name_of(cls: type) -> str:
    """What a class is called in a Node; it is found by that as long as it lives."""
    name = f"{cls.__module__}:{cls.__qualname__}"
    _KNOWN[name] = cls
    return name


def _loaded(name: str) -> Any:
    """The class that this process has under a name; nothing is imported."""
    known = _KNOWN.get(name)
    if known is not None:
        return known
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


# -- as JSON


def _to_json(tree: Tree) -> Any:
    match tree:
        case str():
            return tree
        case FixedLeaf(value=value):
            return {"value": value, "output": tree.output}
    return {
        "kind": tree.kind,
        "parts": list(map(_to_json, tree.parts)),
        "keys": list(tree.keys),
        "of": tree.of,
    }


def _from_json(found: Any) -> Tree:
    """Raises ValueError, TypeError, KeyError or RecursionError for data that `_to_json` never
    writes."""
    if isinstance(found, str):
        return found
    if "value" in found:
        if type(found["value"]) not in CONSTANT:
            raise ValueError(f"a value is {found['value']!r}")
        return FixedLeaf(found["value"], str(found["output"]))
    kind, keys, of = found["kind"], tuple(found["keys"]), found["of"]
    parts = tuple(map(_from_json, found["parts"]))
    if kind not in _BUILDERS or not isinstance(of, str):
        raise ValueError(f"a container is {kind!r} of {of!r}")
    named = kind in _BY_KEY or kind == "namedtuple"
    if len(set(keys)) != len(keys) or len(keys) != (len(parts) if named else 0):
        raise ValueError(f"a {kind} of {len(parts)} has the keys {keys}")
    return ContainerNode(kind, parts, keys, of)
