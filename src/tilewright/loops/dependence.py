"""Which iterations of a loop meet in memory, and so which orders keep the meaning.

Two accesses of one buffer conflict if one of them writes, except that two `Update`s with one
commutative reducer do not. A syntactic lemma settles the usual cases (an index in which the loop
is a digit of its own); isl settles the rest, within an operation limit.

An `Overlap` in an index says that tiles which overlap store equal values (`loops/overlap.py`).
Between plain stores and loads with the same ones, tiles are read as if they did not overlap where
that is enough: an element is stored again with its value, by whoever reads it before he does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

from tilewright.base.errors import VerifyError
from tilewright.compute.isl import Domain, TooHard, Translator, sample
from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.bounds import Interval, bounds
from tilewright.expr.nodes import Buffer, Const, Expr, FloorDiv, Mod, Var, const
from tilewright.expr.reads import reads_memory, variables
from tilewright.loops.access import commute
from tilewright.loops.nodes import Alloc, Block, For, Kernel
from tilewright.loops.overlap import clamps
from tilewright.loops.overlap import ideal as unclamped
from tilewright.loops.places import Access, accesses, places
from tilewright.loops.printer import show_place

LEGAL, ILLEGAL, UNKNOWN = "legal", "illegal", "unknown"


@dataclass(frozen=True, slots=True)
class Witness:
    """Two iterations (loop name to value) that touch `place`, an element of a buffer."""

    first: dict[str, int]
    second: dict[str, int]
    place: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """kind: legal, illegal (with a witness) or unknown; reason: one sentence."""

    kind: str
    reason: str
    witness: Witness | None = None

    def __bool__(self) -> bool:
        return self.kind == LEGAL


# From the names of the band's variables in two iterations, the isl condition of a problem.
Relation = Callable[[Sequence[str], Sequence[str]], str]
Pair = Callable[[Access, Access], bool]


def _granted(buffer: Buffer) -> bool:
    return True


def can_parallelize(
    kernel: Kernel, loop: For | str, covered: Callable[[Buffer], bool] = _granted
) -> Verdict:
    """Whether the iterations of one loop may run together, or in any order.

    covered: whether an iteration stores whatever it reads of a buffer, first and by one Store; so
    that overlapping tiles which store it again make no difference. Taken for granted where nobody
    says.
    """
    found = _find(kernel, loop)

    def same(a: Access, b: Access) -> bool:
        return a.place is b.place if a.writes and b.writes else covered(a.buffer)

    return _judge(kernel, [found], lambda p, q: f"{p[0]} != {q[0]}", _any_pair, same)


def _stored(covered: Callable[[Buffer], bool]) -> Pair:
    return lambda a, b: (a.writes and b.writes) or covered(a.buffer)


def can_reorder(
    kernel: Kernel, loops: Sequence[For | str], covered: Callable[[Buffer], bool] = _granted
) -> Verdict:
    """Whether nested loops, given outermost first, may be interchanged in every way.

    covered: as for `can_parallelize`, of an iteration of all of them.
    """
    band = [_find(kernel, loop) for loop in loops]

    def backwards(p: Sequence[str], q: Sequence[str]) -> str:
        cases = []
        for first in range(len(band)):
            same = [f"{p[k]} = {q[k]}" for k in range(first)]
            for later in range(first + 1, len(band)):
                cases.append([*same, f"{p[first]} < {q[first]}", f"{p[later]} > {q[later]}"])
        return " or ".join(f"({' and '.join(c)})" for c in cases) or "false"

    return _judge(kernel, band, backwards, _any_pair, _stored(covered))


def can_fission(kernel: Kernel, loop: For | str, at: int) -> Verdict:
    """Whether the first `at` statements of a loop's block may run for all iterations first."""
    found = _find(kernel, loop)
    body = found.body
    if not isinstance(body, Block) or not 0 < at < len(body.stmts):
        raise VerifyError(f"loop {found.var.name} has no statement boundary {at}")
    # A statement that stands in both parts is one node; what it does is then done by both.
    early: set[object] = set(body.stmts[:at])
    late: set[object] = set(body.stmts[at:])

    def crossing(a: Access, b: Access) -> bool:
        return _is_below(b, early) and _is_below(a, late)

    def again(late: Access, early: Access) -> bool:
        # What an early statement stores again is what the late one found there, unless that
        # writes there itself.
        return early.writes and not late.writes

    return _judge(kernel, [found], lambda p, q: f"{p[0]} < {q[0]}", crossing, again)


def meeting_point(kernel: Kernel, loop: For | str, buffer: Buffer) -> Verdict | None:
    """Two iterations of `loop` that meet in `buffer`, one of them writing; None: isl finds none.

    Unlike `can_parallelize`, steps of one commutative reduction count as meeting.
    """
    found = _find(kernel, loop)
    for a, b in _meetings(kernel, found):
        if a.buffer is buffer:
            verdict = ask_isl(a, b, [found], lambda p, q: f"{p[0]} != {q[0]}")
            if verdict is not None and verdict.witness is not None:
                return verdict
    return None


def _is_below(a: Access, stmts: set[object]) -> bool:
    return a.place.stmt in stmts or any(s in stmts for s in a.place.above)


def _any_pair(a: Access, b: Access) -> bool:
    return True


def _find(kernel: Kernel, loop: For | str) -> For:
    for at in places(kernel.body):
        s = at.stmt
        if isinstance(s, For) and (s is loop or s.var.name == loop):
            return s
    name = loop if isinstance(loop, str) else loop.var.name
    raise VerifyError(f"there is no loop {name}", where=f"kernel {kernel.name}")


def _judge(
    kernel: Kernel,
    band: Sequence[For],
    relation: Relation,
    wanted: Pair,
    ideal: Pair,
) -> Verdict:
    """ideal: the pairs whose overlapping tiles may be read as ideal ones."""
    for a, b in conflicting(kernel, band[-1]):
        for first, second in ((a, b), (b, a)) if a is not b else ((a, b),):
            if not wanted(first, second):
                continue
            verdict = _meet(first, second, band, relation, ideal(first, second))
            if verdict is not None:
                return verdict
    return Verdict(LEGAL, "no two iterations conflict")


def conflicting(kernel: Kernel, loop: For) -> Iterator[tuple[Access, Access]]:
    """Pairs of accesses inside `loop` to one buffer that do not commute, each with itself too."""
    return ((a, b) for a, b in _meetings(kernel, loop) if not commute(a, b))


def _meetings(kernel: Kernel, loop: For) -> Iterator[tuple[Access, Access]]:
    inside: dict[object, list[Access]] = {}
    for at in places(kernel.body):
        if loop not in at.above:
            continue
        private = {s.buffer for s in at.above[at.above.index(loop) :] if isinstance(s, Alloc)}
        for access in accesses(at):
            if access.buffer not in private:
                inside.setdefault(access.buffer, []).append(access)
    for found in inside.values():
        if any(a.writes for a in found):
            for a, b in combinations_with_replacement(found, 2):
                if a.writes or b.writes:
                    yield a, b


# -- the lemma


def proven_equal(a: Access, b: Access, band: Sequence[For], ideal: bool = False) -> set[Var] | None:
    """Loop variables of `band` that agree wherever `a` and `b` meet; None: they never meet.

    In an index, the distance between two iterations of one atom (a loop variable, or a digit of it
    such as `f // 8` or `f % 8`) times its coefficient must make up for all other differences.
    Where these cannot reach the coefficient, it is 0. A variable agrees if all its digits do.
    """
    outer = a.loops[: a.loops.index(band[0])]
    vary = {loop.var for loop in band}
    once = [loop for loop in band if loop.trips is not None and loop.trips <= 1]
    same: set[Expr] = {loop.var for loop in (*outer, *once)}
    # What agrees wherever the accesses meet in fact may be taken as equal in the ideal reading.
    for reading in (False, True) if ideal else (False,):
        equations = list(zip(*_forms(a, b, vary, reading), strict=True))
        if not _settled(equations, (a, b), same, vary):
            return None
    return {v for v in vary if v in same}


def _settled(
    equations: Sequence[tuple[Affine, Affine]],
    pair: tuple[Access, Access],
    same: set[Expr],
    vary: set[Var],
) -> bool:
    """Add all atoms that the equations force to agree; False if they have no solution."""
    while True:
        before = len(same)
        for i, j in equations:
            found = _digit(i, j, pair, same, vary)
            if found is None:
                return False
            same |= found
        for whole in _completed(same):
            same |= _digit(affine(whole), affine(whole), pair, same, vary) or set()
        if len(same) == before:
            return True


def _completed(same: set[Expr]) -> list[Expr]:
    """The expressions of which both the quotient and the remainder agree."""
    found = []
    for e in same:
        if isinstance(e, Mod) and isinstance(e.rhs, Const):
            quotients = [FloorDiv(e.lhs, e.rhs)]
            if isinstance(e.lhs, FloorDiv) and isinstance(e.lhs.rhs, Const):
                product = const(int(e.lhs.rhs.value.real) * int(e.rhs.value.real))
                quotients.append(FloorDiv(e.lhs.lhs, product))
            if any(q in same for q in quotients) and int(e.rhs.value.real) > 0:
                found.append(e.lhs)
    return found


def _forms(a: Access, b: Access, vary: set[Var], ideal: bool) -> tuple[list[Affine], list[Affine]]:
    """The indices of both; ideal: without the clamps of overlapping tiles, if they clamp alike."""
    both = [affine(i) for i in a.index], [affine(j) for j in b.index]
    if not ideal or a.reducer is not None or b.reducer is not None:
        return both
    one, two = ([clamps(form, vary) for form in forms] for forms in both)
    if one != two:
        return both
    return [unclamped(i, vary) for i in both[0]], [unclamped(j, vary) for j in both[1]]


def _digit(
    i: Affine, j: Affine, pair: tuple[Access, Access], same: set[Expr], vary: set[Var]
) -> set[Expr] | None:
    """The atoms whose distance the equation `i == j` forces to 0; None: it has no solution."""
    digits: dict[Expr, tuple[int, int | None]] = {}
    lo: int | None = i.const - j.const
    hi: int | None = lo
    for atom in dict(i.terms) | dict(j.terms):
        p, q = i.coefficient(atom), j.coefficient(atom)
        stable = not reads_memory(atom)
        fixed = atom in same or (stable and all(v in same for v in variables(atom)))
        if fixed and p == q:
            continue
        one = bounds(atom, pair[0].ranges)
        if stable and p == q and all(v in vary or v in same for v in variables(atom)):
            least, most = _minus(one, bounds(atom, pair[1].ranges))
            reach = None if least is None or most is None else max(-least, most, 0)
            digits[atom] = (p, None if reach is None else abs(p) * reach)
            continue
        part = _times(one, p - q)
        if not fixed:
            part = _minus(_times(one, p), _times(bounds(atom, pair[1].ranges), q))
        lo, hi = _minus((lo, hi), _times(part, -1))
    return _forced(digits, lo, hi)


def _forced(
    digits: dict[Expr, tuple[int, int | None]], lo: int | None, hi: int | None
) -> set[Expr] | None:
    if lo is None or hi is None:
        return set()
    settled: set[Expr] = set()
    for atom, (c, _) in sorted(digits.items(), key=lambda d: -abs(d[1][0])):
        others = [reach for a, (_, reach) in digits.items() if a is not atom and a not in settled]
        if None in others:
            break
        slack = max(abs(lo), abs(hi)) + sum(r for r in others if r is not None)
        if abs(c) <= slack:
            break
        settled.add(atom)
    if len(settled) == len(digits) and (lo > 0 or hi < 0):
        return None
    return settled


def _times(x: Interval, c: int) -> Interval:
    if c == 0:
        return (0, 0)
    lo, hi = x if c > 0 else (x[1], x[0])
    return (None if lo is None else lo * c, None if hi is None else hi * c)


def _minus(x: Interval, y: Interval) -> Interval:
    lo = None if x[0] is None or y[1] is None else x[0] - y[1]
    hi = None if x[1] is None or y[0] is None else x[1] - y[0]
    return (lo, hi)


# -- isl


def _meet(
    a: Access, b: Access, band: Sequence[For], relation: Relation, ideal: bool
) -> Verdict | None:
    """A verdict other than legal if iterations in `relation` meet; None where none do."""
    same = proven_equal(a, b, band, ideal)
    if same is None or len(same) == len(band):
        return None
    return ask_isl(a, b, band, relation, ideal)


def ask_isl(
    a: Access, b: Access, band: Sequence[For], relation: Relation, ideal: bool = False
) -> Verdict | None:
    """As the lemma, decided by isl: illegal with a witness, unknown, or None where none meet."""
    domain = Domain()
    outer = a.loops[: a.loops.index(band[0])]
    shared: dict[Var, str] = {loop.var: domain.variable() for loop in outer}
    one, two = (_iteration(domain, x, shared) for x in (a, b))
    vary = {loop.var for loop in band}
    for i, j in zip(*_forms(a, b, vary, ideal), strict=True):
        domain.require(f"{one.expr(to_expr(i))} = {two.expr(to_expr(j))}")
    p, q = ([t.names[loop.var] for loop in band] for t in (one, two))
    place = show_place(a.buffer, a.index)
    names = ", ".join(loop.var.name for loop in band)
    try:
        point = sample(domain, [relation(p, q)])
    except TooHard:
        return Verdict(UNKNOWN, f"isl gave up on {place} over {names}: operation limit")
    if point is None:
        return None
    if not domain.exact:
        return Verdict(UNKNOWN, f"the accesses of {a.buffer.name} over {names} are not affine")
    values = dict(zip(domain.names, point, strict=True))
    first, second = (
        {loop.var.name: values[t.names[loop.var]] for loop in x.loops}
        for t, x in ((one, a), (two, b))
    )
    element = ", ".join(str(_at(i, a, one, values)) for i in a.index)
    witness = Witness(first, second, f"{a.buffer.name}[{element}]")
    texts = [", ".join(f"{name}={value}" for name, value in x.items()) for x in (first, second)]
    reason = f"iterations ({texts[0]}) and ({texts[1]}) meet at {witness.place}"
    return Verdict(ILLEGAL, reason, witness)


def _iteration(domain: Domain, access: Access, shared: dict[Var, str]) -> Translator:
    translate = Translator(domain, shared, access.ranges)
    for p in access.loops:
        name = translate.names.get(p.var)
        extent = translate.expr(p.extent)
        if name is None:
            name = translate.names[p.var] = domain.variable()
        domain.require(f"0 <= {name} < {extent}")
    for condition, holds in access.guards:
        domain.require(translate.condition(condition, holds))
    return translate


def _at(i: Expr, a: Access, translate: Translator, values: dict[str, int]) -> int:
    env: dict[Var, tuple[int, int]] = {}
    for p in a.loops:
        value = values[translate.names[p.var]]
        env[p.var] = (value, value)
    return bounds(i, env)[0] or 0
