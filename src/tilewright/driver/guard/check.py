"""Validates one kernel: runs it in a separate process and checks the memory it leaves behind."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final

import numpy as np

from tilewright.base import events, flags
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import UnsupportedError, placed
from tilewright.base.guarded import Guarded, poison
from tilewright.base.text import plural
from tilewright.driver.compiled import CompiledGroup
from tilewright.driver.guard.feeds import FED_BACK, Feeds, index_limit
from tilewright.driver.guard.judges import (
    STEPS,
    ComputationJudge,
    ExpectedElements,
    Judge,
    KernelJudge,
    differ,
    steps,
)
from tilewright.driver.guard.native import GuardedRun, KernelRunner
from tilewright.driver.guard.process import apart
from tilewright.driver.guard.verdict import Fault, Verdict
from tilewright.expr.nodes import Buffer
from tilewright.expr.rounding import format_of
from tilewright.plan.normalize import KernelSignature
from tilewright.runtime.abi import STATUS_INDEX

Array = np.ndarray[Any, Any]
# Expression nodes evaluated for the expected results: about a second.
EFFORT: Final = 10_000_000
_MOST: Final = 8  # faults reported per kernel
_REFUSED: Final = (
    "values were not compared: the random data contain an index that is out of range"
)


def validate(
    signature: KernelSignature,
    code: CompiledGroup,
    fixed: Sequence[bool],
    *,
    kind: str = "",
    known: Mapping[Buffer, Array] | None = None,
    effort: int = EFFORT,
    shares: Sequence[int] = (3,),
    seed: int = 0,
    sizes: Sequence[int] = (),
) -> Verdict:
    """Run a compiled kernel alone on random data in guarded memory and judge its results.

    fixed: which of `signature.values` were constants at compile time. known: contents of constants;
    only those of integers are used. effort: a limit on the expression nodes evaluated for the
    expected results. If a kernel needs more, only some of its results are compared, at its real
    extents and edges first. shares: thread counts to run it with, besides 1. sizes: the values of
    the sizes that the code reads, where it is for many; the signature is the one at these sizes.

    The kernel runs in a forked process, so that a crash ends only that process. In every run, a
    protected page directly follows (or precedes) each tensor, inputs are read-only, and outputs and
    workspace are poisoned. The checks: results have the right values; exactly the elements that
    must be written are written; other initial memory, other thread counts, and a result in the
    memory of an input give the same bits. Raises UnsupportedError if processes cannot be forked.
    """
    if not hasattr(os, "fork") or sys.platform != "linux":
        raise UnsupportedError(
            f"kernels can be validated on Linux only, not on {sys.platform}",
            code="TW-CHECK",
            hint=f"Unset {flags.CHECK.name}; tilewright verify compares the whole model",
        )
    known = dict(known or {})
    job = _Job(signature, code, fixed, known, effort, tuple(shares), seed, sizes)
    verdict = Verdict(signature.name, kind, ", ".join(map(_type, _outputs(signature))))
    found = apart(job.do, job.places, job.ended)
    events.emit("kernel-validated", kernel=signature.name, ok=not found.faults)
    return replace(found, kernel=verdict.kernel, kind=kind, extents=verdict.extents)


def _type(b: Buffer) -> str:
    return f"{b.dtype}[{', '.join(map(str, b.shape))}]"


def _outputs(signature: KernelSignature) -> tuple[Buffer, ...]:
    return signature.values[len(signature.values) - len(signature.outputs) :]


@dataclass(eq=False)
class _Job:
    """Runs and judges one kernel, in the process that the kernel may crash."""

    signature: KernelSignature
    code: CompiledGroup
    fixed: Sequence[bool]
    known: dict[Buffer, Array]
    effort: int
    shares: tuple[int, ...]
    seed: int
    sizes: Sequence[int] = ()
    run: GuardedRun | None = None
    bench: KernelRunner | None = None
    refused: bool = False
    verdict: Verdict = field(default_factory=lambda: Verdict("", "", ""))

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        return _outputs(self.signature)

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        return self.signature.values[
            : len(self.signature.values) - len(self.signature.outputs)
        ]

    def do(self) -> Verdict:
        """Do all runs on all data."""
        with placed(f"validating kernel {self.signature.name}"):
            return self._all()

    def places(self) -> Sequence[Guarded]:
        """The memory of the current run."""
        return self.bench.places if self.bench is not None else ()

    def ended(self, text: str) -> Verdict:
        """The verdict if the current run ends the process; `text` says how."""
        fault = Fault("fault", str(self.run or ""), text)
        return replace(self.verdict, faults=(*self.verdict.faults, fault)[-_MOST:])

    def _all(self) -> Verdict:
        self.bench = KernelRunner(self.signature, self.code, self.fixed, self.sizes)
        kinds = (
            ("reals", "integers")
            if any(b.dtype.is_float for b in self.inputs)
            else ("reals",)
        )
        judge: Judge | None = None
        for data in kinds:
            judge = self._on(data, judge)
        found = self.verdict
        if self.refused and not found.compared:
            found = replace(found, note=found.note or _REFUSED)
        return replace(found, faults=found.faults[:_MOST])

    def _on(self, data: str, before: Judge | None) -> Judge | None:
        arrays = self._arrays(data)
        judge = self._judge(arrays, before)
        first: dict[Buffer, Array] | None = None
        for run in self._runs(data):
            got = self._results(run, arrays, judge)
            if got is None:
                return judge
            if first is None:
                first = got
                if judge is not None:
                    for b in self.outputs:
                        self._values(run, b, got[b], judge.expected(b))
            elif judge is not None:
                for b in self.outputs:
                    self._same(run, b, first[b], got[b], judge.written(b))
        return judge

    def _runs(self, data: str) -> Iterator[GuardedRun]:
        yield GuardedRun(data)
        if data == "integers":
            return
        yield GuardedRun(data, right=False, second=True)
        for count in self.shares:
            yield GuardedRun(data, threads=count)
        if not self.signature.offsets[-1]:
            for k in self.code.in_place:
                yield GuardedRun(data, shared=k)

    def _arrays(self, data: str) -> dict[Buffer, Array]:
        group = self.signature.source
        if group:
            limit = index_limit(group)
            read = {b for c in group for b in c.inputs}
        else:
            limit = min((n for b in self.inputs for n in b.shape if n > 1), default=1)
            read = set()
        unit = 1 if group else FED_BACK
        feeds = Feeds(self.seed, limit, self.known, unit)
        given = [*self.inputs, *(b for b in self.outputs if b in read)]
        return {b: feeds.array(n, b, data) for n, b in enumerate(given)}

    def _judge(
        self, arrays: Mapping[Buffer, Array], before: Judge | None
    ) -> Judge | None:
        signature = self.signature
        if signature.source:
            other = before if isinstance(before, ComputationJudge) else None
            judge = ComputationJudge(
                signature.source, arrays, self.outputs, self.effort, self.seed, other
            )
            self.verdict = replace(self.verdict, note=judge.note or self.verdict.note)
            return judge
        assert signature.kernel is not None
        if steps(signature.kernel.body) > STEPS:
            note = "values were not compared: the loop interpreter would take too long"
            self.verdict = replace(self.verdict, note=note)
            return None
        return KernelJudge(signature.kernel, arrays, self.outputs)

    def _results(
        self, run: GuardedRun, arrays: Mapping[Buffer, Array], judge: Judge | None
    ) -> dict[Buffer, Array] | None:
        """The outputs after a run; None if it fails or rejects the data."""
        assert self.bench is not None
        self.run = run
        status = self.bench.run(run, arrays) & 0xFF
        refused = judge is not None and judge.refused
        if status or refused:
            # Without a judge, it is unknown whether an index really is out of range.
            self.refused = status == STATUS_INDEX and (refused or judge is None)
            if not self.refused:
                text = f"the kernel reports failure code {status}, expected "
                text += (
                    f"{STATUS_INDEX}: an index is out of range" if refused else "none"
                )
                text = self.bench.said or text
                self._fault(Fault("status", str(run), text))
            return None
        for held in dict.fromkeys(self.bench.places):
            spilled = held.spilled()
            if spilled is not None:
                self._fault(Fault("fault", str(run), f"written {spilled}", held.name))
        count = len(self.inputs)
        got = {}
        for n, b in enumerate(self.outputs, count):
            got[b] = self.bench.held[n].bytes.copy().view(b.dtype.numpy)
            if judge is not None and run.shared is None:
                self._untouched(run, b, got[b], arrays, ~judge.written(b))
        return got

    # -- judging

    def _untouched(
        self,
        run: GuardedRun,
        b: Buffer,
        got: Array,
        arrays: Mapping[Buffer, Array],
        rest: Array,
    ) -> None:
        size = b.dtype.itemsize
        if b in arrays:
            before = np.ascontiguousarray(arrays[b]).reshape(-1)
        else:
            data = poison(size, b.dtype.is_float, len(got) * size, run.second)
            before = data.view(b.dtype.numpy)
        wrong = np.flatnonzero(differ(got, before) & rest)
        if len(wrong):
            text = f"{_elements(len(wrong), b)} written that the Computations do not"
            self._element("untouched", text + " write", run, b, wrong, before, got)

    def _values(
        self, run: GuardedRun, b: Buffer, got: Array, want: ExpectedElements
    ) -> None:
        found = got[want.places]
        wide = found.astype(np.float64)
        value = np.asarray(want.value).astype(np.float64)
        if b.dtype.is_float:
            error = np.abs(wide - value)
            error = np.where(
                (wide == value) | (np.isnan(wide) & np.isnan(value)), 0.0, error
            )
            error = np.where(np.isnan(error), np.inf, error)
            error = np.where(_overflowed(b, wide, value, want.error), 0.0, error)
        else:
            error = np.where(
                found == want.value, 0.0, np.maximum(np.abs(wide - value), 1.0)
            )
        wrong = np.flatnonzero(~(error <= want.error))
        self._count(len(want.places), b, error, want.error)
        if len(wrong):
            text = f"{len(wrong)} of {len(want.places)} elements of {b.name} are wrong"
            bound = float(want.error[wrong[0]])
            places = want.places[wrong]
            values = np.zeros(len(got))
            values[want.places] = value
            self._element("value", text, run, b, places, values, got, bound)

    def _count(self, compared: int, b: Buffer, error: Array, bound: Array) -> None:
        v = self.verdict
        known = np.isfinite(bound)
        v = replace(v, compared=v.compared + int(known.sum()), total=v.total + b.size)
        share = np.where(
            known & (bound > 0), error / np.where(bound > 0, bound, 1.0), 0.0
        )
        if share.size:
            n = int(np.argmax(share))
            if v.bound == 0 or error[n] / max(bound[n], 1e-300) > v.error / v.bound:
                v = replace(
                    v, error=float(error[n]), bound=float(bound[n]) if known[n] else 0.0
                )
        self.verdict = v

    def _same(
        self, run: GuardedRun, b: Buffer, first: Array, got: Array, written: Array
    ) -> None:
        moved = differ(got, first)
        if b.dtype.is_float:
            with np.errstate(invalid="ignore"):
                moved &= ~(
                    np.isnan(first.astype(np.float64))
                    & np.isnan(got.astype(np.float64))
                )
        wrong = np.flatnonzero(moved & written)
        if len(wrong):
            text = f"{_elements(len(wrong), b)} different from the first run"
            self._element("repeat", text, run, b, wrong, first, got)

    def _element(
        self,
        what: str,
        text: str,
        run: GuardedRun,
        b: Buffer,
        wrong: Array,
        expected: Array,
        got: Array,
        bound: float = 0.0,
    ) -> None:
        place = tuple(int(i) for i in np.unravel_index(int(wrong[0]), b.shape))
        want = expected[wrong[0]]
        found = got[wrong[0]]
        within = f" within {bound:.3g}" if bound else ""
        said = f"{text}: {b.name}{list(place)} is {found}, expected {want}{within}"
        self._fault(Fault(what, str(run), said, b.name, place, str(want), str(found)))

    def _fault(self, fault: Fault) -> None:
        self.verdict = replace(self.verdict, faults=(*self.verdict.faults, fault))


def _overflowed(b: Buffer, wide: Array, value: Array, error: Array) -> Array:
    """Whether infinite results are correct: rounding may exceed the largest finite value."""
    most = format_of(b.dtype).most
    carried = np.isinf(wide) & (np.abs(value) + error >= most)
    same: Array = carried & (np.sign(wide) == np.sign(value))
    return same


def share_of(verdict: Verdict) -> float:
    """The largest difference as a fraction of its rounding bound; 0 if all values were exact."""
    return (
        verdict.error / verdict.bound
        if verdict.bound and math.isfinite(verdict.bound)
        else 0.0
    )


def _elements(count: int, b: Buffer) -> str:
    """The subject and verb of a fault's text."""
    return plural(count, f"element of {b.name} is", f"elements of {b.name} are")
