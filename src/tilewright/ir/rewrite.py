"""Rewrite rules as data: rows of (name, left, right, when), compiled, printed, proved and traced.

A pattern is an ordinary node with holes. A row has four uses: it is compiled to Python source (one
function per kind of root, visible in tracebacks), printed in the documentation, proved by tests,
and named by an event each time it fires.

A `NodeFamily` defines literals and types of its nodes; this file only knows nodes.
"""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from functools import cached_property
from typing import Any, Protocol

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import TilewrightError
from tilewright.base.events import emit
from tilewright.base.text import columns
from tilewright.ir.node import Node

Rewrite = Callable[[Any], Any]
# A step of a compiled match: ("let", name, source) or ("if", test, "").
Step = tuple[str, str, str]
GENERATIONS = 500


class RewriteLoopError(TilewrightError):
    """A rule set does not terminate on some node; `rules` names the rules that fire repeatedly."""

    code = "TW-REWRITE-LOOP"
    rules: tuple[str, ...] = ()


class NodeFamily(Protocol):
    """How the leaves and types of one family of nodes are matched and built, as Python source.

    `at` is the source of a matched node; `places` maps pattern nodes to such sources.
    """

    scope: Mapping[str, object]
    commutative: frozenset[type[Node]]

    def hole(self, pattern: Node, at: str) -> list[str] | None:
        """Tests whether a hole matches; None if `pattern` is not a hole."""

    def literal(self, pattern: Node, at: str) -> list[str] | None:
        """Tests for a literal; None if `pattern` is not a literal."""

    def types(self, places: Sequence[tuple[Node, str]]) -> list[str]:
        """Tests of the types of the matched nodes, run before the guards."""

    def facts(self, places: Sequence[tuple[Node, str]]) -> list[str]:
        """Costly tests of the matched nodes, run after the guards."""

    def guard(self, condition: Node, places: Mapping[Node, str]) -> str:
        """A condition of `when` as a test."""

    def build(
        self, template: Node, places: Mapping[Node, str]
    ) -> tuple[list[Step], str] | None:
        """A literal or computed part of the right side; None if it is built as any node is."""


@dataclass(frozen=True, eq=False, slots=True)
class Rule:
    """`left` becomes `right` if all of `when` hold.

    left: a pattern, or a node class for any node of that kind. right: a template over the holes of
    `left`, or a function of the matched node that may decline with None. commute: also match with
    the operands of commutative nodes in `left` swapped. reason: why the rule is right, needed if it
    is not proved (always for a function).
    """

    name: str
    left: Node | type[Node]
    right: Node | Rewrite
    when: Sequence[Node] = ()
    commute: bool = False
    reason: str = ""

    @property
    def kind(self) -> type[Node]:
        """The class of the nodes at whose root the rule works."""
        return type(self.left) if isinstance(self.left, Node) else self.left

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Name, left, right, conditions as text: a row of a table."""
        right = self.right
        text = (
            repr(right)
            if isinstance(right, Node)
            else f"<{getattr(right, '__name__', right)}>"
        )
        left = repr(self.left) if isinstance(self.left, Node) else self.left.__name__
        return self.name, left, text, " and ".join(map(repr, self.when))

    def __str__(self) -> str:
        name, left, right, when = self.cells
        return f"{name}: {left} -> {right}{f'  when {when}' if when else ''}"


@dataclass(frozen=True, eq=False)
class RuleSet:
    """A named, ordered table of rules; the first that matches wins."""

    name: str
    rules: tuple[Rule, ...]
    family: NodeFamily = field(repr=False)

    def __post_init__(self) -> None:
        twice = [
            n for n, count in Counter(r.name for r in self.rules).items() if count > 1
        ]
        if twice:
            raise ValueError(
                f"rule set {self.name}: names used twice: {', '.join(twice)}"
            )

    def __add__(self, other: RuleSet) -> RuleSet:
        """Both tables, these rows first."""
        return RuleSet(
            f"{self.name}+{other.name}", self.rules + other.rules, self.family
        )

    def __str__(self) -> str:
        return columns([rule.cells for rule in self.rules])

    @cached_property
    def functions(self) -> dict[type[Node], Rewrite]:
        """Per kind of root: the function from a node to its replacement, or None."""
        return _compile(self, traced=False)

    @cached_property
    def traced(self) -> dict[type[Node], Callable[[Any], tuple[Rule, Any] | None]]:
        """The same functions, returning the rule along with the replacement."""
        return _compile(self, traced=True)

    def at_root(self, node: Node) -> Any:
        """`node` after one rewrite at its root, or None if no rule matches."""
        function = self.functions.get(type(node))
        return None if function is None else function(node)


_tracing = False


@contextmanager
def tracing() -> Iterator[None]:
    """Inside the block every rewrite is an event `rule` (set, rule, before, after) with its text.

    A compile rewrites hundreds of thousands of times, so tracing is opt-in: listeners for passes
    alone do not pay for it.
    """
    global _tracing
    before, _tracing = _tracing, True
    try:
        yield
    finally:
        _tracing = before


def normalize(
    root: Any,
    rules: RuleSet,
    *,
    memo: dict[Any, Any] | None = None,
    decide: Rewrite | None = None,
    generations: int = GENERATIONS,
) -> Any:
    """The normal form of `root`: bottom-up until no rule matches anywhere; no recursion.

    memo: normal forms already known, extended in place. decide: returns a replacement or None if no
    rule matches. generations: the longest chain of rewrites; beyond it RewriteLoopError names the
    rules that fire.
    """
    done: dict[Any, Any] = {} if memo is None else memo
    functions = _observed(rules) if _tracing else rules.functions
    # (node, generation, None): to be normalized; (node, _, other): has the same result as other.
    stack: list[tuple[Any, int, Any]] = [(root, 0, None)]
    push, known = stack.append, done.__getitem__
    while stack:
        node, generation, other = stack.pop()
        if other is not None:
            done[node] = done[other]
            continue
        if node in done:
            continue
        try:
            new = node.map(known)
        except KeyError:
            push((node, generation, None))
            stack += [(c, generation, None) for c in node.children() if c not in done]
            continue
        if new is not node and new in done:
            done[node] = done[new]
            continue
        function = functions.get(new.__class__)
        result = None if function is None else function(new)
        if result is None and decide is not None:
            result = decide(new)
        if result is None:
            done[node] = done[new] = new
        elif result in done:
            done[node] = done[result]
        else:
            if generation >= generations:
                raise _loop(rules, new, decide)
            push((node, 0, result))
            push((result, generation + 1, None))
    return done[root]


def _observed(rules: RuleSet) -> dict[type[Node], Rewrite]:
    """The rule functions, emitting an event per rewrite."""

    def observe(function: Callable[[Any], tuple[Rule, Any] | None]) -> Rewrite:
        def run(node: Any) -> Any:
            fired = function(node)
            if fired is None:
                return None
            rule, result = fired
            emit(
                "rule",
                set=rules.name,
                rule=rule.name,
                before=repr(node),
                after=repr(result),
            )
            return result

        return run

    return {kind: observe(function) for kind, function in rules.traced.items()}


def _loop(rules: RuleSet, node: Any, decide: Rewrite | None) -> RewriteLoopError:
    """The error for a node on which the rules do not end, with the rules that keep firing."""
    fired: list[str] = []
    current = node
    for _ in range(64):
        # The next place that still changes: the node itself, or the first below it.
        for at in (current, *current.children()):
            function = rules.traced.get(type(at))
            found = None if function is None else function(at)
            if found is not None:
                fired.append(found[0].name)
                current = found[1]
                break
        else:
            break
    names = [n for n, _ in Counter(fired).most_common(4)] or ["the decision procedure"]
    error = RewriteLoopError(
        f"rule set {rules.name} does not terminate; rules that fire repeatedly: {', '.join(names)}",
        where=repr(node)[:200],
        hint="Give one of them a guard, or let it move terms in one direction only",
    )
    error.rules = tuple(names)
    return error


# -- compiling


def _compile(rules: RuleSet, traced: bool) -> dict[type[Node], Any]:
    by_kind: dict[type[Node], list[tuple[int, list[Step], str]]] = {}
    scope: dict[str, Any] = dict(rules.family.scope)
    for n, rule in enumerate(rules.rules):
        scope[f"rule{n}"], scope[f"apply{n}"] = rule, rule.right
        for left in _lefts(rule, rules.family.commutative):
            steps, result = _Match(rules.family, scope).row(rule, left, f"apply{n}")
            by_kind.setdefault(rule.kind, []).append((n, steps, result))
    functions = {}
    for kind, rows in by_kind.items():
        source = _source(kind, rows, traced)
        filename = f"<rules {rules.name}: {kind.__name__}{' traced' if traced else ''}>"
        linecache.cache[filename] = (
            len(source),
            None,
            source.splitlines(True),
            filename,
        )
        exec(compile(source, filename, "exec"), scope)
        functions[kind] = scope[f"rewrite_{kind.__name__}"]
    return functions


def _lefts(rule: Rule, commutative: Iterable[type[Node]]) -> Sequence[Node | None]:
    if not isinstance(rule.left, Node):
        return [None]
    return _orders(rule.left, commutative) if rule.commute else [rule.left]


def _orders(pattern: Node, commutative: Iterable[type[Node]]) -> list[Node]:
    """The pattern with the operands of its commutative nodes in every order."""
    children = pattern.children()
    found = [pattern]
    for n, child in enumerate(children):
        variants = _orders(child, commutative)
        found = [
            _with_child(p, n, v) if v is not child else p
            for p in found
            for v in variants
        ]
    if type(pattern) in commutative and children[0] is not children[1]:
        found += [type(p)(*reversed(p.children())) for p in found]
    return found


def _with_child(pattern: Node, n: int, child: Node) -> Node:
    children = iter([*pattern.children()[:n], child, *pattern.children()[n + 1 :]])
    return pattern.map(lambda _: next(children))


class _Match:
    """Writes the steps that match one left side and build its right side."""

    def __init__(self, family: NodeFamily, scope: dict[str, Any]) -> None:
        self.family = family
        self.scope = scope
        self.steps: list[Step] = []
        self.places: dict[Node, str] = {}
        self.order: list[tuple[Node, str]] = []

    def row(self, rule: Rule, left: Node | None, action: str) -> tuple[list[Step], str]:
        """The steps, and the source of the result (empty if `action` computes it)."""
        if left is not None:
            self._match(left)
        self._test(self.family.types(self.order))
        self._test([self.family.guard(g, self.places) for g in rule.when])
        self._test(self.family.facts(self.order))
        if isinstance(rule.right, Node):
            return self.steps, self._build(rule.right)
        self.steps.append(("let", "found", f"{action}(e)"))
        self._test(["found is not None"])
        return self.steps, "found"

    def _test(self, tests: Iterable[str]) -> None:
        self.steps += [("if", test, "") for test in tests]

    def _match(self, left: Node) -> None:
        # Breadth first, last operand first: constants are on the right and distinguish rules.
        queue = [(left, "e")]
        for pattern, at in queue:
            self.order.append((pattern, at))
            taken = self.family.hole(pattern, at)
            if taken is not None:
                bound = self.places.setdefault(pattern, at)
                self._test(taken if bound == at else [f"{at} is {bound}"])
                continue
            literal = self.family.literal(pattern, at)
            if literal is not None:
                self._test(literal)
                continue
            if at != "e":
                self._test([f"{at}.__class__ is {self._named(type(pattern))}"])
            queue += reversed(self._fields(pattern, at))

    def _fields(self, pattern: Node, at: str) -> list[tuple[Node, str]]:
        """Names the operands of a matched node; tests its data fields."""
        found: list[tuple[Node, str]] = []
        for f in pattern._fields:
            value = getattr(pattern, f)
            if f not in pattern._child_fields:
                self._test([f"{at}.{f} == {self._constant(value)}"])
            elif isinstance(value, tuple):
                self._test([f"len({at}.{f}) == {len(value)}"])
                for n, item in enumerate(value):
                    self.steps.append(("let", f"{at}_{f}{n}", f"{at}.{f}[{n}]"))
                    found.append((item, f"{at}_{f}{n}"))
            else:
                self.steps.append(("let", f"{at}_{f}", f"{at}.{f}"))
                found.append((value, f"{at}_{f}"))
        return found

    def _build(self, template: Node) -> str:
        if template in self.places:
            return self.places[template]
        special = self.family.build(template, self.places)
        if special is not None:
            self.steps += special[0]
            return special[1]
        parts = []
        for f in template._fields:
            value = getattr(template, f)
            if f not in template._child_fields:
                parts.append(self._constant(value))
            elif isinstance(value, tuple):
                parts.append(f"({''.join(self._build(v) + ', ' for v in value)})")
            else:
                parts.append(self._build(value))
        return f"{self._named(type(template))}({', '.join(parts)})"

    def _named(self, kind: type[Node]) -> str:
        self.scope[kind.__name__] = kind
        return kind.__name__

    def _constant(self, value: object) -> str:
        name = f"data{len(self.scope)}"
        self.scope[name] = value
        return name


@dataclass(slots=True)
class _Branch:
    step: Step
    inner: list[_Branch | str] = field(default_factory=list)


def _source(
    kind: type[Node], rows: Iterable[tuple[int, list[Step], str]], traced: bool
) -> str:
    """One function; neighboring rows share the steps that they have in common."""
    top: list[_Branch | str] = []
    for n, steps, result in rows:
        level = top
        for step in steps:
            last = level[-1] if level else None
            if not (isinstance(last, _Branch) and last.step == step):
                last = _Branch(step)
                level.append(last)
            level = last.inner
        level.append(f"return rule{n}, {result}" if traced else f"return {result}")
    lines = [f"def rewrite_{kind.__name__}(e):"]
    _emit(top, 1, lines)
    return "\n".join([*lines, "    return None", ""])


def _emit(level: Sequence[_Branch | str], depth: int, lines: list[str]) -> None:
    pad = "    " * depth
    for item in level:
        if isinstance(item, str):
            lines.append(pad + item)
        elif item.step[0] == "let":
            # Names are unique per place, so a later row may see and repeat an earlier binding.
            lines.append(f"{pad}{item.step[1]} = {item.step[2]}")
            _emit(item.inner, depth, lines)
        else:
            tests = [item.step[1]]
            while len(item.inner) == 1 and isinstance(item.inner[0], _Branch):
                if item.inner[0].step[0] != "if":
                    break
                item = item.inner[0]
                tests.append(item.step[1])
            lines.append(f"{pad}if {' and '.join(tests)}:")
            _emit(item.inner, depth + 1, lines)
