"""Typed, immutable, interned nodes: the one clever file of the compiler.

A node class lists its fields as annotations, and this metaclass writes the rest: slots, a
constructor that returns the *same object* for the same fields (hash-consing), `children`, `map`,
`replace`, pickling that re-interns. Equality is identity, so common subexpressions are free and
a dictionary keyed by nodes never walks a tree.

    class Add(Expr):
        lhs: Expr
        rhs: Expr

    Add(x, y) is Add(x, y)

The rules, each tested in tests/ir:

* The intern key holds every field exactly: `1`, `True` and `1.0` differ, `0.0` and `-0.0` differ,
  and a NaN equals itself (fields annotated with `float` are keyed by type and bits).
* A field is a child when its annotation names a node class that exists by then (`Expr`,
  `tuple[Expr, ...]`, `tuple[tuple[Expr, ...], ...]`, `Expr | None`); every other field is data.
* `intern=False` (symbols, statements) gives each construction a new identity.
* A class may define `_derive(self) -> object`; it runs once per new node, checks the fields and
  returns the value of the slot `derived`.
* The slot `fact` is free for one thing that is often asked about one kind of node, such as
  the linear form of an index. It is set once, follows from the fields alone, and does not hold the
  node itself: it dies with the node.
* The table is weak. Threads may make nodes at the same time: for equal fields all get one node.
"""

from __future__ import annotations

import os
import re
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import chain, islice
from typing import Any, ClassVar, Self, dataclass_transform

_table: dict[tuple[Any, ...], weakref.ref[Node]] = {}
_node_names: set[str] = set()
# Held while an entry is removed or replaced. To look one up, or to add one for a new key, is one
# step of CPython's dictionary.
_removing = threading.RLock()


def _after_fork() -> None:
    """Reset the lock: the parent's other threads, which may hold it, do not exist in a child."""
    global _removing
    _removing = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Entry(weakref.ref["Node"]):
    """A weak reference that knows its key, so that the entry of a dead node can be removed."""

    __slots__ = ("key",)
    key: tuple[Any, ...]


# Entries of dead nodes, until the next new node removes them. A callback in Python would do it at
# once, but a Ctrl-C during such a callback is printed and lost.
_dead: list[_Entry] = []


def _remove_dead() -> None:
    with _removing:
        while _dead:
            # A constructor that was interrupted leaves an entry without a key.
            key = getattr(_dead.pop(), "key", ())
            entry = _table.get(key)
            if entry is not None and entry() is None:
                del _table[key]
            del key, entry  # the key holds the node's children, which may die now


def _settled(entry: _Entry, node: Node) -> Node:
    """The node of a key that has another entry: that entry's node, or `node` if that one died."""
    with _removing:
        while (found := _table.setdefault(entry.key, entry)) is not entry:
            other = found()
            if other is not None:
                return other
            del _table[entry.key]
    return node


def exact(value: object) -> object:
    """The part of an intern key that tells `0.0` from `-0.0`, `1` from `True`, and NaNs by bits."""
    if isinstance(value, float):
        return ("f", struct.pack("<d", value))
    if isinstance(value, complex):
        return ("c", struct.pack("<dd", value.real, value.imag))
    return (type(value), value)


def _annotations(namespace: dict[str, Any]) -> dict[str, str]:
    """Own annotations of a class body as text, on every supported Python."""
    found = namespace.get("__annotations__")
    if found is None and sys.version_info >= (3, 14):
        import annotationlib

        annotate = annotationlib.get_annotate_from_class_namespace(namespace)
        if annotate is not None:
            found = annotationlib.call_annotate_function(
                annotate, annotationlib.Format.STRING
            )
    return {
        name: text.__name__
        if type(text) is type or isinstance(text, NodeMeta)
        else str(text)
        for name, text in (found or {}).items()
        if "ClassVar" not in str(text)
    }


def _is_child(text: str) -> bool:
    return any(word in _node_names for word in re.findall(r"\w+", text))


def _generate(name: str, fields: dict[str, str], intern: bool, derive: bool) -> str:
    """Source of `__new__`, `children` and `map` for one class."""
    args = "".join(f", {f}" for f in fields)
    keys = "".join(
        f"exact({f}), " if "float" in t else f"{f}, " for f, t in fields.items()
    )
    lines = [f"def __new__(cls{args}):"]
    if intern:
        lines += [
            f"    key = (cls, {keys})",
            "    entry = table.get(key)",
            "    if entry is not None:",
            "        node = entry()",
            "        if node is not None:",
            "            return node",
        ]
        lines += ["    if dead:", "        remove_dead()"]
    lines.append("    node = new(cls)")
    lines += [f"    set_{f}(node, {f})" for f in fields]
    if derive:
        lines.append("    set_derived(node, node._derive())")
    if intern:
        lines += [
            "    entry = Entry(node, bury)",
            "    entry.key = key",
            "    if add(key, entry) is not entry:",
            "        return settled(entry, node)",
        ]
    lines += ["    return node", "def children(self):"]
    kids = {f: t for f, t in fields.items() if _is_child(t)}
    parts = []
    for f, t in kids.items():
        if t.startswith("tuple[tuple"):
            parts.append(f"*chain(*self.{f})")
        elif t.startswith("tuple"):
            parts.append(f"*self.{f}")
        elif "None" in t:
            parts.append(f"*(() if self.{f} is None else (self.{f},))")
        else:
            parts.append(f"self.{f}")
    lines.append(f"    return ({', '.join(parts)}{',' if parts else ''})")
    lines += _map_source(fields, kids)
    return "\n".join(lines)


def _map_source(fields: dict[str, str], kids: dict[str, str]) -> list[str]:
    """Lines of `map`: the node itself if the function changes none of its children."""
    lines, changed = ["def map(self, f):"], []
    for f, t in kids.items():
        lines.append(f"    old_{f} = self.{f}")
        if t.startswith("tuple[tuple"):
            lines.append(
                f"    new_{f} = tuple([tuple([f(c) for c in row]) for row in old_{f}])"
            )
            changed.append(
                f"any([a is not b for a, b in zip(chain(*old_{f}), chain(*new_{f}))])"
            )
        elif t.startswith("tuple"):
            lines.append(f"    new_{f} = tuple([f(c) for c in old_{f}])")
            changed.append(
                f"any([a is not b for a, b in zip(old_{f}, new_{f})]) "
                f"or len(old_{f}) != len(new_{f})"
            )
        else:
            guard = f" if old_{f} is not None else None" if "None" in t else ""
            lines.append(f"    new_{f} = f(old_{f}){guard}")
            changed.append(f"new_{f} is not old_{f}")
    if kids:
        args = ", ".join(f"new_{f}" if f in kids else f"self.{f}" for f in fields)
        lines.append(f"    if {' or '.join(changed)}:")
        lines.append(f"        return self.__class__({args})")
    return [*lines, "    return self"]


@dataclass_transform(frozen_default=True, eq_default=False)
class NodeMeta(type):
    """Builds a node class from its annotations; see the module's docstring."""

    def __new__(
        mcls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        intern: bool = True,
    ) -> NodeMeta:
        inherited: dict[str, str] = {}
        for base in bases:
            inherited |= getattr(base, "_fields", {})
        own = _annotations(namespace)
        slots = tuple(own)
        if not bases:
            slots += ("__weakref__", "derived", "fact")
        namespace["__slots__"] = slots
        _node_names.add(name)
        fields = inherited | own
        namespace["_fields"] = fields
        namespace["_child_fields"] = frozenset(
            f for f, t in fields.items() if _is_child(t)
        )
        namespace["__match_args__"] = tuple(fields)
        cls = super().__new__(mcls, name, bases, namespace)
        cls._intern = intern  # type: ignore[attr-defined]
        derive = getattr(cls, "_derive", None) is not None
        scope: dict[str, Any] = {
            "table": _table,
            "add": _table.setdefault,
            "settled": _settled,
            "Entry": _Entry,
            "bury": _dead.append,
            "dead": _dead,
            "remove_dead": _remove_dead,
            "exact": exact,
            "chain": chain,
            "new": object.__new__,
        }
        for f in fields:
            scope[f"set_{f}"] = getattr(cls, f).__set__
        scope["set_derived"] = cls.derived.__set__  # type: ignore[attr-defined]
        source = _generate(name, fields, intern, derive)
        exec(compile(source, f"<node {name}>", "exec"), scope)
        cls.__new__ = scope["__new__"]  # type: ignore[method-assign]
        for method in ("children", "map"):
            setattr(cls, method, scope[method])
        return cls

    def __init__(cls, *args: Any, **options: Any) -> None:
        super().__init__(*args)


class Node(metaclass=NodeMeta):
    """Base of every node. Fields are read-only; `==` is identity."""

    _fields: ClassVar[dict[str, str]]
    _child_fields: ClassVar[frozenset[str]]
    _intern: ClassVar[bool]
    _derive: ClassVar[Callable[[Any], object] | None] = None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"{type(self).__name__}.{name} is read-only; use replace()"
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} is read-only")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), tuple(getattr(self, f) for f in self._fields))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def children(self) -> tuple[Node, ...]:
        """Direct child nodes, in field order."""
        raise AssertionError("generated per class")

    def map(self, f: Callable[[Any], Any]) -> Self:
        """This node with `f` applied to each child; the same object if nothing changed."""
        raise AssertionError("generated per class")

    def replace(self, **fields: Any) -> Self:
        """This node with some fields changed."""
        unknown = set(fields) - set(self._fields)
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {sorted(unknown)}")
        return type(self)(*(fields.get(f, getattr(self, f)) for f in self._fields))

    def twin(self) -> Self:
        """Another node with the same fields, which is not interned."""
        made = object.__new__(type(self))
        derived = () if self._derive is None else ("derived",)
        for f in (*self._fields, *derived):
            object.__setattr__(made, f, getattr(self, f))
        return made


keep_fact: Callable[[Node, object], None] = Node.fact.__set__  # type: ignore[attr-defined]


def postorder(root: Node, known: Iterable[Node] = ()) -> Iterator[Node]:
    """Each distinct node below `root` once, children first, without recursion.

    known: nodes that are left out, with what is below them alone.
    """
    return unseen(root, set(known))


def unseen(root: Node, seen: set[Node]) -> Iterator[Node]:
    """As `postorder`, the nodes that are not `seen`, which are seen from then on.

    Several roots that share nodes are walked in the time of one.
    """
    stack: list[Node | None] = [root]
    while stack:
        node = stack.pop()
        if node is None:  # the node below it on the stack has had its children
            yield stack.pop()  # type: ignore[misc]
        elif node not in seen:
            seen.add(node)
            children = node.children()
            if children:
                stack += (node, None, *children[::-1])
            else:
                yield node


def has_nodes(root: Node, count: int) -> bool:
    """Whether there are at least `count` distinct nodes at and below `root`."""
    waiting = [root]
    for _ in range(count):  # of the tree, in which shared nodes occur several times
        if not waiting:
            return False
        waiting += waiting.pop().children()
    return _has_distinct(root, count)


@lru_cache(maxsize=256)
def _has_distinct(root: Node, count: int) -> bool:
    """As `has_nodes`, but cached, since the same large terms are queried repeatedly."""
    return sum(1 for _ in islice(postorder(root), count)) == count


class Rebuilder:
    """Rebuilds several roots bottom-up, each distinct node of all of them once.

    change: from a node whose children are already replaced to the node in its place.
    """

    def __init__(self, change: Callable[[Any], Any]) -> None:
        self._change = change
        self._done: dict[Node, Any] = {}
        self._seen: set[Node] = set()

    def __call__(self, root: Any) -> Any:
        done, change = self._done, self._change
        if root in done:
            return done[root]
        known = done.__getitem__
        for node in unseen(root, self._seen):
            done[node] = change(node.map(known))
        return done[root]


def transform(root: Any, f: Callable[[Any], Any]) -> Any:
    """Rebuild a DAG bottom-up: `f` sees each distinct node once, its children already replaced."""
    done: dict[Node, Any] = {}
    for node in postorder(root):
        done[node] = f(node.map(done.__getitem__))
    return done[root]


def substitute(root: Any, mapping: dict[Any, Any]) -> Any:
    """Replace nodes by identity, everywhere below `root`, in one pass."""
    if not mapping:
        return root
    if not root.children():
        return mapping.get(root, root)
    done: dict[Node, Any] = dict(mapping)
    for node in postorder(root):
        if node not in done:
            done[node] = node.map(done.__getitem__)
    return done[root]


def instances(root: Any, var: Node, values: Iterable[Node]) -> Iterator[Any]:
    """`substitute(root, {var: value})` for each value; visits unaffected nodes only once."""
    changing = {var: None}
    for node in postorder(root):
        if not changing.keys().isdisjoint(node.children()):
            changing[node] = None
    del changing[var]
    same = {child: child for node in changing for child in node.children()}
    same[root] = root
    for value in values:
        done = {**same, var: value}
        for node in changing:
            done[node] = node.map(done.__getitem__)
        yield done[root]
