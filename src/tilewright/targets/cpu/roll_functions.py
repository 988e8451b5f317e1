"""Written-out loops that compute functions become loops, whose code is written once.

    alloc T: float32[14, 16] in register:
      ...
      for n in 14 unroll: for x in 16 vector: C[n, x] = exp(T[n, x])

becomes

    alloc T: float32[14, 16] in register:
      ...
      alloc T.kept: float32[14, 16] in stack:
        for n.kept in 14 unroll: for x.kept in 16 vector: T.kept[n.kept, x.kept] = T[n.kept, x.kept]
        for n in 14: for x in 16 vector: C[n, x] = exp(T.kept[n, x])

A function such as exp is 20 instructions or more, so that a store and a load of its argument take
little time beside it, and none beside a long sum. Written out, a GELU behind a tile of 28 vectors
is a thousand instructions, which take longer to compile than the rest of the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Final

from tilewright.base.names import fresh
from tilewright.expr.nodes import INDEX, Buffer, Call, Expr, Load, Var
from tilewright.expr.reads import is_inside
from tilewright.ir.node import postorder, substitute
from tilewright.loops.analysis.access import environment, expressions
from tilewright.loops.analysis.effects import writes
from tilewright.loops.analysis.terms import loads, variables
from tilewright.loops.nodes import (
    Alloc,
    Block,
    For,
    Kernel,
    Stmt,
    Store,
    Unit,
    Update,
    block,
    loop,
)
from tilewright.loops.passes.promote import WRITTEN_OUT, is_constant
from tilewright.loops.walk import below, names_of, walk
from tilewright.targets.llvm.expansions import expansion

FEWEST: Final = 4  # iterations that become a loop
# Of a sum behind which functions become a loop. Behind a depthwise convolution's 9 steps the loop
# takes 1.09 times as long as what is written out, behind 16 steps 1.02 times, behind 64 as long.
STEPS: Final = 64
_SCOPES: Final = ("register", "stack")  # of arrays that may be registers

# Arrays around a statement that may be registers, each with the steps of the sum that it holds.
Held = Mapping[Buffer, int]


def roll_functions(kernel: Kernel) -> Kernel:
    """The kernel with loops of the kind "unroll" that compute functions as serial loops.

    requires, of such a loop:
        FEWEST or more iterations, a constant number; nothing in it but stores, in loops that are
        written out or vectors, and one stores a function that is written as an expression
        no vector loop and no Unit around it
        it reads an array that may be registers, one whose places are all constants, and that
        holds a sum of STEPS or more
        it changes no such array, and all that it reads of them is inside of them

    What it reads of them is first copied to an array on the stack, since a place that the loop
    decides is no register. Every statement runs as often as before, in the same order.
    """
    names = names_of(kernel)
    body = _rolled(kernel.body, {}, names)
    return kernel if body is kernel.body else kernel.with_body(body)


def _rolled(s: Stmt, held: Held, names: set[str]) -> Stmt:
    """A statement; held: in registers around it; names: of the kernel's loops and arrays."""
    if isinstance(s, Unit) or (isinstance(s, For) and s.kind == "vector"):
        return s
    if isinstance(s, For) and _is_long(s) and _is_behind_sums(s, held):
        return _in_loop(s, held, names)
    if isinstance(s, Alloc) and _may_be_registers(s):
        held = {**held, s.buffer: _steps(s)}
    changed = {child: _rolled(child, held, names) for child in below(s)}
    if all(new is old for old, new in changed.items()):
        return s
    made: Stmt = s.map(lambda c: changed.get(c, c))
    return made


def _may_be_registers(s: Alloc) -> bool:
    return s.buffer.scope in _SCOPES and is_constant(s.buffer, s.body)


def _steps(s: Alloc) -> int:
    """How many times an element of an array is updated at most; a number unknown counts as one."""
    found = [0]
    for place in walk(s.body, touching=frozenset((s.buffer,))):
        update = place.stmt
        if isinstance(update, Update):
            fixed = set().union(*(variables(e) for i in update.indices for e in i))
            sums = (f.trips or 1 for f in place.loops if f.var not in fixed)
            found.append(prod(sums))
    return max(found)


def _is_long(f: For) -> bool:
    """Whether a loop is written out, and stores functions in each of its iterations."""
    if f.kind != "unroll" or f.trips is None or f.trips < FEWEST:
        return False
    inside = [p.stmt for p in walk(f.body)]
    if not all(isinstance(s, Block | Store) or _is_written_out(s) for s in inside):
        return False
    values = (s.value for s in inside if isinstance(s, Store))
    return any(map(_computes_function, values))


def _is_written_out(s: Stmt) -> bool:
    return isinstance(s, For) and s.trips is not None and s.kind in WRITTEN_OUT


def _computes_function(value: Expr) -> bool:
    calls = (n for n in postorder(value) if isinstance(n, Call))
    return any(expansion(n.function, n.args[0].dtype.name) is not None for n in calls)


def _is_behind_sums(f: For, held: Held) -> bool:
    """Whether a loop reads a long sum, inside of its array, and changes no array in registers."""
    read, ranges = _read(f, held), environment(f)
    if not writes(f).isdisjoint(held) or not all(is_inside(a, ranges) for a in read):
        return False
    return any(held[a.buffer] >= STEPS for a in read)


def _read(f: For, held: Held) -> list[Load]:
    """What a loop reads of arrays in registers."""
    found = (a for p in walk(f) for e in expressions(p.stmt) for a in loads(e))
    return [a for a in dict.fromkeys(found) if a.buffer in held]


def _in_loop(f: For, held: Held, names: set[str]) -> Stmt:
    """The loop, serial, behind another one that copies what it reads of arrays in registers."""
    copies: dict[Buffer, Buffer] = {}
    read = _read(f, held)
    for b in dict.fromkeys(a.buffer for a in read):
        copies[b] = Buffer(fresh(names, f"{b.name}.kept"), b.extents, b.dtype, "stack")
    there = {a: copies[a.buffer][a.index] for a in read}
    body: Stmt = substitute(f.body, there)
    made: Stmt = block(_copying(f, there, names), loop(f.var, f.extent, body))
    for copy in copies.values():
        made = Alloc(copy, made)
    return made


def _copying(s: Stmt, there: Mapping[Load, Load], names: set[str]) -> Stmt:
    """The loops of a statement around copies of what it reads."""
    if isinstance(s, For):
        var = Var(fresh(names, f"{s.var.name}.kept"), INDEX)
        inner: Stmt = substitute(_copying(s.body, there, names), {s.var: var})
        return loop(var, s.extent, inner, s.kind)
    if isinstance(s, Block):
        return block(*(_copying(inner, there, names) for inner in s.stmts))
    read = dict.fromkeys(a for e in expressions(s) for a in loads(e) if a in there)
    return block(*(Store(there[a].buffer, a.index, a) for a in read))
