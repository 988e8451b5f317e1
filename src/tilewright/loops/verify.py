"""The invariants of kernels (listed in loops/nodes.py) as a table of checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field

from tilewright.base import dtypes
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import UnprovenError, VerifyError
from tilewright.compute.isl import Domain, IslLimitReached, sample
from tilewright.expr.affine import affine, to_expr
from tilewright.expr.mixed_radix import inside
from tilewright.expr.nodes import (
    INDEX,
    MAX_SIZE,
    Buffer,
    Const,
    Expr,
    Load,
    Overlap,
    Var,
    as_expr,
)
from tilewright.expr.reads import reads_memory
from tilewright.ir.node import postorder
from tilewright.loops.analysis.access import Access, expressions, guarded_accesses
from tilewright.loops.analysis.dependence import can_parallelize
from tilewright.loops.analysis.isl import iteration
from tilewright.loops.analysis.verdict import Unknown
from tilewright.loops.match import match
from tilewright.loops.nodes import (
    GPU_AXES,
    KINDS,
    SIZE,
    Alloc,
    For,
    If,
    Kernel,
    Store,
    Unit,
    Update,
    While,
)
from tilewright.loops.operands import OperandMismatch
from tilewright.loops.printer import show, show_place
from tilewright.loops.scopes import CONSTANT
from tilewright.loops.walk import StatementPlace, loops_of, walk


@dataclass(slots=True)
class _Scope:
    """What the checks have seen so far in one kernel."""

    kernel: Kernel
    loop_names: set[str] = field(default_factory=set)


Check = Callable[[_Scope, StatementPlace], Iterator[str]]


def verify(kernel: Kernel, dependences: bool = True) -> None:
    """Check every invariant of `kernel`.

    dependences: whether loops that promise to run together are proven to be able to (the one
    costly check). Raises VerifyError with the code of the broken invariant, UnprovenError if it is
    only not proven; the message names the loop, buffer or statement.
    """
    scope = _Scope(kernel)
    for code, check in _OF_KERNEL.items():
        _raise_first(code, kernel, check(scope))
    for place in walk(kernel.body):
        for code, of_place in _OF_PLACE.items():
            _raise_first(code, kernel, of_place(scope, place))
    _raise_first("TW-BOUNDS", kernel, access_errors(kernel))
    for place in walk(kernel.body) if dependences else ():
        _raise_first("TW-LOOP-DEPENDENCE", kernel, _together(scope, place))


class _Unproven(str):
    """The message of an invariant that is not proven, and not known to be broken."""


def _raise_first(code: str, kernel: Kernel, messages: Iterator[str]) -> None:
    for message in messages:
        kind = UnprovenError if isinstance(message, _Unproven) else VerifyError
        raise kind(message, code=code, where=f"kernel {kernel.name}")


# -- the kernel as a whole


def _outputs_are_params(scope: _Scope) -> Iterator[str]:
    for b in scope.kernel.outputs:
        if b not in scope.kernel.params:
            yield f"output {b.name} is not a parameter"
        if b.scope == CONSTANT:
            yield f"output {b.name} is in constant memory"


def _params_differ(scope: _Scope) -> Iterator[str]:
    seen: set[str] = set()
    for b in scope.kernel.params:
        if b.name in seen:
            yield f"two parameters are named {b.name}"
        seen.add(b.name)


def _notes_of_loops(scope: _Scope) -> Iterator[str]:
    if scope.kernel.notes:
        loops = {f.var.name for f in loops_of(scope.kernel.body)}
        yield from (
            f"loop {n} is annotated but does not exist"
            for n in scope.kernel.notes
            if n not in loops
        )


# -- names and scopes


def _loop_names(scope: _Scope, at: StatementPlace) -> Iterator[str]:
    if isinstance(at.stmt, For):
        name = at.stmt.var.name
        if name in scope.loop_names:
            yield f"two loops are named {name}"
        scope.loop_names.add(name)


def _bound(scope: _Scope, at: StatementPlace) -> Iterator[str]:
    around = {loop.var for loop in at.loops}
    for e in expressions(at.stmt):
        for node in postorder(e):
            if isinstance(node, Var) and node not in around:
                yield f"{node.name} is used where no loop binds it, in {_brief(at)}"


def _buffers(scope: _Scope, at: StatementPlace) -> Iterator[str]:
    around = {s.buffer for s in at.above if isinstance(s, Alloc)} | set(
        scope.kernel.params
    )
    if isinstance(at.stmt, Alloc):
        if at.stmt.buffer in around:
            yield f"{at.stmt.buffer.name} is allocated inside its own scope"
        if at.stmt.buffer.scope == CONSTANT:
            yield f"{at.stmt.buffer.name} is allocated in constant memory"
        return
    for b in _used(at):
        if b not in around:
            yield f"{b.name} is neither a parameter nor allocated around {_brief(at)}"


def _writes(scope: _Scope, at: StatementPlace) -> Iterator[str]:
    inputs = set(scope.kernel.inputs)
    for b in _written(at):
        if b in inputs:
            yield f"{b.name} is written in {_brief(at)}, but is not an output"


def _used(at: StatementPlace) -> Iterator[Buffer]:
    yield from _written(at)
    for e in expressions(at.stmt):
        yield from (node.buffer for node in postorder(e) if isinstance(node, Load))


def _written(at: StatementPlace) -> tuple[Buffer, ...]:
    if isinstance(at.stmt, Store):
        return (at.stmt.buffer,)
    if isinstance(at.stmt, Update):
        return at.stmt.buffers
    return ()


# -- sizes


def _sizes_of_params(scope: _Scope) -> Iterator[str]:
    known = set(scope.kernel.sizes)
    for b in scope.kernel.params:
        yield from _loose(b, known)


def _sizes(scope: _Scope, at: StatementPlace) -> Iterator[str]:
    s = at.stmt
    if isinstance(s, Alloc):
        yield from _loose(s.buffer, set(scope.kernel.sizes))
    elif isinstance(s, For) and s.kind == SIZE:
        if s.var not in scope.kernel.sizes:
            yield f"the size {s.var.name} is not around all else"
        if s.trips is None or s.trips > MAX_SIZE:
            yield f"the size {s.var.name} has {s.extent!r} values, not at most {MAX_SIZE}"


def _loose(b: Buffer, known: set[Var]) -> Iterator[str]:
    """Extents that depend on anything but sizes."""
    for extent in b.extents:
        for n in () if isinstance(extent, int) else postorder(extent):
            if isinstance(n, Load) or (isinstance(n, Var) and n not in known):
                yield f"{b!r} has the extent {extent!r}, and {n!r} is not a size"


# -- types


def _kinds(scope: _Scope, at: StatementPlace) -> Iterator[str]:
    if isinstance(at.stmt, For) and at.stmt.kind not in KINDS:
        yield f"loop {at.stmt.var.name} is {at.stmt.kind!r}, not one of {', '.join(KINDS)}"


def _axes(scope: _Scope, at: StatementPlace) -> Iterator[str]:
    s = at.stmt
    if isinstance(s, For) and s.kind in GPU_AXES:
        outer = next((f for f in at.loops if f.kind == s.kind), None)
        if outer is not None:
            yield f"loop {s.var.name} is bound to {s.kind}, as {outer.var.name} around it is"


def _types(scope: _Scope, at: StatementPlace) -> Iterator[str]:
    s = at.stmt
    if isinstance(s, For):
        if s.var.dtype is not INDEX:
            yield f"loop {s.var.name} is {s.var.dtype}, not {INDEX}"
        if s.extent.dtype is not INDEX:
            yield f"the extent of loop {s.var.name} is {s.extent.dtype}, not {INDEX}"
    elif isinstance(s, If | While) and s.condition.dtype is not dtypes.bool_:
        yield f"the condition of {_brief(at)} is {s.condition.dtype}, not bool"
    elif isinstance(s, Store) and s.value.dtype is not s.buffer.dtype:
        yield f"{s.value.dtype} is stored into {s.buffer!r}, in {_brief(at)}"
    elif isinstance(s, Update):
        yield from _update_types(s, at)


def _update_types(s: Update, at: StatementPlace) -> Iterator[str]:
    expected = s.reducer.dtypes
    if not len(s.buffers) == len(s.indices) == len(s.values) == len(expected):
        yield (
            f"{s.reducer.name} has {len(expected)} components, an update of "
            f"{', '.join(b.name for b in s.buffers)} has {len(s.buffers)} buffers, "
            f"{len(s.indices)} indices and {len(s.values)} values"
        )
        return
    for b, v, t in zip(s.buffers, s.values, expected, strict=True):
        if b.dtype is not t or v.dtype is not t:
            yield f"{s.reducer.name} combines {t}, not {v.dtype} into {b!r}, in {_brief(at)}"


def _index_types(scope: _Scope, at: StatementPlace) -> Iterator[str]:
    for b, index in _indexed(at):
        if len(index) != len(b.extents):
            yield f"{b!r} is indexed with {len(index)} expressions, in {_brief(at)}"
        for i in index:
            if i.dtype is not INDEX:
                yield f"an index of {show_place(b, index)} is {i.dtype}, not {INDEX}"


def _indexed(at: StatementPlace) -> Iterator[tuple[Buffer, tuple[Expr, ...]]]:
    if isinstance(at.stmt, Store):
        yield at.stmt.buffer, at.stmt.index
    elif isinstance(at.stmt, Update):
        yield from at.stmt.targets
    for e in expressions(at.stmt):
        yield from ((n.buffer, n.index) for n in postorder(e) if isinstance(n, Load))


def _overlaps(scope: _Scope, at: StatementPlace) -> Iterator[str]:
    """Check the form of a promise about overlapping tiles (loops/analysis/overlap.py)."""
    for e in expressions(at.stmt):
        for n in postorder(e):
            if not isinstance(n, Overlap):
                continue
            if not isinstance(n.rhs, Const) or n.dtype is not INDEX or reads_memory(n):
                wanted = "a sum of loop variables and the number of the last start"
                yield f"{n!r} is not a start of a tile, which is {wanted}, in {_brief(at)}"


# -- bounds


def access_errors(kernel: Kernel) -> Iterator[str]:
    """The accesses of `kernel` that are not proven inside their buffers, as `verify` says it."""
    for access in guarded_accesses(kernel.body):
        yield from _outside(access)


def _outside(access: Access) -> Iterator[str]:
    for axis, (i, extent) in enumerate(
        zip(access.index, access.buffer.extents, strict=True)
    ):
        if inside(i, extent, access.ranges) or reads_memory(i):
            continue
        problem = outside(access, axis)
        if problem is not None:
            place = show_place(access.buffer, access.index)
            said = f"dimension {axis} of {place} {problem}, in {_brief(access.place)}"
            yield type(problem)(said)


def outside(access: Access, axis: int) -> str | None:
    """Why an index is not proven inside its buffer (by isl), or None where it is."""
    domain = Domain()
    extent = as_expr(access.buffer.extents[axis], INDEX)
    last = to_expr(affine(extent - 1))
    translate = iteration(domain, access)
    text = translate.expr(access.index[axis])
    past = translate.expr(extent)
    try:
        point = sample(domain, [f"{text} < 0 or {text} >= {past}"])
    except IslLimitReached:
        return _Unproven(f"is not proven inside 0..{last!r} within the operation limit")
    if point is None:
        return None
    if not domain.exact:
        return _Unproven(f"is not proven inside 0..{last!r}")
    values = dict(zip(domain.names, point, strict=True))
    at = ", ".join(
        f"{p.var.name} = {values[translate.names[p.var]]}" for p in access.loops
    )
    return f"leaves 0..{last!r}" + (f" at {at}" if at else "")


def _together(scope: _Scope, at: StatementPlace) -> Iterator[str]:
    if isinstance(at.stmt, For) and at.stmt.together:
        verdict = can_parallelize(scope.kernel, at.stmt, halos=True)
        if not verdict:
            name = f"{at.stmt.kind} loop {at.stmt.var.name}"
            said = f"the iterations of {name} depend on one another: {verdict.reason}"
            yield _Unproven(said) if isinstance(verdict, Unknown) else said


# -- units


def _units(scope: _Scope, at: StatementPlace) -> Iterator[str]:
    """Check that the intrinsic computes what the body says, and that the operands match it."""
    if not isinstance(at.stmt, Unit) or at.stmt.intrinsic is None:
        return
    try:
        use, operands = match(at.stmt.intrinsic.intrinsic, at.stmt.body)
    except OperandMismatch as error:
        yield f"{_brief(at)} is not what its body does: {error}"
        return
    if use != at.stmt.intrinsic or operands != at.stmt.operands:
        yield f"the body of {_brief(at)} has other operands: {show(at.stmt.body)}"


def _brief(at: StatementPlace) -> str:
    line = show(at.stmt).split("\n", 1)[0]
    return f"`{line if len(line) <= 120 else line[:117] + '...'}`"


_OF_KERNEL: Mapping[str, Callable[[_Scope], Iterator[str]]] = {
    "TW-OUTPUTS": _outputs_are_params,
    "TW-PARAMS": _params_differ,
    "TW-NOTES": _notes_of_loops,
    "TW-SIZE": _sizes_of_params,
}

_OF_PLACE: Mapping[str, Check] = {
    "TW-LOOP-NAME": _loop_names,
    "TW-LOOP-KIND": _kinds,
    "TW-LOOP-AXIS": _axes,
    "TW-UNBOUND": _bound,
    "TW-BUFFER-SCOPE": _buffers,
    "TW-INPUT-WRITTEN": _writes,
    "TW-SIZE": _sizes,
    "TW-TYPE": _types,
    "TW-INDEX-TYPE": _index_types,
    "TW-OVERLAP": _overlaps,
    "TW-UNIT": _units,
}
