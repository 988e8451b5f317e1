"""Kernels of fixed sizes, scheduled alone and put together as one kernel of an open plan."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tilewright.base import events, flags
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import (
    ScheduleError,
    TilewrightError,
    TilewrightWarning,
    UnprovenError,
    VerifyError,
)
from tilewright.base.names import fresh
from tilewright.compute.canonical import canonical
from tilewright.expr.nodes import INDEX, Buffer, Var
from tilewright.loops.analysis.access import environment
from tilewright.loops.analysis.effects import reads
from tilewright.loops.nodes import Kernel, Stmt
from tilewright.loops.passes.hoist import HoistedKernel, hoist
from tilewright.loops.passes.on_buffers import on_buffers
from tilewright.loops.sizes import with_statement
from tilewright.loops.verify import verify
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.normalize import KernelSignature, kernel_signature
from tilewright.schedule import edit
from tilewright.targets.base import Target


@dataclass(frozen=True, eq=False, slots=True)
class PartedWork:
    """A scheduled kernel. prepare: the work on constants, as independent sequences of kernels.

    form: which of the forms of its group it computes, counted from the end; -1: the group itself.
    """

    kernel: Kernel
    prepare: tuple[tuple[Kernel, ...], ...] = ()
    form: int = -1


def decline(kernel: Kernel, way: str, reason: str) -> None:
    """Report why a kernel does not run as a loop over its units, positions or rows."""
    events.emit("not-parted", kernel=kernel.name, by=way, reason=reason)


def tell_fault(error: TilewrightError) -> None:
    """Raise a broken invariant of an IR under TILEWRIGHT_DEBUG, and warn of it otherwise.

    It is a fault of the compiler, and only the kernel is slower for it: it runs in another form.
    What a primitive refuses, has no code, or is not proven is no fault.
    """
    if not isinstance(error, VerifyError) or isinstance(error, UnprovenError):
        return
    if flags.DEBUG.get():
        raise error
    warnings.warn(
        f"internal error: {error}; the kernel runs in another form; please report it",
        TilewrightWarning,
        stacklevel=2,
    )


def scheduled_part(
    found: KernelSignature,
    constants: Collection[Buffer],
    target: Target,
    local: Collection[str] = (),
    packed: tuple[int, ...] = (),
) -> HoistedKernel:
    """The kernel of fixed sizes in its default schedule, on tensors of their own shapes.

    constants: the parameters that are packed at compile time. local: names of values that may
    have the shapes of the parameters instead. packed: as for `Target.default_schedule`.
    """
    plain = found.plain()
    verify(plain)
    made = target.default_schedule(plain, found.computations, constants, packed)
    for b, p in zip(found.values, found.params, strict=True):
        if p is not b and b.name not in local:
            made.reshape(p.name, *b.shape)
    of_name = {b.name: b for b in made.kernel.params}
    return hoist(made.kernel, {of_name[p.name] for p in constants})


def packed_alike(one: HoistedKernel, other: HoistedKernel) -> bool:
    """Whether both kernels read the same results of the same work on constants."""
    texts = set()
    for work in (one, other):
        ends = [b for k in work.prepare for b in k.params]
        texts.add(canonical([k.body for k in work.prepare], ends))
    return len(texts) == 1


def packed_shape(work: HoistedKernel) -> tuple[int, ...]:
    """The shape of the largest packed constant that a kernel reads; () if it reads none."""
    read = set(work.kernel.params)
    made = [b for k in work.prepare for b in k.outputs if b in read]
    return max(made, key=lambda b: b.size).shape if made else ()


def of_one_size(
    kernel: Kernel, group: FusionGroup, constants: Collection[Buffer], target: Target
) -> PartedWork | None:
    """The scheduled kernel of a group that no size of its plan changes; None for any other group,
    and for one whose tensors cannot have their own shapes again.

    kernel: unscheduled, with all sizes of the plan.
    """
    if any(c.sizes or c.free for c in group.computations):
        return None
    if not all(b.static for b in kernel.params):
        return None
    found = kernel_signature(group, kernel.outputs, parts=False)
    pairs = zip(found.values, found.params, strict=True)
    known = {p for b, p in pairs if b in constants}
    try:
        work = scheduled_part(found, known, target)
    except ScheduleError as error:  # merged axes that are indexed by what memory has
        decline(kernel, "one size", str(error))
        return None
    assembly = PartAssembly(kernel)
    stmt = assembly.body(work.kernel, "")
    packed = assembly.packed(work.prepare, "")
    by_name = {b.name: b for b in kernel.params}
    moves = {b: edit.onto(packed.get(b) or by_name[b.name]) for b in work.kernel.params}
    return assembly.work(edit.rewrite(stmt, environment(stmt), moves=moves))


class PartAssembly:
    """The parts of a kernel, with names that occur once.

    kernel: unscheduled, with all sizes. taken: the names that are in use.
    """

    def __init__(
        self,
        kernel: Kernel,
    ) -> None:
        self.kernel = kernel
        self.taken = {b.name for b in kernel.params} | {v.name for v in kernel.sizes}
        self._notes: dict[str, Mapping[str, object]] = {}
        self._prepare: list[tuple[Kernel, ...]] = []

    def variable(
        self,
        wish: str,
    ) -> Var:
        """A new loop variable."""
        return Var(fresh(self.taken, wish), INDEX)

    def body(
        self,
        part: Kernel,
        suffix: str,
    ) -> Stmt:
        """What a part runs, with new names and its notes."""
        stmt, names = edit.renamed(part.body, self.taken, suffix)
        self._notes |= {names.get(n, n): said for n, said in part.notes.items()}
        return stmt

    def packed(
        self,
        prepare: Sequence[Kernel],
        suffix: str,
    ) -> dict[Buffer, Buffer]:
        """New buffers for the results of work on constants, by the part's own."""
        own: dict[Buffer, Buffer] = {}
        for b in (k.outputs[0] for k in prepare):
            own[b] = Buffer(fresh(self.taken, b.name + suffix), b.extents, b.dtype)
        if own:
            self._prepare.append(tuple(on_buffers(k, own) for k in prepare))
        return own

    def work(
        self,
        body: Stmt,
    ) -> PartedWork:
        """The whole kernel. body: of all parts, what runs for each choice of the sizes."""
        old = self.kernel
        read = reads(body)
        made = [k.outputs[0] for kernels in self._prepare for k in kernels]
        params = [b for b in (*old.inputs, *made) if b in read]
        whole = replace(
            with_statement(old, body),
            params=(*params, *old.outputs),
            notes=self._notes,
        )
        return PartedWork(whole, tuple(self._prepare))
