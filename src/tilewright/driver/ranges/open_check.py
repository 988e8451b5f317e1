"""Validates the kernels of an open plan at sizes: each kernel alone, in guarded memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import placed
from tilewright.driver.compiled import CompiledGroup, Preparation
from tilewright.driver.guard import Verdict, validate
from tilewright.driver.ranges.open_code import OpenCode, forms_of
from tilewright.expr.nodes import Var
from tilewright.plan.nodes import FusionGroup, Plan
from tilewright.plan.normalize import KernelSignature
from tilewright.plan.open_extents import Resized, source_step
from tilewright.runtime import formulas


@dataclass(eq=False, slots=True)
class OpenKernelCheck:
    """Validates all kernels of a plan at the sizes of a call, each set of sizes once.

    codes: those of the plan's groups, in order. tiles: as for `forms_of`. Raises ExecutionError
    (TW-CHECK) for the first wrong kernel.
    """

    plan: Plan
    codes: Sequence[OpenCode]
    tiles: Sequence[int] = ()
    _right: set[tuple[int, ...]] = field(default_factory=set)

    def __call__(self, sizes: Mapping[str, int]) -> None:
        """sizes: by name; names that the plan does not have are ignored."""
        names = [e.size.name for e in self.plan.open]
        key = tuple(sizes[name] for name in names)
        numbers = {}
        for e, n in zip(self.plan.open, key, strict=True):
            first, step = source_step(self.plan, e)
            numbers[e.size] = (n - first) // step
        if key in self._right:
            return
        with events.span("check", total=len(self.codes)):
            for group, code in zip(self.plan.groups, self.codes, strict=True):
                shown = (f"{n} = {v}" for n, v in zip(names, key, strict=True))
                with placed(", ".join(shown)):
                    self._verdict(group, code, numbers).require()
        self._right.add(key)

    def _verdict(
        self, group: FusionGroup, code: OpenCode, sizes: dict[Var, int]
    ) -> Verdict:
        plan = self.plan
        resized = Resized(sizes, {})
        tensors = plan.touched(group)
        values = tuple(map(resized.buffer, tensors))
        form = resized.group(forms_of(plan, group, self.tiles)[code.form])
        signature = KernelSignature(
            name=group.name,
            computations=form.computations,
            kernel=form.kernel,
            values=values,
            params=values,
            outputs=values[len(group.reads) :],
            offsets=(0,) * len(values),
            source=form.computations,
            group=group.name,
        )
        return validate(
            signature,
            code_at(code, {v.name: n for v, n in sizes.items()}),
            [b in plan.data for b in tensors],
            known=plan.data,
            sizes=tuple(sizes.values()),
        )


def code_at(code: OpenCode, sizes: Mapping[str, int]) -> CompiledGroup:
    """The code at sizes, by name, with the preparations of all its packed constants in a row."""
    preparations: list[Preparation] = []
    packed: list[int] = []
    for pack in code.packs:
        before = len(preparations)
        for p in pack.preparations:
            inputs = tuple(k - before if k < 0 else k for k in p.inputs)
            preparations.append(replace(p, inputs=inputs))
        packed += [k - before for k in pack.arguments]
    return CompiledGroup(
        code.symbol,
        tuple(packed[-1 - k] if k < 0 else k for k in code.arguments),
        formulas.value(code.workspace, sizes),
        formulas.value(code.thread_workspace, sizes),
        tuple(preparations),
        code.code,
        tuple(c for pack in code.packs for c in pack.prepare_code),
    )
