"""A Python function's text as statements of the loop IR (`lang/te/hybrid.py` has the language)."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Final, NoReturn

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import ALL, bool_, dtype_of, float32
from tilewright.base.errors import InputError
from tilewright.base.names import fresh
from tilewright.compute.reducer import reducer
from tilewright.expr import nodes
from tilewright.expr.nodes import (
    INDEX,
    Buffer,
    Cast,
    Expr,
    Load,
    Select,
    Var,
    const,
    matching,
)  # fmt: skip
from tilewright.ir.node import postorder
from tilewright.lang.te.syntax.functions import TABLE
from tilewright.lang.te.syntax.matching import matched
from tilewright.lang.te.syntax.nodes import Axis, Script, Tensor
from tilewright.loops.nodes import (
    GPU_AXES,
    Alloc,
    For,
    If,
    Stmt,
    Store,
    Update,
    While,
    block,
)
from tilewright.loops.walk import walk

_PLAIN: Final[dict[str, Callable[..., Any]]] = {
    "max": max,
    "min": min,
    "ceil_div": lambda a, b: -(-a // b),
}
_KINDS: Final = {
    "range": "serial",
    "parallel": "parallel",
    "vectorize": "vector",
    "unroll": "unroll",
    "const_range": "unroll",
}
_OPERATORS: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.LShift: lambda a, b: a << b,
    ast.RShift: lambda a, b: a >> b,
    ast.BitAnd: lambda a, b: a & b,
    ast.BitOr: lambda a, b: a | b,
    ast.BitXor: lambda a, b: a ^ b,
    ast.Pow: lambda a, b: nodes.call("pow", a, b) if isinstance(a, Expr) else a**b,
}
_REDUCERS: Final = {ast.Add: "add", ast.Mult: "mul"}
_DTYPES: Final = {d.name for d in ALL}
_COMPARISONS: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.Eq: lambda a, b: a.eq(b) if isinstance(a, Expr) else a == b,
    ast.NotEq: lambda a, b: a.ne(b) if isinstance(a, Expr) else a != b,
}


@dataclass(frozen=True, slots=True)
class Local:
    """A local buffer: a scalar variable, or the result of `allocate`."""

    buffer: Buffer
    scalar: bool


def read(
    function: Callable[..., Any], args: Sequence[Any], names: Sequence[str]
) -> tuple[Tensor, ...]:
    """The tensors that a function returns, made by its statements. names: of these tensors."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    if not isinstance(tree, ast.FunctionDef):
        raise InputError(
            f"{function!r} is not written by def",
            where="hybrid.script",
            hint="decorate a function of loops and assignments",
        )
    found = inspect.getclosurevars(function)
    reader = _Reader(
        (list(names) or [tree.name])[0], dict(found.globals) | dict(found.nonlocals)
    )
    parameters = [a.arg for a in tree.args.args]
    if len(parameters) != len(args):
        raise InputError(
            f"{len(args)} arguments given, {len(parameters)} expected",
            where=f"hybrid {tree.name}",
            hint=", ".join(parameters),
        )
    reader.names |= dict(zip(parameters, args, strict=True))
    reader.stored = _stored(tree)
    reader.output_names = list(names)
    with matching(matched):
        return reader.function(tree)


def _stored(tree: ast.FunctionDef) -> Counter[str]:
    """How often each variable is assigned."""
    stores = (n for n in ast.walk(tree) if isinstance(n, ast.Name))
    found = Counter(n.id for n in stores if isinstance(n.ctx, ast.Store))
    changed = (n.target for n in ast.walk(tree) if isinstance(n, ast.AugAssign))
    return found + Counter(n.id for n in changed if isinstance(n, ast.Name))


@dataclass(slots=True)
class _Reader:
    """The variables so far. label: of the operation; taken: names of its loops and buffers."""

    label: str
    names: dict[str, Any]
    taken: set[str] = field(default_factory=set)
    stored: Counter[str] = field(default_factory=Counter)
    output_names: list[str] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)
    made_outputs: dict[str, Tensor] = field(default_factory=dict)
    line: int = 0

    def fail(self, node: ast.AST, message: str, hint: str) -> NoReturn:
        line = getattr(node, "lineno", self.line)
        raise InputError(message, where=f"hybrid {self.label}, line {line}", hint=hint)

    def function(self, tree: ast.FunctionDef) -> tuple[Tensor, ...]:
        last = tree.body[-1]
        if not isinstance(last, ast.Return) or last.value is None:
            self.fail(last, "it does not end with return", "return the output tensors")
        several = isinstance(last.value, ast.Tuple | ast.List)
        parts = last.value.elts if several else [last.value]  # type: ignore[attr-defined]
        self.returned = [p.id for p in parts if isinstance(p, ast.Name)]
        body = self.block(tree.body[:-1])
        outputs = tuple(self.made_outputs.get(name) for name in self.returned)
        found = tuple(t for t in outputs if t is not None)
        if len(found) != len(parts):
            self.fail(last, "what it returns is not made here", "output_tensor(shape)")
        loops = [p.stmt for p in walk(body) if isinstance(p.stmt, For)]
        axes = [
            Axis(f.var.name.rpartition(".")[2], INDEX, 0, f.trips or f.extent, "cc")
            for f in loops
        ]
        names = tuple(f.var.name for f in loops)
        op = Script(self.label, body, tuple(axes), (), names, found)
        for t in found:
            t.op = op
        return found

    # -- statements

    def block(self, stmts: Sequence[ast.stmt]) -> Stmt:
        """Statements in order; later ones see what earlier ones define."""
        before = dict(self.names)
        done: list[Stmt] = []
        for n, s in enumerate(stmts):
            made = self.made(s)
            if made is not None:
                local, first = made
                done += [Alloc(local.buffer, block(*first, self.block(stmts[n + 1 :])))]
                break
            done.append(self.statement(s))
        self.names = before | self.made_outputs
        return block(*done)

    def made(self, s: ast.stmt) -> tuple[Local, list[Stmt]] | None:
        """The variable that a statement begins, with its first value; None of any other."""
        if not isinstance(s, ast.Assign) or len(s.targets) != 1:
            return None
        target = s.targets[0]
        if not isinstance(target, ast.Name) or isinstance(
            self.names.get(target.id), Local
        ):
            return None
        call = s.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            if call.func.id in ("allocate", "output_tensor"):
                return self.array(target.id, call)
        value = self.value(s.value)
        if not isinstance(value, Expr):
            if self.stored[target.id] == 1:
                self.names[target.id] = value  # a constant
                return None
            value = const(value, INDEX if isinstance(value, int) else float32)
        label = fresh(self.taken, f"{self.label}.{target.id}")
        local = Local(Buffer(label, (1,), value.dtype, "register"), True)
        self.names[target.id] = local
        return local, [Store(local.buffer, (const(0),), value)]

    def array(self, name: str, call: ast.Call) -> tuple[Local, list[Stmt]] | None:
        given = [self.value(a) for a in (*call.args, *(k.value for k in call.keywords))]
        shape = given[0]
        dtype = given[1] if len(given) > 1 else "float32"
        scope = given[2] if len(given) > 2 else "global"
        sizes = tuple(shape) if isinstance(shape, list | tuple) else (shape,)
        fixed = all(isinstance(n, int) for n in sizes)
        sized = all(isinstance(n, int) or not _reads_any(n) for n in sizes)
        if not sized or (name not in self.returned and not fixed):
            self.fail(
                call, f"the shape {shape!r}", "extents are constants, or var('n')"
            )
        if name in self.returned:
            place = self.returned.index(name)
            known = self.output_names
            label = known[place] if len(known) == len(self.returned) else name
            made = Tensor(label, sizes, dtype_of(dtype))
            self.names[name] = self.made_outputs[name] = made
            return None
        label = fresh(self.taken, f"{self.label}.{name}")
        local = Local(Buffer(label, sizes, dtype_of(dtype), scope), False)
        self.names[name] = local
        return local, []

    def statement(self, s: ast.stmt) -> Stmt:
        match s:
            case ast.For():
                return self.loop(s)
            case ast.While():
                return While(self.condition(s.test), self.block(s.body))
            case ast.If():
                return self.branch(s)
            case ast.Assign(targets=[ast.Name(id)]) if not isinstance(
                self.names.get(id), Local
            ):
                return block()  # `made` has bound a constant or an output
            case ast.Assign(targets=[target]):
                return self.store(target, self.value(s.value))
            case ast.AugAssign():
                return self.step(s)
            case ast.Assert():
                if self.value(s.test) is not True:
                    self.fail(
                        s, "an assert that does not hold", "it is tested here, once"
                    )
                return block()
            case ast.Pass():
                return block()
            case ast.Expr(ast.Constant()):
                return block()  # a docstring
        self.fail(
            s, f"a statement {type(s).__name__}", "the module's text has the language"
        )

    def loop(self, s: ast.For) -> Stmt:
        call = s.iter
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            self.fail(s, "a loop over no range", "for i in range(n)")
        kind = call.func.id
        ends = [self.value(a) for a in call.args]
        if kind == "bind":
            kind = str(ends[0])
            ends = ends[1:]
            if kind not in GPU_AXES:
                self.fail(s, f"no axis {kind!r}", f"one of {', '.join(GPU_AXES)}")
        elif kind in _KINDS:
            kind = _KINDS[kind]
        else:
            self.fail(s, f"a loop over {kind}", f"one of {', '.join(_KINDS)}")
        if not isinstance(s.target, ast.Name) or s.orelse or not 1 <= len(ends) <= 3:
            self.fail(s, "a loop of another form", "for i in range(first, end)")
        low, high, step = (0, *ends, 1) if len(ends) == 1 else (*ends, 1)[:3]
        if not isinstance(step, int) or step < 1:
            self.fail(s, f"a step of {step!r}", "a positive constant")
        low, high = (_index(e) for e in (low, high))
        name = fresh(self.taken, f"{self.label}.{s.target.id}")
        var = Var(name, INDEX)
        starts = isinstance(low, int) and low == 0
        count = high if starts else high - low
        extent = count if step == 1 else (count + (step - 1)) // step
        stride = var if step == 1 else var * step
        value = stride if starts else low + stride
        before = self.names.get(s.target.id)
        self.names[s.target.id] = value
        body = self.block(s.body)
        self.names[s.target.id] = before
        return For(
            var, extent if isinstance(extent, Expr) else const(extent), kind, body
        )

    def branch(self, s: ast.If) -> Stmt:
        test = self.value(s.test)
        if not isinstance(test, Expr):
            return self.block(s.body if test else s.orelse)
        return If(
            self.condition(s.test),
            self.block(s.body),
            self.block(s.orelse) if s.orelse else None,
        )

    def store(self, target: ast.expr, value: Any) -> Stmt:
        if isinstance(target, ast.Name):
            local = self.names.get(target.id)
            if not isinstance(local, Local) or not local.scalar:
                self.fail(target, f"an assignment to {target.id}", "assign elements")
            return Store(
                local.buffer, (const(0),), self.typed(target, value, local.buffer)
            )
        if not isinstance(target, ast.Subscript):
            self.fail(target, "an assignment to this", "assign variables and elements")
        load = self.value(_read_of(target))
        if not isinstance(load, Load):
            self.fail(target, "an assignment to no element", "give all indices")
        return Store(load.buffer, load.index, self.typed(target, value, load.buffer))

    def step(self, s: ast.AugAssign) -> Stmt:
        """`x += e`: a step of a reduction, where e does not read what x is part of."""
        now = self.value(_read_of(s.target))
        value = self.value(s.value)
        both = self.binary(s, s.op, now, value)
        name = _REDUCERS.get(type(s.op))
        if name is None or not isinstance(now, Load) or _reads(value, now.buffer):
            return self.store(s.target, both)
        typed = self.typed(s, value, now.buffer)
        op = reducer(name, now.buffer.dtype)
        return Update((now.buffer,), (now.index,), (typed,), op)

    def typed(self, node: ast.AST, value: Any, buffer: Buffer) -> Expr:
        """A value in the buffer's dtype: constants and coordinates are converted."""
        if not isinstance(value, Expr):
            return const(value, buffer.dtype)
        if value.dtype is INDEX and buffer.dtype.is_int:
            return value if buffer.dtype is INDEX else Cast(value, buffer.dtype)
        if value.dtype is not buffer.dtype:
            self.fail(
                node,
                f"{value.dtype} is stored in {buffer.name}, of {buffer.dtype}",
                f"convert it: {buffer.dtype}(value)",
            )
        return value

    # -- values: expressions, or Python's own where they are constant

    def condition(self, node: ast.expr) -> Expr:
        found = self.value(node)
        if not isinstance(found, Expr):
            return const(bool(found), bool_)
        if found.dtype is not bool_:
            self.fail(node, f"a condition of {found.dtype}", "compare, as in x > 0")
        return found

    def value(self, node: ast.expr) -> Any:
        self.line = getattr(node, "lineno", self.line)
        try:
            return self.of(node)
        except (TypeError, AttributeError) as error:
            self.fail(node, str(error), "operands are elements and numbers")

    def of(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self.variable(node)
            case ast.Tuple() | ast.List():
                return [self.value(e) for e in node.elts]
            case ast.BinOp():
                return self.binary(
                    node, node.op, self.value(node.left), self.value(node.right)
                )
            case ast.UnaryOp():
                return self.unary(node)
            case ast.Compare():
                return self.compared(node)
            case ast.BoolOp():
                return self.logical(node)
            case ast.IfExp():
                test = self.value(node.test)
                if not isinstance(test, Expr):
                    return self.value(node.body if test else node.orelse)
                return Select(test, *self.alike(node.body, node.orelse))
            case ast.Subscript():
                return self.element(node)
            case ast.Attribute(attr="shape" | "dtype" | "ndim"):
                return self.told(node)
            case ast.Call():
                return self.call(node)
        self.fail(
            node, f"{ast.unparse(node)} is not understood", "write it out in steps"
        )

    def variable(self, node: ast.Name) -> Any:
        if node.id not in self.names or self.names[node.id] is None:
            self.fail(
                node, f"there is no variable {node.id}", "assign it in this block"
            )
        found = self.names[node.id]
        if isinstance(found, Local) and found.scalar:
            return Load(found.buffer, (const(0),))
        return found

    def told(self, node: ast.Attribute) -> Any:
        of = self.value(node.value)
        of = of.buffer if isinstance(of, Local) else of
        if node.attr == "dtype":
            return of.dtype.name
        return list(of.shape) if node.attr == "shape" else len(of.shape)

    def element(self, node: ast.Subscript) -> Any:
        of = self.value(node.value)
        at = self.value(node.slice)
        if isinstance(of, list):
            return of[at]
        index = tuple(map(_index, at if isinstance(at, list) else [at]))
        if isinstance(of, Local):
            return Load(of.buffer, tuple(nodes.as_expr(i, INDEX) for i in index))
        return of[index]

    def unary(self, node: ast.UnaryOp) -> Any:
        value = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            return ~value if isinstance(value, Expr) else not value
        if isinstance(node.op, ast.USub):
            return -value
        return ~value if isinstance(node.op, ast.Invert) else value

    def binary(self, node: ast.AST, op: ast.operator, a: Any, b: Any) -> Any:
        if type(op) not in _OPERATORS:
            self.fail(node, f"the operator {type(op).__name__}", "write it out")
        return _OPERATORS[type(op)](*self.met(a, b))

    @staticmethod
    def met(a: Any, b: Any) -> tuple[Any, Any]:
        """Two operands of one dtype; next to a coordinate, another integer becomes one."""
        if not (isinstance(a, Expr) and isinstance(b, Expr)):
            return a, b
        if INDEX in (a.dtype, b.dtype) and a.dtype.is_int and b.dtype.is_int:
            return _index(a), _index(b)
        return matched(a, b)

    def alike(self, *parts: ast.expr) -> tuple[Expr, ...]:
        a, b = self.met(*(self.value(p) for p in parts))
        typed = next((v for v in (a, b) if isinstance(v, Expr)), None)
        dtype = float32 if typed is None else typed.dtype
        return nodes.as_expr(a, dtype), nodes.as_expr(b, dtype)

    def compared(self, node: ast.Compare) -> Any:
        values = [self.value(v) for v in (node.left, *node.comparators)]
        found: Any = True
        for op, a, b in zip(node.ops, values, values[1:], strict=False):
            if type(op) not in _COMPARISONS:
                self.fail(
                    node, f"the comparison {type(op).__name__}", "< <= == != > >="
                )
            a, b = self.met(a, b)
            if isinstance(b, Expr) and not isinstance(a, Expr):
                a = nodes.as_expr(a, b.dtype)
            found = _both(found, _COMPARISONS[type(op)](a, b))
        return found

    def logical(self, node: ast.BoolOp) -> Any:
        """`and` and `or` as Python has them: the second is not read where the first decides."""
        found = self.value(node.values[0])
        for v in node.values[1:]:
            both = isinstance(node.op, ast.And)
            if not isinstance(found, Expr):
                found = self.value(v) if bool(found) is both else found
                continue
            other = self.condition(v)
            reads = any(isinstance(n, Load) for n in postorder(other))
            if not reads:
                found = found & other if both else found | other
            elif both:
                found = Select(found, other, const(False, bool_))
            else:
                found = Select(found, const(True, bool_), other)
        return found

    def call(self, node: ast.Call) -> Any:
        name = ast.unparse(node.func).rpartition(".")[2]
        args = [self.value(a) for a in node.args]
        if name == "len":
            return len(args[0]) if isinstance(args[0], list) else args[0].shape[0]
        if not any(isinstance(a, Expr) for a in args):
            if name in _PLAIN:
                return _PLAIN[name](*args)
        if name in _DTYPES:
            value = args[0]
            of = dtype_of(name)
            return value.astype(of) if isinstance(value, Expr) else const(value, of)
        if name in ("max", "min"):
            a, b = self.alike(*node.args)
            return nodes.Max(a, b) if name == "max" else nodes.Min(a, b)
        if name == "ceil_div":
            return TABLE["ceildiv"](*args)
        if name not in TABLE:
            self.fail(node, f"a call of {name}", "a scalar function of te, or a dtype")
        return TABLE[name](*args)


def _reads(value: Any, buffer: Buffer) -> bool:
    found = postorder(value) if isinstance(value, Expr) else ()
    return any(isinstance(n, Load) and n.buffer is buffer for n in found)


def _reads_any(value: Any) -> bool:
    """Whether an extent is anything but a term of sizes."""
    if not isinstance(value, Expr) or value.dtype is not INDEX:
        return True
    return any(isinstance(n, Load) for n in postorder(value))


def _read_of(target: Any) -> Any:
    """What is assigned, as it is read."""
    return ast.copy_location(ast.parse(ast.unparse(target), mode="eval").body, target)


def _index(value: Any) -> Any:
    """An integer expression as an index."""
    if isinstance(value, Expr) and value.dtype is not INDEX and value.dtype.is_int:
        return Cast(value, INDEX)
    return value


def _both(a: Any, b: Any) -> Any:
    if isinstance(a, Expr) and isinstance(b, Expr):
        return a & b
    if isinstance(a, Expr):
        return a if b else False
    return b if a else False
