"""From a fusion group to object code, through the kernel cache.

A kernel is found again by the canonical text of its Computations, which parameters are constants,
the target and this version: names in the model play no part, so layers of one shape share one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from tilewright.base import events, flags, limits
from tilewright.base.errors import CompileError, TilewrightError, VerifyError
from tilewright.base.store import Store
from tilewright.compute.canonical import canonical, canonical_tree
from tilewright.driver.compiled import CompiledStage, Preparation
from tilewright.driver.processes import share, workers
from tilewright.driver.reach import reach
from tilewright.driver.version import compiler
from tilewright.expr.nodes import Buffer
from tilewright.ir.node import postorder
from tilewright.loops.nodes import For, Kernel, Update
from tilewright.loops.passes.hoist import Hoisted, hoist
from tilewright.loops.passes.in_place import overwritable
from tilewright.loops.printer import show_kernel, show_units
from tilewright.loops.verify import verify
from tilewright.plan.normalize import Interface
from tilewright.schedule import Schedule
from tilewright.schedule.space import Point
from tilewright.schedule.space.selection import Selection, selected_point
from tilewright.targets.base import Artifact, Target
from tilewright.targets.permitted import Permissions


@dataclass(frozen=True, eq=False, slots=True)
class Wanted:
    """A fusion group to compile.

    fixed: which values are constants. key: all that its code depends on.
    """

    face: Interface
    fixed: tuple[bool, ...]
    key: str

    @property
    def cost(self) -> int:
        """How long it takes, roughly: what there is to write down."""
        values = (o.value for c in self.face.computations for o in c.outputs)
        return sum(1 for value in values for _ in postorder(value))


def _operators(kernel: Kernel) -> str:
    """What the reducers do that a kernel's text has by name only."""
    used = dict.fromkeys(n.reducer for n in postorder(kernel.body) if isinstance(n, Update))
    return "\n".join(f"{r} {r.lhs} {r.rhs} {r.dtypes} {r.result} {r.identity}" for r in used)


def _verified(after: str, *kernels: Kernel) -> None:
    """Under TILEWRIGHT_DEBUG, raise VerifyError, which names the pass `after`, for a broken one."""
    if not flags.DEBUG.get():
        return
    for kernel in kernels:
        try:
            verify(kernel)
        except VerifyError as error:
            raise error.at(f"after {after}") from error.__cause__


def _constants(face: Interface, fixed: Sequence[bool]) -> set[Buffer]:
    """The parameters that are known at compile time."""
    return {p for p, known in zip(face.params, fixed, strict=True) if known}


def _nameless(kernel: Kernel) -> str:
    """What a kernel says, whatever its name and those of its buffers and loops are."""
    loops = (n.var.name for n in postorder(kernel.body) if isinstance(n, For))
    notes = [sorted(kernel.notes.get(name, {}).items()) for name in loops]
    return f"{canonical_tree(kernel.body, kernel.params)}\n{notes}"


Choose = Callable[[Interface], Selection | None]  # None: the default schedule


def no_choice(face: Interface) -> Selection | None:
    """Every kernel has its default schedule."""
    return None


class KernelCompiler:
    """Compiles Stages for a target, each distinct one once.

    store: the cache on disk, or None. host: the target that runs on this machine. sanitize: check
    every access while the code runs. choose: which schedule a kernel gets.
    """

    def __init__(
        self,
        target: Target,
        host: Target,
        store: Store | None,
        sanitize: bool = False,
        choose: Choose = no_choice,
    ) -> None:
        self.target = target
        self.host = host
        self.store = store
        self.sanitize = sanitize
        self.choose = choose
        self.known: dict[str, CompiledStage] = {}
        self._prepared: dict[str, Artifact] = {}

    def compile(self, face: Interface, constants: Collection[Buffer]) -> CompiledStage:
        """Object code for a fusion group; `constants` are those of its values known now."""
        return self._compiled(self._wanted(face, constants))

    def compile_all(
        self, faces: Sequence[Interface], constants: Collection[Buffer], processors: int
    ) -> Iterator[CompiledStage]:
        """What `compile` makes of each, in order; made several at a time where it pays."""
        wanted = [self._wanted(face, constants) for face in faces]
        self._make_ahead(wanted, processors)
        yield from map(self._compiled, wanted)

    def _wanted(self, face: Interface, constants: Collection[Buffer]) -> Wanted:
        fixed = tuple(b in constants for b in face.values)
        return Wanted(face, fixed, self._key(face, fixed))

    def _compiled(self, wanted: Wanted) -> CompiledStage:
        found = self._found(wanted.key)
        if found is None:
            found = self.known[wanted.key] = self._made(wanted)
            self._keep(wanted.key, found.to_bytes())
        return found

    def _make_ahead(self, wanted: Sequence[Wanted], processors: int) -> None:
        missing = {w.key: w for w in wanted if self._found(w.key) is None}
        count = workers(len(missing), processors)
        if count == 1:
            return
        order = sorted(missing.values(), key=lambda w: -w.cost)
        jobs = [lambda w=w: self._made(w).to_bytes() for w in order]
        for w, data in zip(order, share(jobs, count), strict=True):
            if data is not None:
                self._keep(w.key, data)
                self.known[w.key] = CompiledStage.from_bytes(data)

    def _keep(self, key: str, data: bytes) -> None:
        if self.store is not None:
            self.store.put(key, data)

    def _made(self, wanted: Wanted) -> CompiledStage:
        limits.check()
        with events.span("kernel", name=wanted.face.name):
            return self._make(wanted)

    def schedule(self, face: Interface, fixed: Sequence[bool]) -> Schedule:
        """The schedule of a fusion group: the one that `choose` asks for, or the default one.

        Its kernel is verified before and after under TILEWRIGHT_DEBUG.
        """
        plain = face.plain()
        _verified("lower", plain)
        if self.choose(face) is not None:
            made = self.point(face, fixed).schedule
        else:
            constants = _constants(face, fixed)
            made = self.target.default_schedule(plain, face.computations, constants)
        _verified("schedule", made.kernel)
        return made

    def point(self, face: Interface, fixed: Sequence[bool]) -> Point:
        """The schedule of a fusion group with the sketch and the parameters that it comes from.

        Raises ScheduleError for a choice that is not possible.
        """
        constants = _constants(face, fixed)
        sketches = self.target.sketches(face.plain(), face.computations, constants)
        wanted = self.choose(face) or Selection()
        return selected_point(face.group or face.name, sketches, wanted)

    def hoisted(self, face: Interface, fixed: Sequence[bool]) -> Hoisted:
        """The scheduled kernel, its work on constants apart; verified under TILEWRIGHT_DEBUG."""
        scheduled = self.schedule(face, fixed).kernel
        work = hoist(scheduled, _constants(face, fixed))
        _verified("hoist", work.kernel, *work.prepare)
        return work

    def _key(self, face: Interface, fixed: Sequence[bool]) -> str:
        if face.kernel is not None:
            kernel = face.kernel
            program = f"{show_kernel(kernel)}\n{show_units(kernel)}\n{_operators(kernel)}"
        else:
            program = canonical(face.computations, face.params)
        names = " ".join(c.name for c in face.computations)
        text = "\n".join(
            [
                compiler(),
                self.target.key,
                self.host.key,
                names,
                str(fixed),
                f"sanitize={self.sanitize}",
                str([face.params.index(o) for o in face.outputs]),
                program,
                "" if (wanted := self.choose(face)) is None else repr(wanted),
            ]
        )
        return hashlib.sha256(text.encode()).hexdigest()

    def _found(self, key: str) -> CompiledStage | None:
        """The kernel of this model that is the same, or the one in the cache."""
        if key in self.known:
            return self.known[key]
        data = None if self.store is None else self.store.get(key)
        if data is None:
            return None
        try:
            found = self.known[key] = CompiledStage.from_bytes(data)
        except (ValueError, RecursionError):
            return None
        return found

    def _prepare(self, kernel: Kernel) -> Artifact:
        """Code for work on constants; the same work for many layers is compiled once."""
        text = _nameless(kernel)
        if text not in self._prepared:
            symbol = f"prepare_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
            whole: Permissions | None = {} if self.sanitize else None
            scheduled = self.host.default_schedule(kernel, (), ()).kernel
            self._prepared[text] = self.host.emit(scheduled, symbol, whole)
        return self._prepared[text]

    def _make(self, wanted: Wanted) -> CompiledStage:
        face = wanted.face
        try:
            work = self.hoisted(face, wanted.fixed)
            symbol = f"{face.name}_{wanted.key[:12]}"
            made = self.target.emit(
                work.kernel,
                symbol,
                reach(face.computations, face.outputs) if self.sanitize else None,
            )
            position = {p: n for n, p in enumerate(face.params)}
            preparations: list[Preparation] = []
            codes: list[bytes] = []
            for n, kernel in enumerate(work.prepare):
                part = self._prepare(kernel)
                result = kernel.outputs[0]
                inputs = tuple(position[b] for b in kernel.inputs)
                preparations.append(
                    Preparation(
                        part.symbol, inputs, result.shape, result.dtype.name, part.workspace
                    )
                )
                codes.append(part.code)
                position[result] = -1 - n
            arguments = tuple(position[b] for b in work.kernel.params)
        except TilewrightError as error:
            raise error.at(f"kernel {face.name}") from error.__cause__
        except RecursionError as error:
            raise CompileError("the expression is nested too deeply", where=face.name) from error
        return CompiledStage(
            symbol,
            arguments,
            made.workspace,
            made.thread_workspace,
            tuple(preparations),
            made.code,
            tuple(codes),
            tuple(position[b] for b in overwritable(work.kernel) if position[b] >= 0),
        )
