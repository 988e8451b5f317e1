"""fission: one loop as two, the first part of its body run entirely first."""

from __future__ import annotations

from tilewright.base.names import fresh
from tilewright.expr.nodes import INDEX, Var
from tilewright.loops.analysis.access import environment
from tilewright.loops.analysis.dependence import can_fission
from tilewright.loops.analysis.terms import loads
from tilewright.loops.analysis.verdict import Verdict
from tilewright.loops.nodes import Block, For, If, Kernel, Stmt, block
from tilewright.loops.walk import names_of
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import because, check_steady, refuse
from tilewright.schedule.registry import primitive


def check_separable(verdict: Verdict, primitive_: str, loop: str) -> None:
    """Raise ScheduleError at the loop unless two parts of its body may run one after the other."""
    if not verdict:
        raise refuse(
            primitive_,
            loop,
            f"the parts depend on each other across iterations: {because(verdict)}",
            "part the body elsewhere, or take a loop further in",
        )


def statements(s: Stmt) -> tuple[Stmt, ...]:
    """The statements of a sequence, each under the guards around it that read no memory."""
    if isinstance(s, Block):
        return s.stmts
    if isinstance(s, If) and s.otherwise is None and not loads(s.condition):
        return tuple(If(s.condition, part, None) for part in statements(s.then))
    return (s,)


@primitive
def fission(kernel: Kernel, loop: str, after: int) -> tuple[Kernel, str]:
    """Split a loop whose body is a sequence in two; returns the second loop, `<loop>.2`.

    args: the loop; how many statements of its body stay in the first loop. A guard around all of
        them that reads no memory counts for each.
    requires: the body is a sequence of more than `after` statements, allocates nothing around them,
        where A(i) and B(j) conflict (access one element, one of them writing), i <= j; and the
        number of iterations does not depend on what A writes.
    before: for i: A(i); B(i)
    after:  for i: A(i)
            for i.2: B(i.2)
    """
    f, place = tree.find_loop(kernel, loop, "fission")
    parts = statements(f.body)
    if isinstance(f.body, If):
        each = For(f.var, f.extent, f.kind, block(*parts))
        kernel = edit.put(kernel, place, each)
        f, place = tree.find_loop(kernel, loop, "fission")
    if not 0 < after < len(parts):
        raise refuse(
            "fission",
            loop,
            f"its body is {len(parts)} statements, which cannot be parted after {after}",
            f"take 1 to {len(parts) - 1}"
            if len(parts) > 1
            else "nothing is left to part",
        )
    first = block(*parts[:after])
    second = block(*parts[after:])
    check_steady((f,), first, "fission", loop)
    check_separable(can_fission(kernel, f, after), "fission", loop)
    env = environment(kernel.body)
    taken = names_of(kernel)
    again = Var(fresh(taken, f"{loop}.2"), INDEX)
    second = edit.rewrite(second, env, {f.var: again})
    new = block(
        For(f.var, f.extent, f.kind, first),
        For(again, f.extent, f.kind, second),
    )
    return edit.put(kernel, place, new), again.name
