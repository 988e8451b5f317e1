"""A rewrite rule of Lift: a left side, a right side and conditions, as data.

Like `ir.rewrite.Rule`, but over functions: a rule is matched at a site, which provides the types of
the holes' bindings and the context, and it may have parameters: lengths that only occur on its
right side, such as a tile size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import int64
from tilewright.base.errors import TilewrightError
from tilewright.base.text import columns
from tilewright.expr.nodes import Expr, Var, const
from tilewright.ir.node import postorder
from tilewright.lift import lengths
from tilewright.lift.conditions import RuleMatch, SideCondition
from tilewright.lift.lambdas import same
from tilewright.lift.match import (
    Bindings,
    FunHole,
    PatternMismatch,
    fill,
    match,
    match_types,
    show,
)
from tilewright.lift.nodes import Apply, Fun, IndexFun, Lambda, Part, Term
from tilewright.lift.sites import IterationLength, Site, show_path
from tilewright.lift.types import Type

Sizes = Mapping[str, int | Expr]
Given = tuple[lengths.Condition, ...]


class RuleError(TilewrightError):
    """A rule does not apply: `matched` tells a side condition that fails from another shape."""

    code = "TW-LIFT-RULE"
    matched: bool = False


@dataclass(frozen=True, eq=False)
class Rule:
    """`left` becomes `right` where all of `when` hold.

    left, right: terms with holes. Lengths that occur on the right or in `when` only are parameters.
    reason: why it is right, where the sides do not show it.
    """

    name: str
    left: Term
    right: Term
    when: tuple[SideCondition, ...] = ()
    reason: str = ""

    @cached_property
    def parameters(self) -> tuple[Var, ...]:
        """The lengths to be given when the rule is applied."""
        known = set(size_vars([self.left]))
        return tuple(v for v in size_vars([self.right, *self.when]) if v not in known)

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Name, left, right, conditions as text: a row of a table."""
        return (
            self.name,
            show(self.left),
            show(self.right),
            " and ".join(map(str, self.when)),
        )

    def __str__(self) -> str:
        name, left, right, when = self.cells
        return f"{name}: {left} => {right}{f'  when {when}' if when else ''}"

    def apply(
        self,
        site: Site,
        sizes: Sizes | None = None,
        given: Given = (),
    ) -> Fun:
        """The site's program after the rule.

        sizes: a number or length per parameter. given: conditions on lengths taken as known.
        Raises RuleError naming what does not match, or the side condition that fails.
        """
        at = site.opened
        assert isinstance(at.node, Term)
        try:
            return at.replaced(self._rewrite(at, at.node, sizes or {}, given))
        except PatternMismatch as error:
            raise self._error(site, str(error), matched=False) from None

    def attempt(
        self,
        site: Site,
        sizes: Sizes,
        given: Given = (),
    ) -> Fun | None:
        """As `apply`, None where the rule does not apply."""
        at = site.opened
        assert isinstance(at.node, Term)
        if not may_match(self.left, at.node):
            return None
        try:
            return at.replaced(self._rewrite(at, at.node, sizes, given))
        except (PatternMismatch, RuleError):
            return None

    def _rewrite(
        self,
        site: Site,
        term: Term,
        sizes: Sizes,
        given: Given,
    ) -> Term:
        found = Bindings()
        if not may_match(self.left, term):
            raise PatternMismatch(term, " does not match ", self.left)
        match(self.left, term, found)
        match_types(self.left, found, site.type_of, site.result_of)
        self._take(sizes, found, site)
        place = RuleMatch(found, site, given)
        for condition in self.when:
            try:
                refusal = condition.refusal(place)
            except TilewrightError as error:
                refusal = str(error)
            if refusal is not None:
                raise self._error(site, f"{condition} fails: {refusal}", matched=True)
        new: Term = fill(self.right, found)
        if same(new, term):
            raise self._error(site, "nothing changes", matched=True)
        if any(isinstance(v, IterationLength) for v in size_vars([new])):
            raise self._error(
                site, "the right side needs a length of one iteration", matched=True
            )
        try:
            after = site.type_of(new)
        except TilewrightError as error:
            raise self._error(site, str(error), matched=True) from error
        before = site.type_of(term)
        if after is not before:
            raise self._error(
                site, f"the type {before!r} becomes {after!r}", matched=True
            )
        return new

    def _take(self, sizes: Sizes, found: Bindings, site: Site) -> None:
        wanted = {v.name: v for v in self.parameters}
        if set(sizes) != set(wanted):
            needs = ", ".join(wanted) or "none"
            given = ", ".join(sizes) or "none"
            raise self._error(
                site, f"its parameters are {needs}; given: {given}", matched=False
            )
        for name, value in sizes.items():
            found.sizes[wanted[name]] = (
                const(value, int64) if isinstance(value, int) else value
            )

    def _error(self, site: Site, message: str, matched: bool) -> RuleError:
        error = RuleError(message, where=f"rule {self.name} at {show_path(site.path)}")
        error.matched = matched
        return error


def may_match(pattern: Term, term: Term) -> bool:
    """A quick look at the functions that are applied, before the match itself."""
    if not isinstance(pattern, Apply) or isinstance(pattern.fun, FunHole):
        return True
    if not isinstance(term, Apply):
        return False
    if not isinstance(term.fun, type(pattern.fun)):
        return isinstance(term.fun, Lambda)
    return len(pattern.args) == len(term.args) and all(
        map(may_match, pattern.args, term.args)
    )


def table(rules: Iterable[Rule]) -> str:
    """The rules as rows: name, left, right, conditions."""
    return columns([rule.cells for rule in rules])


def size_vars(values: Iterable[Any]) -> tuple[Var, ...]:
    """The length variables in patterns, types and conditions, each once."""
    found: dict[Var, None] = {}
    for value in values:
        for v in _vars(value):
            found[v] = None
    return tuple(found)


def _vars(value: Any) -> Iterable[Var]:
    match value:
        case SideCondition(_, args):
            for a in args:
                yield from _vars(a) if isinstance(a, Expr | tuple) else ()
        case tuple():
            for v in value:
                yield from _vars(v)
        case Expr():
            yield from (v for v in postorder(value) if isinstance(v, Var))
        case Part() | Type() | IndexFun():
            for name in value._fields:
                yield from _vars(getattr(value, name))
