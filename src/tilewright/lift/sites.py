"""Positions in a program: a path of child positions, with the facts known there.

A site is a term, or a function passed to a pattern (`f` of `Map(f)`). An applied function is not a
separate site: the application is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from tilewright.base.errors import InputError
from tilewright.lift import infer
from tilewright.lift.lambdas import abstraction, opened
from tilewright.lift.nodes import (
    Apply,
    Fun,
    Iterate,
    Lambda,
    Param,
    Part,
    ScalarFun,
    Term,
    To,
    free_params,
)
from tilewright.lift.types import Type

Path = tuple[int, ...]
# Types of terms and functions that are kept for the programs to come.
_KNOWN = 50_000


@dataclass(frozen=True, eq=False)
class Site:
    """The part of `root` at `path`.

    above: the parts around it, outermost first. scope: the types in sight. args: the types that a
    function is applied to; None for a term. params: set where the node is the body of a function
    at the path, see `opened`.
    """

    root: Fun
    path: Path
    node: Part
    above: tuple[Part, ...]
    scope: infer.Scope
    args: tuple[Type, ...] | None = None
    params: tuple[Param, ...] | None = None

    @cached_property
    def children(self) -> tuple[Site, ...]:
        """The sites one step below, in order; none where an iteration changes its type."""
        if isinstance(self.node, Iterate) and not self._keeps_type(self.node):
            return ()
        return tuple(
            self._child(n)
            for n, part in enumerate(self.node.children())
            if isinstance(part, Part) and not self._is_bound(part)
        )

    def child(self, n: int) -> Site:
        """The site of child `n` of the node. Raises InputError if there is none."""
        for found in self.children:
            if found.path[-1] == n:
                return found
        raise InputError(
            f"{self.node!r} has no part {n}",
            where=show_path(self.path),
            hint=f"its parts are 0 to {len(self.node.children()) - 1}",
        )

    def _child(self, n: int) -> Site:
        parts = self.node.children()
        part: Any = parts[n]
        scope = self.scope
        args = None
        if isinstance(self.node, Lambda) and n == len(parts) - 1:
            types = infer.unpacked(self.node, self.args or ())
            scope = scope.inner(self.node.params, types)
        elif isinstance(part, Fun):
            args = self._arguments()
        return Site(
            self.root, (*self.path, n), part, (*self.above, self.node), scope, args
        )

    def type_of(self, term: Term) -> Type:
        """The type of a term over the variables in scope here."""
        return infer.type_of(term, self.scope)

    def result_of(self, f: Fun, args: tuple[Type, ...]) -> Type:
        """The type of a function's result."""
        return infer.result(f, args, self.scope)

    def replaced(self, part: Any) -> Fun:
        """The root with `part` at this place."""
        if self.params is not None:
            part = abstraction(self.params, part)
        return _put(self.root, self.path, part)  # type: ignore[no-any-return]

    @cached_property
    def opened(self) -> Site:
        """The site of a function as the site of its body on fresh arguments; a term's site is
        unchanged."""
        if self.args is None:
            return self
        assert isinstance(self.node, Fun)
        params, body = opened(self.node, len(self.args))
        scope = self.scope.inner(params, self.args)
        return Site(self.root, self.path, body, self.above, scope, None, params)

    @property
    def is_place(self) -> bool:
        """Whether rules apply here: a term, or a function that a pattern is given."""
        if isinstance(self.node, Term):
            return not isinstance(self.node, Param)
        if not self.above or isinstance(self.node, Lambda | ScalarFun):
            return False
        return not isinstance(self.above[-1], Apply | To)

    def _keeps_type(self, node: Iterate) -> bool:
        assert self.args is not None
        return (self.result_of(node.f, self.args),) == self.args

    def _is_bound(self, part: Part) -> bool:
        return isinstance(self.node, Lambda) and part is not self.node.body

    def _arguments(self) -> tuple[Type, ...]:
        """The types of the arguments of the function in this node."""
        if isinstance(self.node, Apply):
            return tuple(self.type_of(a) for a in self.node.args)
        assert self.args is not None
        return infer.arguments_of_body(self.node, self.args, self.scope)


@lru_cache(maxsize=512)
def root_site(program: Fun) -> Site:
    """The place of the whole program, a Lambda whose parameters carry types.

    Raises InputError if the types of the program do not fit.
    """
    free = tuple(p for p in free_params(program) if p.type is not None)
    scope = _scope(free)
    if len(scope.known) + len(scope.functions) > _KNOWN:
        _scope.cache_clear()
        scope = _scope(free)
    types, _ = infer.infer_in(program, scope)
    return Site(program, (), program, (), scope, types)


@lru_cache(maxsize=16)
def _scope(free: tuple[Param, ...]) -> infer.Scope:
    """What programs over these free parameters have in common: one changes into the next."""
    return infer.Scope({p: p.type for p in free if p.type is not None})


def site(program: Fun, path: Path) -> Site:
    """The place at `path`. Raises InputError if there is none."""
    at = root_site(program)
    for n in path:
        at = at.child(n)
    return at


def walk(at: Site) -> Iterator[Site]:
    """The site and all below it, outermost first, left to right."""
    yield at
    for child in at.children:
        yield from walk(child)


def show_path(path: Path) -> str:
    """`2.0.1`; `top` for the whole."""
    return ".".join(map(str, path)) or "top"


def parse_path(text: str) -> Path:
    """The path that `show_path` shows."""
    if text == "top":
        return ()
    return tuple(map(int, text.split(".")))


def _put(node: Any, path: Path, part: Part) -> Any:
    if not path:
        return part
    children = list(node.children())
    children[path[0]] = _put(children[path[0]], path[1:], part)
    following = iter(children)
    return node.map(lambda _: next(following))
