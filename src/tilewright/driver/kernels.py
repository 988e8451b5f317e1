"""Compiles fusion groups to object code, through the kernel cache.

The key of a kernel is made from the canonical text of its Computations, the set of constant
parameters, the target and the compiler's version. It does not depend on names in the model, so
layers of equal shape share a kernel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from functools import partial

from tilewright.base import events, flags, limits
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import (
    CompileError,
    ScheduleError,
    TilewrightError,
    placed,
)
from tilewright.base.store import FileStore
from tilewright.driver.compiled import CompiledGroup
from tilewright.driver.early_kernels import EarlyKernels
from tilewright.driver.prepare import PreparationCompiler
from tilewright.driver.processes import Job, share, workers
from tilewright.driver.reach import reach
from tilewright.driver.version import compiler
from tilewright.expr.nodes import Buffer, fixed
from tilewright.ir.node import postorder
from tilewright.loops.nodes import Kernel
from tilewright.loops.passes.hoist import HoistedKernel, hoist
from tilewright.loops.passes.in_place import overwritable
from tilewright.loops.verify import verify
from tilewright.plan.identity import structure
from tilewright.plan.normalize import KernelSignature
from tilewright.schedule import Schedule
from tilewright.schedule.space import Point
from tilewright.schedule.space.selection import Selection, selected_point
from tilewright.targets.base import Target


@dataclass(frozen=True, eq=False, slots=True)
class CompileRequest:
    """A fusion group to compile.

    fixed: which values are constants. choice: the requested schedule. key: a digest of everything
    that the code depends on.
    """

    signature: KernelSignature
    fixed: tuple[bool, ...]
    choice: Selection | None
    key: str

    @property
    def cost(self) -> int:
        """A rough measure of the time to compile it: the size of its expressions."""
        values = (o.value for c in self.signature.computations for o in c.outputs)
        return sum(1 for value in values for _ in postorder(value))


def _verified(after: str, *kernels: Kernel) -> None:
    """Under TILEWRIGHT_DEBUG, raise VerifyError naming the pass `after` for an invalid kernel."""
    if not flags.DEBUG.get():
        return
    for kernel in kernels:
        with placed(f"after {after}"):
            verify(kernel)


def _constants(signature: KernelSignature, fixed: Sequence[bool]) -> set[Buffer]:
    """The parameters that are known at compile time."""
    return {p for p, known in zip(signature.params, fixed, strict=True) if known}


Choose = Callable[[KernelSignature], Selection | None]  # None: the default schedule
# Withdraws a choice that is not possible; False if it was the caller's own.
Withdraw = Callable[[KernelSignature, ScheduleError], bool]


def no_choice(signature: KernelSignature) -> Selection | None:
    """Every kernel has its default schedule."""
    return None


def no_withdrawal(signature: KernelSignature, error: ScheduleError) -> bool:
    """Every choice is the caller's."""
    return False


class KernelCompiler:
    """Compiles fusion groups for a target, each distinct one once.

    store: the cache on disk, or None. host: the target that runs on this machine. sanitize: check
    every access while the code runs. choose: returns the schedule of a kernel. withdraw: called if
    that schedule is not possible.
    """

    def __init__(
        self,
        target: Target,
        host: Target,
        store: FileStore | None,
        sanitize: bool = False,
        choose: Choose = no_choice,
        withdraw: Withdraw = no_withdrawal,
    ) -> None:
        self.target = target
        self.host = host
        self.store = store
        self.sanitize = sanitize
        self.choose = choose
        self.withdraw = withdraw
        self.known: dict[str, CompiledGroup] = {}
        self._structures: dict[Hashable, str] = {}
        self._prepared = PreparationCompiler(host, sanitize)

    def compile(
        self, signature: KernelSignature, constants: Collection[Buffer]
    ) -> CompiledGroup:
        """Object code for a fusion group; `constants` are its values known at compile time."""
        return self._compiled(self._request(signature, constants))

    def compile_all(
        self,
        signatures: Sequence[KernelSignature],
        constants: Collection[Buffer],
        processors: int,
        early: EarlyKernels | None = None,
    ) -> Iterator[CompiledGroup]:
        """Compile each group, in order; several at a time if it pays.

        early: some of the kernels, which another process makes.
        """
        requests = [self._request(s, constants) for s in signatures]
        self._make_ahead(requests, processors, early or EarlyKernels())
        yield from map(self._compiled, requests)

    def jobs(
        self, signatures: Iterable[KernelSignature], constants: Collection[Buffer]
    ) -> dict[str, Job]:
        """By key, what compiles the kernels that are not there yet, the slowest first."""
        return self._jobs([self._request(s, constants) for s in signatures])

    def _request(
        self, signature: KernelSignature, constants: Collection[Buffer]
    ) -> CompileRequest:
        fixed = tuple(b in constants for b in signature.values)
        return self._asked(signature, fixed)

    def _asked(
        self, signature: KernelSignature, fixed: tuple[bool, ...]
    ) -> CompileRequest:
        key = self._key(signature, fixed)
        return CompileRequest(signature, fixed, self.choose(signature), key)

    def _compiled(self, request: CompileRequest) -> CompiledGroup:
        if self.choose(request.signature) != request.choice:
            # It has since been withdrawn, for another kernel with the same key.
            request = self._asked(request.signature, request.fixed)
        found = self._found(request.key)
        if found is not None:
            return found
        try:
            found = self.known[request.key] = self._made(request)
        except ScheduleError as error:
            if not self.withdraw(request.signature, error):
                raise
            return self._compiled(request)
        self._keep(request.key, found.to_bytes())
        return found

    def _jobs(self, requests: Iterable[CompileRequest]) -> dict[str, Job]:
        missing = {r.key: r for r in requests if self._found(r.key) is None}
        order = sorted(missing.values(), key=lambda w: -w.cost)
        return {w.key: partial(self._encoded, w) for w in order}

    def _encoded(self, request: CompileRequest) -> bytes:
        return self._made(request).to_bytes()

    def _make_ahead(
        self, requests: Sequence[CompileRequest], processors: int, early: EarlyKernels
    ) -> None:
        wanted = self._jobs(requests)
        made = early.stop()
        started = [key for key in wanted if key in made]
        jobs = {key: job for key, job in wanted.items() if key not in made}
        count = workers(len(jobs), processors)
        if count > 1 or started:
            for key, data in zip(jobs, share(list(jobs.values()), count), strict=True):
                self._take(key, data)
        if any(made[key].code is None for key in started):
            made = early.rest()
        for key in started:
            self._take(key, made[key].code, made[key].happened)

    def _take(
        self, key: str, data: bytes | None, happened: Iterable[events.Event] = ()
    ) -> None:
        """Code that another process made, and what it reported; None if it failed."""
        for event in happened:
            events.forward(event)
        if data is not None:
            self._keep(key, data)
            self.known[key] = CompiledGroup.from_bytes(data)

    def _keep(self, key: str, data: bytes) -> None:
        if self.store is not None:
            self.store.put(key, data)

    def _made(self, request: CompileRequest) -> CompiledGroup:
        limits.check()
        with events.span("kernel", name=request.signature.name):
            return self._make(request)

    def schedule(self, signature: KernelSignature, fixed: Sequence[bool]) -> Schedule:
        """The schedule of a fusion group: the one that `choose` returns, or the default.

        Its kernel is verified before and after under TILEWRIGHT_DEBUG.
        """
        plain = signature.plain()
        _verified("lower", plain)
        if self.choose(signature) is not None:
            made = self.point(signature, fixed).schedule
        else:
            constants = _constants(signature, fixed)
            made = self.target.default_schedule(
                plain, signature.computations, constants
            )
        _verified("schedule", made.kernel)
        return made

    def point(self, signature: KernelSignature, fixed: Sequence[bool]) -> Point:
        """The schedule of a fusion group, with its sketch and parameters.

        Raises ScheduleError for a choice that is not possible.
        """
        constants = _constants(signature, fixed)
        sketches = self.target.sketches(
            signature.plain(), signature.computations, constants
        )
        selection = self.choose(signature) or Selection()
        return selected_point(signature.group or signature.name, sketches, selection)

    def settle(self, signature: KernelSignature, fixed: Sequence[bool]) -> None:
        """Check that the chosen schedule is possible, before it is shown.

        Raises ScheduleError if it is not, and the choice is the caller's.
        """
        if self.choose(signature) is None:
            return
        try:
            self.point(signature, fixed)
        except ScheduleError as error:
            if not self.withdraw(signature, error):
                raise

    def hoisted(
        self, signature: KernelSignature, fixed: Sequence[bool]
    ) -> HoistedKernel:
        """The scheduled kernel without its work on constants, and that work; both verified under
        TILEWRIGHT_DEBUG."""
        with events.span("schedule", name=signature.name):
            scheduled = self.schedule(signature, fixed).kernel
        work = hoist(scheduled, _constants(signature, fixed))
        _verified("hoist", work.kernel, *work.prepare)
        return work

    def _key(self, signature: KernelSignature, fixed: Sequence[bool]) -> str:
        selection = self.choose(signature)
        text = "\n".join(
            [
                compiler(),
                self.target.key,
                self.host.key,
                str(fixed),
                f"sanitize={self.sanitize}",
                self._structure(signature),
                "" if selection is None else selection.source or repr(selection),
            ]
        )
        return hashlib.sha256(text.encode()).hexdigest()

    def _structure(self, signature: KernelSignature) -> str:
        """Found once for signatures that share their Computations."""
        if signature.kernel is not None:
            return structure(signature)
        shared = signature.computations, signature.params, signature.outputs
        if shared not in self._structures:
            self._structures[shared] = structure(signature)
        return self._structures[shared]

    def _found(self, key: str) -> CompiledGroup | None:
        """An equal kernel of this model, or from the cache; None if there is none."""
        if key in self.known:
            return self.known[key]
        data = None if self.store is None else self.store.get(key)
        if data is None:
            return None
        try:
            found = self.known[key] = CompiledGroup.from_bytes(data)
        except (ValueError, RecursionError):
            return None
        return found

    def _make(self, request: CompileRequest) -> CompiledGroup:
        signature = request.signature
        try:
            work = self.hoisted(signature, request.fixed)
            symbol = f"{signature.name}_{request.key[:12]}"
            made = self.target.emit(
                work.kernel,
                symbol,
                reach(signature.computations, signature.outputs)
                if self.sanitize
                else None,
            )
            # By name: a schedule may reshape a tensor and back.
            position = {p.name: n for n, p in enumerate(signature.params)}
            preparations, codes = self._prepared.compile(
                work.prepare, position, work.kernel.params
            )
            arguments = tuple(position[b.name] for b in work.kernel.params)
            written = [position[b.name] for b in overwritable(work.kernel)]
        except TilewrightError as error:
            name = signature.group or signature.name
            raise error.at(f"kernel {name}") from error.__cause__
        except RecursionError as error:
            raise CompileError(
                "the expression is nested too deeply", where=signature.name
            ) from error
        return CompiledGroup(
            symbol,
            arguments,
            fixed(made.workspace, symbol),
            fixed(made.thread_workspace, symbol),
            preparations,
            made.code,
            codes,
            tuple(n for n in written if n >= 0),
        )
