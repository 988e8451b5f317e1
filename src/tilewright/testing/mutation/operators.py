"""The faults: small changes of a syntax tree, most of which change its meaning.

Messages (raised exceptions, f-strings, docstrings), annotations, imports, `__all__`, and assertions
(`zip(strict=True)` is one) are left alone: changing them is not a fault of the program.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from tilewright.base.dataclass import dataclass

Change = Callable[[ast.AST], Iterator[ast.AST]]
# Fields from the root down; with the place in a field that is a list.
Path = tuple[tuple[str, int | None], ...]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault. name: stable under other changes of the file. path: the node's place.

    lines: the lines of the statement, or of the head of a compound one.
    """

    file: str
    function: str
    line: int
    lines: range
    operator: str
    before: str
    after: str
    name: str
    path: Path
    changed: ast.AST

    def source(self, text: str) -> str:
        """The file's `text` with the fault in it."""
        tree = ast.parse(text)
        return _with(tree, self.path, self.changed)


_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_CALLS: Final = {"any": "all", "all": "any", "min": "max", "max": "min"}


def _negate(node: ast.AST) -> Iterator[ast.AST]:
    """The other branch of a condition."""
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        changed = copy.copy(node)
        changed.test = ast.UnaryOp(ast.Not(), node.test)
        yield changed


def _drop_operand(node: ast.AST) -> Iterator[ast.AST]:
    """`a and b` without one of its conditions."""
    if isinstance(node, ast.BoolOp):
        for n in range(len(node.values)):
            rest = node.values[:n] + node.values[n + 1 :]
            yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)


def _drop_condition(node: ast.AST) -> Iterator[ast.AST]:
    """A comprehension without a condition."""
    if isinstance(node, ast.comprehension):
        for n in range(len(node.ifs)):
            changed = copy.copy(node)
            changed.ifs = node.ifs[:n] + node.ifs[n + 1 :]
            yield changed


def _drop_not(node: ast.AST) -> Iterator[ast.AST]:
    """`not a` without `not`."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand


def _compare(node: ast.AST) -> Iterator[ast.AST]:
    """A comparison that is off by one, or the opposite."""
    if isinstance(node, ast.Compare):
        for n, op in enumerate(node.ops):
            other = _COMPARISONS[type(op)]()
            yield ast.Compare(
                node.left, [*node.ops[:n], other, *node.ops[n + 1 :]], node.comparators
            )


def _calculate(node: ast.AST) -> Iterator[ast.AST]:
    """Another operator between two operands."""
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        yield ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)


def _count(node: ast.AST) -> Iterator[ast.AST]:
    """Another number; the other truth."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        name = node.value + 1
        yield ast.Constant(name)


def _call(node: ast.AST) -> Iterator[ast.AST]:
    """any for all, min for max, and the reverse."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _CALLS
    ):
        yield ast.Call(
            ast.Name(_CALLS[node.func.id], ast.Load()), node.args, node.keywords
        )


def _drop_guard(node: ast.AST) -> Iterator[ast.AST]:
    """Drop a guard that raises, returns, yields or continues."""
    ends = ast.Raise | ast.Return | ast.Continue | ast.Break
    if isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], ends):
        yield ast.Pass()


def _drop_statement(node: ast.AST) -> Iterator[ast.AST]:
    """Drop a call for its effect, or a step of a sum."""
    called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    if called or isinstance(node, ast.AugAssign):
        yield ast.Pass()


def _drop_element(node: ast.AST) -> Iterator[ast.AST]:
    """A list or set of several without one of its elements: a key that says less."""
    if isinstance(node, ast.List | ast.Set) and len(node.elts) > 2:
        for n in range(len(node.elts)):
            changed = copy.copy(node)
            changed.elts = node.elts[:n] + node.elts[n + 1 :]
            yield changed


OPERATORS: Final[dict[str, Change]] = {
    "negate": _negate,
    "drop-operand": _drop_operand,
    "drop-condition": _drop_condition,
    "drop-not": _drop_not,
    "compare": _compare,
    "calculate": _calculate,
    "count": _count,
    "call": _call,
    "drop-guard": _drop_guard,
    "drop-statement": _drop_statement,
    "drop-element": _drop_element,
}


def mutants(file: str, source: str) -> Iterator[Mutant]:
    """Every fault of the operators in a file, in order of lines.

    Names hold the function, the operator, both texts and which of equal ones it is.
    """
    tree = ast.parse(source)
    seen: dict[str, int] = {}
    for place in _places(tree, "", (), range(0)):
        for operator, change in OPERATORS.items():
            for n, changed in enumerate(change(place.node)):
                before = ast.unparse(place.node)
                after = ast.unparse(changed)
                if before == after:
                    continue
                label = f"{file}|{place.function}|{operator}|{before}|{n}"
                seen[label] = seen.get(label, 0) + 1
                name = hashlib.sha256(f"{label}|{seen[label]}".encode()).hexdigest()[
                    :12
                ]
                line = getattr(place.node, "lineno", 0)
                yield Mutant(
                    file, place.function, line, place.lines, operator, _brief(before),
                    _brief(after), name, place.path, changed,
                )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Place:
    node: ast.AST
    function: str
    path: Path
    lines: range


# Fields of nodes whose texts are for people or for type checkers.
_ANNOTATIONS: Final = frozenset(
    {"annotation", "returns", "decorator_list", "type_params"}
)
_LEFT_ALONE: Final = (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Assert)


def _places(
    node: ast.AST,
    function: str,
    path: Path,
    lines: range,
) -> Iterator[_Place]:
    if isinstance(node, _LEFT_ALONE) or _for_readers(node):
        return
    if isinstance(node, ast.stmt):
        lines = _lines(node)
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        function = f"{function}.{node.name}".lstrip(".")
    yield _Place(node, function, path, lines)
    for name, value in ast.iter_fields(node):
        if name in _ANNOTATIONS:
            continue
        children: Iterable[tuple[int | None, object]] = [(None, value)]
        if isinstance(value, list):
            children = enumerate(value)
        for n, child in children:
            if isinstance(child, ast.AST):
                yield from _places(child, function, (*path, (name, n)), lines)


def _lines(node: ast.stmt) -> range:
    """The lines of a statement, without the statements in it."""
    body = getattr(node, "body", None)
    if body:
        last = body[0].lineno - 1
    else:
        last = node.end_lineno or node.lineno
    return range(node.lineno, max(last, node.lineno) + 1)


def _for_readers(node: ast.AST) -> bool:
    """`if TYPE_CHECKING:`, `__all__ = ...`, `strict=...`."""
    if isinstance(node, ast.Assign):
        return any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
    if isinstance(node, ast.keyword):
        return node.arg == "strict"
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _with(
    tree: ast.Module,
    path: Path,
    changed: ast.AST,
) -> str:
    """The text of a tree with one node replaced."""
    parent: ast.AST = tree
    for name, n in path[:-1]:
        value = getattr(parent, name)
        if n is None:
            parent = value
        else:
            parent = value[n]
    name, n = path[-1]
    if n is None:
        setattr(parent, name, changed)
    else:
        getattr(parent, name)[n] = changed
    return ast.unparse(ast.fix_missing_locations(tree))


def _brief(text: str) -> str:
    answer = text.split()
    line = " ".join(answer)
    if len(line) <= 100:
        return line
    return line[:97] + "..."
