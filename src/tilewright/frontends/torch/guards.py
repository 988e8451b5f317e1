"""The conditions on extents under which a program is right, from the guards that PyTorch wrote.

PyTorch resolves a condition such as `x.shape[0] > y.shape[0]` when it traces, and writes down as
Python code that the program is right where it has the same result. The code is parsed here, never
run:

    guard = comparison | not guard | guard and guard | guard or guard
    term  = 3 | leaf | s0 | term + term | max(term, ...) | math.trunc(term) | ...
    leaf  = L['x']['k'][1].size()[0] | L['n'] | ...

A guard of another form is an error: what it excludes is unknown, and so are the extents that the
example inputs had, in a file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ModelError, UnsupportedError
from tilewright.runtime.conditions import (
    DEEPEST,
    AppliedFunction,
    ExtentCondition,
    Term,
)

_LONGEST: Final = 20_000
_LARGEST: Final = 1 << 64
_KEY: Final = re.compile(r"[\w./:+\- ]*")
_ASSERT: Final = "aten._assert_scalar.default"
# Of a tensor, and whether they are of one axis of it.
_PROPERTIES: Final = {"size": True, "stride": True, "storage_offset": False}

_OPERATORS: Final[Mapping[type[ast.AST], str]] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Div: "/",
    ast.Pow: "**",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.And: "and",
    ast.Or: "or",
    ast.Not: "not",
    ast.USub: "neg",
}
# Functions by PyTorch's names, and the numbers of their operands.
_FUNCTIONS: Final[Mapping[str, tuple[str, range]]] = {
    "abs": ("abs", range(1, 2)),
    "min": ("min", range(2, 1000)),
    "max": ("max", range(2, 1000)),
    "round": ("round", range(1, 3)),
    "math.trunc": ("trunc", range(1, 2)),
    "math.floor": ("floor", range(1, 2)),
    "math.ceil": ("ceil", range(1, 2)),
    "math.sqrt": ("sqrt", range(1, 2)),
    "torch._sym_sqrt": ("sqrt", range(1, 2)),
    "torch.sym_float": ("float", range(1, 2)),
}


@dataclass(frozen=True, slots=True)
class GuardLeaf:
    """A number of an argument: its size or stride along an axis, its offset, or itself.

    place: PyTorch's path to the argument, `L['x'][1]`, or the name of a symbol. what: one of
    `_PROPERTIES`; empty for the argument itself.
    """

    place: str
    what: str = ""
    axis: int = 0


Resolve = Callable[[GuardLeaf], Term]


class Unreadable(Exception):
    """A guard of a form that is not in the grammar, or about something that no input has."""


def read(guard: str, resolve: Resolve) -> Term:
    """The term that a guard's text means. resolve: the meaning of its leaves. Raises Unreadable."""
    if len(guard) > _LONGEST:
        raise Unreadable
    try:
        tree = ast.parse(guard.strip(), mode="eval").body
        return _term(tree, resolve, 0)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise Unreadable from None


def check(guard: str) -> bool:
    """Whether the text of a guard has this form, whatever it is about."""
    try:
        read(guard, lambda leaf: 1)
    except Unreadable:
        return False
    return True


def _term(node: ast.expr, resolve: Resolve, depth: int) -> Term:
    if depth > DEEPEST:
        raise Unreadable
    match node:
        case ast.Constant(value=bool() | int() | float() as number):
            if not abs(number) <= _LARGEST:
                raise Unreadable
            return int(number) if isinstance(number, bool) else number
        case ast.BinOp(left, operator, right):
            parts = [left, right]
        case ast.Compare(left, [operator], [right]):
            parts = [left, right]
        case ast.BoolOp(operator, values):
            parts = values
        case ast.UnaryOp(operator, operand):
            parts = [operand]
        case ast.Call(called, [_, *_] as operands, []):
            function, counts = _FUNCTIONS.get(ast.unparse(called), ("", range(0)))
            if len(operands) not in counts:
                raise Unreadable
            return _applied(function, operands, resolve, depth)
        case _:
            return resolve(_leaf(node))
    function = _OPERATORS.get(type(operator), "")
    if not function:
        raise Unreadable
    return _applied(function, parts, resolve, depth)


def _applied(
    function: str, operands: Sequence[ast.expr], resolve: Resolve, depth: int
) -> Term:
    parts = tuple(_term(part, resolve, depth + 1) for part in operands)
    if function == "neg" and isinstance(parts[0], int | float):
        return -parts[0]
    return AppliedFunction(function, parts)


def _leaf(node: ast.expr) -> GuardLeaf:
    """Raises Unreadable for anything else."""
    axis: int | None = None
    match node:
        case ast.Subscript(ast.Call() as call, ast.Constant(value=int(axis))):
            node = call
    match node:
        case ast.Name(name):
            return GuardLeaf(name)
        case ast.Call(ast.Attribute(place, what), [], []):
            if _PROPERTIES.get(what) != (axis is not None):
                raise Unreadable
            return GuardLeaf(_place(place, 0), what, axis or 0)
    return GuardLeaf(_place(node, 0))


def _place(node: ast.expr, depth: int) -> str:
    """The path to an argument as PyTorch writes it."""
    match node:
        case ast.Name("L") if depth:
            return "L"
        case ast.Subscript(inner, ast.Constant(value=str() | int() as key)):
            if _KEY.fullmatch(str(key)):
                return f"{_place(inner, depth + 1)}[{key!r}]"
        case ast.Attribute(inner, field):
            return f"{_place(inner, depth + 1)}.{field}"
    raise Unreadable


def conditions(program: Any, names: Mapping[str, str]) -> tuple[ExtentCondition, ...]:
    """The conditions of a `torch.export.ExportedProgram` on the extents of its inputs.

    names: for PyTorch's symbols, where the graph has others. Those that PyTorch added when it
    decomposed the program, or when rules looked at its sizes, are included.

    Raises UnsupportedError for a guard that cannot be read, ModelError for one that never holds.
    """
    extents = _Extents(program, names)
    texts = list(getattr(program, "_guards_code", None) or ())
    found = dict.fromkeys(extents.derived())
    for text in texts:
        try:
            found[ExtentCondition(read(text, extents.resolve))] = None
        except Unreadable:
            raise _unreadable(text) from None
    found |= dict.fromkeys(extents.noted())
    for condition in found:
        if not condition.names and not condition.holds({}):
            raise ModelError(
                f"the program is made for no extents: {condition} is never true",
                hint="export it again",
            )
    return tuple(c for c in found if c.names and not _is_trivial(c.term))


def _is_trivial(term: Term) -> bool:
    match term:
        case AppliedFunction("==" | "<=" | ">=", (first, second)):
            return first == second
    return False


def _unreadable(text: str) -> UnsupportedError:
    return UnsupportedError(
        f"the program is right only where {text[:200]!r}, which cannot be checked",
        hint="export it without dynamic dimensions that this is about",
    )


class _Extents:
    """The meaning of leaves: the extents of a program's inputs, by their names in the graph."""

    def __init__(self, program: Any, names: Mapping[str, str]) -> None:
        from torch.utils._sympy.printers import PythonPrinter

        self._print = PythonPrinter().doprint
        self._program = program
        self._values = _values(program)
        self._places = _places(program, self._values)
        self._names = names
        sizes = [n for v in self._values for n in getattr(v, "shape", ())]
        expressions = [n.node.expr for n in sizes if _open(n)]
        # Symbols first: they are the meaning of other expressions.
        expressions.sort(key=lambda e: not e.is_Symbol)
        self._dims = {str(e): e for e in expressions}
        self._hidden: dict[str, Term] = {}

    def derived(self) -> Iterator[ExtentCondition]:
        """The conditions on extents that are expressions of others, or of a hidden symbol."""
        for text, expression in self._dims.items():
            if expression.is_Symbol:
                continue
            name = self._names.get(text, text)
            missing = [s for s in expression.free_symbols if not self._known(s)]
            if missing:
                yield self._solved(name, expression, missing)
            else:
                yield ExtentCondition(
                    AppliedFunction("==", (name, self._read(expression)))
                )

    def _solved(
        self, name: str, expression: Any, missing: Sequence[Any]
    ) -> ExtentCondition:
        """`n % 2 == 0`, and the meaning of h, for an extent n = 2*h of a symbol that none is."""
        symbol = missing[0]
        factor = expression.coeff(symbol)
        rest = expression - factor * symbol
        if len(missing) > 1 or not (factor.is_Integer and rest.is_Integer):
            raise _unreadable(f"{name} = {expression}")
        part: Term = AppliedFunction("-", (name, int(rest))) if rest else name
        self._hidden[str(symbol)] = AppliedFunction("//", (part, int(factor)))
        return ExtentCondition(
            AppliedFunction("==", (AppliedFunction("%", (part, int(factor))), 0))
        )

    def noted(self) -> Iterator[ExtentCondition]:
        """What PyTorch's record of this process says, about the inputs alone."""
        fakes = [v for v in self._values if hasattr(v, "fake_mode")]
        environment: Any = fakes[0].fake_mode.shape_env if fakes else None
        if environment is None:
            return
        guards = environment.guards
        for expression in (*(g.expr for g in guards), *_asserted(self._program)):
            current = environment.replace(expression)
            if all(map(self._known, current.free_symbols)):
                yield ExtentCondition(self._read(current))

    def _known(self, symbol: Any) -> bool:
        return str(symbol) in self._dims or str(symbol) in self._hidden

    def _read(self, expression: Any) -> Term:
        try:
            text = self._print(expression)
        except Exception as error:  # PyTorch's printer knows not all of sympy
            raise _unreadable(str(expression)) from error
        try:
            return read(text, self.resolve)
        except Unreadable:
            raise _unreadable(text) from None

    def resolve(self, leaf: GuardLeaf) -> Term:
        """What a leaf is. Raises Unreadable if no input has it."""
        if leaf.place in self._dims:
            return self._names.get(leaf.place, leaf.place)
        if leaf.place in self._hidden:
            return self._hidden[leaf.place]
        if leaf.place not in self._places:
            raise Unreadable
        held: Any = self._places[leaf.place]
        if leaf.what:
            held = getattr(held, leaf.what, lambda: None)()
        if isinstance(held, Sequence):
            held = held[leaf.axis] if leaf.axis < len(held) else None
        if isinstance(held, int | float):
            return held
        if not hasattr(held, "node"):
            raise Unreadable
        if not _open(held):
            return int(held.node.maybe_as_int())
        return self._read(held.node.expr)


def _asserted(program: Any) -> Iterator[Any]:
    """The conditions that the program itself checks when it runs."""
    for n in program.graph.nodes:
        if n.op == "call_function" and str(n.target) == _ASSERT:
            held: Any = getattr(n.args[0], "meta", {}).get("val")
            if hasattr(held, "node"):
                yield held.node.expr


def _open(extent: Any) -> bool:
    return hasattr(extent, "node") and extent.node.maybe_as_int() is None


def _values(program: Any) -> list[Any]:
    """The user's inputs as the tracer knows them, in order: tensors without contents, numbers."""
    known = {n.name: n.meta.get("val") for n in program.graph.nodes}
    return [
        spec.arg.value if hasattr(spec.arg, "value") else known.get(spec.arg.name)
        for spec in program.graph_signature.input_specs
        if spec.kind.name == "USER_INPUT"
    ]


def _places(program: Any, values: Sequence[Any]) -> dict[str, Any]:
    """The user's inputs by PyTorch's paths to them, of either of its tracers."""
    found = {f"L['flat_args'][{n}]": value for n, value in enumerate(values)}
    signature = program.module_call_graph[0].signature
    names = getattr(signature, "forward_arg_names", None) or ()
    for path, value in zip(_paths(program, len(values)), values, strict=False):
        first, argument, *rest = path
        if first.idx == 0 and argument.idx < len(names):
            name = str(names[argument.idx])
        else:
            name = str(getattr(argument, "key", ""))
        inner = "".join(map(str, rest))
        found[f"L[{name!r}]{inner}"] = value
        # One of `*arguments`, which PyTorch names with its number.
        many = re.fullmatch(r"(.+)_(\d{1,9})", name)
        if many is not None and first.idx == 0:
            found.setdefault(f"L[{many[1]!r}][{many[2]}]{inner}", value)
    return found


def _paths(program: Any, count: int) -> Sequence[Any]:
    """The keys to each input within the tuple of arguments and the dictionary of named ones."""
    from torch.utils import _pytree as trees

    spec = program.call_spec.in_spec
    if spec is None or spec.num_leaves != count:
        return ()
    given = program.example_inputs or trees.tree_unflatten(list(range(count)), spec)
    paths = [path for path, _ in trees.tree_flatten_with_path(given)[0]]
    return paths if len(paths) == count else ()
