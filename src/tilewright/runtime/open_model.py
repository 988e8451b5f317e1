"""A model whose code works for all sizes within bounds: shapes and offsets for given sizes.

Nothing is compiled for given sizes: formulas yield the extents of tensors and the bytes of
workspaces, and the arena is laid out again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ArtifactError
from tilewright.runtime import abi, formulas
from tilewright.runtime.arena import Lifetime, assign_offsets
from tilewright.runtime.formulas import Formula
from tilewright.runtime.model import CompiledModel, NativeStep, Tensor, ValueSlot

SCRATCH: Final = 0  # the position of the workspace among the values of the one step
Shape = tuple[Formula, ...]


@dataclass(frozen=True, eq=False, slots=True)
class OpenModel:
    """One native step, and how all of it depends on sizes.

    model: at some sizes. sizes: what the code's block of sizes holds. inputs,
    outputs, values: shapes of the model's ends and of the step's values after the workspace.
    lives: of the values in the arena the first and the last kernel, by position. touched: for each
    kernel the positions of its operands. flops: of each kernel. workspace, thread_workspace: bytes,
    the most counts. check: raises an error unless the code is right at some sizes.
    """

    model: CompiledModel
    sizes: Shape
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    values: tuple[Shape, ...]
    lives: Mapping[int, tuple[int, int]]
    touched: tuple[tuple[int, ...], ...]
    flops: tuple[Formula, ...]
    workspace: tuple[Formula, ...]
    thread_workspace: tuple[Formula, ...]
    check: Callable[[Mapping[str, int]], None] | None = None

    @property
    def step(self) -> NativeStep:
        """The step that is the whole model."""
        (step,) = self.model.steps
        assert isinstance(step, NativeStep)
        return step

    def at(self, sizes: Mapping[str, int]) -> CompiledModel:
        """The model at these sizes, on the same code and constants. Raises as `check`."""
        if self.check is not None:
            self.check(sizes)
        step = self.step
        slots = [
            replace(s, tensor=_sized(s.tensor, shape, sizes))
            for s, shape in zip(step.values[1:], self.values, strict=True)
        ]
        lives = [
            Lifetime(slots[n].tensor.nbytes, *ends) for n, ends in self.lives.items()
        ]
        arena = assign_offsets(lives)
        for n, offset in zip(self.lives, arena.offsets, strict=True):
            slots[n] = replace(slots[n], at=offset)
        scratch = replace(step.values[SCRATCH], at=arena.total)
        kernels = tuple(
            replace(
                k,
                flops=formulas.value(flops, sizes),
                bytes=sum(slots[n].tensor.nbytes for n in touched),
            )
            for k, touched, flops in zip(
                step.kernels, self.touched, self.flops, strict=True
            )
        )
        model = self.model
        workspace = _most(self.workspace, sizes)
        return replace(
            model,
            inputs=_all_sized(model.inputs, self.inputs, sizes),
            outputs=_all_sized(model.outputs, self.outputs, sizes),
            steps=(NativeStep(step.symbol, (scratch, *slots), kernels),),
            arena_bytes=arena.total,
            workspace=-(-workspace // abi.ALIGNMENT) * abi.ALIGNMENT,
            thread_workspace=_most(self.thread_workspace, sizes),
            sizes=tuple(formulas.value(f, sizes) for f in self.sizes),
        )


def check(opened: OpenModel, names: Collection[str]) -> None:
    """Raise ArtifactError unless the parts of an open model fit together; names: of the sizes."""
    steps, model = opened.model.steps, opened.model
    if len(steps) != 1 or not isinstance(steps[0], NativeStep):
        raise ArtifactError("code for all sizes is not one native step")
    slots = steps[0].values[1:]
    in_arena = [n for n, s in enumerate(slots) if s.kind == "arena"]
    counts = (
        (len(model.inputs), len(opened.inputs)),
        (len(model.outputs), len(opened.outputs)),
        (len(slots), len(opened.values)),
        (len(steps[0].kernels), len(opened.touched)),
        (len(steps[0].kernels), len(opened.flops)),
        (len(model.sizes), len(opened.sizes)),
    )
    if not steps[0].values or any(a != b for a, b in counts):
        raise ArtifactError("code for all sizes has shapes of other tensors")
    if sorted(opened.lives) != in_arena or any(a > b for a, b in opened.lives.values()):
        raise ArtifactError("code for all sizes lacks the lifetime of a tensor")
    if any(n >= len(slots) for touched in opened.touched for n in touched):
        raise ArtifactError("code for all sizes has a kernel on tensors it has not")
    if any(_rank(s) != len(f) for s, f in zip(slots, opened.values, strict=True)):
        raise ArtifactError("code for all sizes has a tensor of another rank")
    known = dict.fromkeys(names)
    shapes = (opened.sizes, *opened.inputs, *opened.outputs, *opened.values)
    for formula in (
        e
        for shape in (*shapes, opened.flops, opened.workspace, opened.thread_workspace)
        for e in shape
    ):
        formulas.check(formula, known)


def _rank(slot: ValueSlot) -> int:
    return len(slot.tensor.shape or ())


def _most(found: Sequence[Formula], sizes: Mapping[str, int]) -> int:
    return max((formulas.value(f, sizes) for f in found), default=0)


def _sized(tensor: Tensor, shape: Shape, sizes: Mapping[str, int]) -> Tensor:
    return Tensor(
        tensor.name, tensor.dtype, tuple(formulas.value(f, sizes) for f in shape)
    )


def _all_sized(
    tensors: Sequence[Tensor], shapes: Sequence[Shape], sizes: Mapping[str, int]
) -> tuple[Tensor, ...]:
    pairs = zip(tensors, shapes, strict=True)
    return tuple(_sized(t, shape, sizes) for t, shape in pairs)
