"""Stages: the loops of one operation, and the methods recorded for it.

A verb checks what can be known at once, records the rest, and returns handles of the loops it
makes. `replay.py` turns the records into schedule primitives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, Final, Literal, get_args

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError, UnsupportedError
from tilewright.base.names import fresh
from tilewright.base.numbers import whole
from tilewright.base.refused import refusing
from tilewright.compute.nodes import CC
from tilewright.lang.te.records import (
    Fuse,
    Handle,
    Line,
    Loop,
    Mark,
    Split,
    ThreadAxis,
    consumed,
    scope_of,
)
from tilewright.lang.te.syntax.naming import caller_line
from tilewright.lang.te.syntax.nodes import Axis, Op, Recurrence, Tensor
from tilewright.loops.intrinsic import TensorIntrinsic
from tilewright.loops.nodes import AXES
from tilewright.loops.scopes import Scope
from tilewright.schedule.primitives.split import Tail


@dataclass(frozen=True, eq=False, slots=True)
class Attach:
    """Where the stage is computed: `inline`, or at a loop of another stage."""

    line: Line
    how: Literal["inline", "at"]
    stage: Stage | None = None
    loop: Handle | None = None


_ABSENT: Final = {
    "env_threads": "bind the loops of each stage",
    "set_store_predicate": "if_then_else in the compute, or bind all loops that differ",
    "rolling_buffer": "s.schedule.slide(buffer, loop), then fold_storage",
    "transform_layout": 's.schedule.transform_layout("C", "lambda i, j: (j, i)")',
    "attach_ivar": ".attach.loop",
    "attach_stage": ".attach.stage",
    "attach_type": ".attach.how",
    "env_thread": "bind the loops of each stage",
    "group": "create_group returns the group",
    "is_output": "s.outputs",
    "iter_var_attrs": ".marks",
    "num_child_stages": "s.stages",
    "store_predicate": "if_then_else in the compute",
}


@dataclass(eq=False, slots=True)
class Stage:
    """One operation: its loops now (outermost first), and the records to replay.

    tensors: its names in the schedule, `s[tensor]`. within: the recurrence that it is a step of,
    whose time loop then represents its axis 0.
    """

    op: Op
    tensors: tuple[Tensor, ...]
    within: Recurrence | None = None
    leaves: list[Handle] = field(default_factory=list)
    relations: list[Split | Fuse] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    ordered: Line | None = None
    attach: Attach | None = None
    _taken: set[str] = field(default_factory=set)

    __getattr__ = refusing("TVM", _ABSENT)

    def __post_init__(self) -> None:
        axis = self.op.axis[1:] if self.within else self.op.axis
        self.leaves = [*axis, *self.op.reduce_axis]
        self._taken = {a.name for a in self.leaves}

    @property
    def name(self) -> str:
        """The tensor's name."""
        return self.tensors[0].name

    @property
    def origin_op(self) -> Op:
        """The operation."""
        return self.op

    @property
    def leaf_iter_vars(self) -> list[Handle]:
        """The loops now, outermost first."""
        return list(self.leaves)

    @property
    def all_iter_vars(self) -> list[Handle]:
        """Every loop there has been: those that were split or fused, and those there are."""
        gone = [x for r in self.relations for x in consumed(r)]
        return list(dict.fromkeys([*gone, *self.leaves]))

    @property
    def scope(self) -> str:
        """The memory of its values."""
        chosen = [m.args[0] for m in self.marks if m.verb == "set_scope"]
        return str(chosen[-1]) if chosen else self.tensors[0].buffer.scope

    # -- loops

    def split(
        self,
        parent: Handle,
        factor: int | None = None,
        nparts: int | None = None,
        tail: Tail | None = None,
    ) -> tuple[Loop, Loop]:
        """Tiles of `factor` iterations, or `nparts` of them; the outer and the inner loop.

        tail: see the primitive; where the tiles do not fit, each iteration is guarded by default.
        """
        line = self._line("split", parent, factor=factor, nparts=nparts, tail=tail)
        self._leaf(parent, line)
        size = whole(factor if nparts is None else nparts, 1)
        if (factor is None) == (nparts is None) or size is None:
            raise _error(
                line, "give factor= or nparts=, a positive integer", "as in split(x, 8)"
            )
        factor, nparts = (size, None) if nparts is None else (None, size)
        if tail not in (None, *get_args(Tail)):
            raise _error(line, f"unknown tail {tail!r}", ", ".join(get_args(Tail)))
        outer, inner = (self._loop(f"{parent.name}.{s}", parent.combine) for s in "oi")
        self._replace([parent], [outer, inner])
        self.relations.append(Split(line, parent, outer, inner, factor, nparts, tail))
        return outer, inner

    def tile(
        self,
        *loops_and_factors: Any,
        x_factor: int | None = None,
        y_factor: int | None = None,
    ) -> tuple[Loop, ...]:
        """`tile(y, x, 8, 8)`: the outer loops in the order given, then the inner ones.

        Any number of loops and as many factors, e.g. `tile(y, x, k, 8, 8, 8)`. The factors of two
        loops can be named as TVM has them: `x_factor` of the first, `y_factor` of the second.
        """
        named = [f for f in (x_factor, y_factor) if f is not None]
        loops_and_factors = (*loops_and_factors, *named)
        n = len(loops_and_factors) // 2
        loops = loops_and_factors[:n]
        factors = loops_and_factors[n:]
        if not n or len(factors) != n or any(whole(f) is None for f in factors):
            line = self._line("tile", *loops_and_factors)
            raise _error(
                line, "give n loops and then n factors", "as in tile(y, x, 8, 8)"
            )
        pairs = [self.split(x, f) for x, f in zip(loops, factors, strict=True)]
        made = (*(outer for outer, _ in pairs), *(inner for _, inner in pairs))
        self.reorder(*made)
        return made

    def fuse(self, *loops: Handle) -> Loop:
        """Neighboring loops, outermost first, as one."""
        line = self._line("fuse", *loops)
        if len(loops) < 2:
            raise _error(line, "it takes two or more loops", "as in fuse(y, x)")
        outer = loops[0]
        for inner in loops[1:]:
            self._leaf(outer, line)
            self._leaf(inner, line)
            if self.leaves.index(inner) != self.leaves.index(outer) + 1:
                hint = "reorder first"
                raise _error(
                    line, f"{inner} is not the loop directly inside {outer}", hint
                )
            if inner.combine != outer.combine:
                what = f"{outer} and {inner} are combined differently"
                raise _error(line, what, "fuse loops of one kind")
            fused = self._loop(f"{outer.name}_{inner.name}", outer.combine)
            self._replace([outer, inner], [fused])
            self.relations.append(Fuse(line, outer, inner, fused))
            outer = fused
        assert isinstance(outer, Loop)
        return outer

    def reorder(self, *loops: Handle) -> None:
        """These loops in this order, at the places that they take now."""
        line = self._line("reorder", *loops)
        for x in loops:
            self._leaf(x, line)
        if len(set(loops)) != len(loops):
            raise _error(line, "a loop is named twice", "name each once")
        queue = iter(loops)
        self.leaves = [next(queue) if x in loops else x for x in self.leaves]
        self.ordered = line

    # -- how loops run

    def vectorize(self, loop: Handle) -> None:
        """Its iterations together, as vector lanes."""
        self._mark("vectorize", loop)

    def unroll(self, loop: Handle) -> None:
        """Its iterations written out."""
        self._mark("unroll", loop)

    def parallel(self, loop: Handle) -> None:
        """Its iterations on several threads."""
        self._mark("parallel", loop)

    def bind(self, loop: Handle, thread: ThreadAxis | str) -> None:
        """Its iterations on an axis of a GPU, `thread_axis("threadIdx.x")`, or on "vthread"."""
        axis = thread.tag if isinstance(thread, ThreadAxis) else thread
        if axis not in AXES:
            hint = f"one of {', '.join(AXES)}"
            raise _error(self._line("bind", loop, thread), f"no axis {axis!r}", hint)
        self._mark("bind", loop, axis)

    def vthread(self, loop: Handle) -> None:
        """Its iterations as virtual threads, interleaved statement by statement."""
        self._mark("vthread", loop)

    def annotate(
        self,
        loop: Handle,
        key: str,
        value: Any = True,
    ) -> None:
        """A note for later readers of the kernel."""
        self._mark(
            "annotate", loop, key, int(value) if isinstance(value, bool) else value
        )

    def pragma(
        self,
        loop: Handle,
        key: str,
        value: Any = None,
    ) -> None:
        """A note with the key `pragma_<key>`, as TVM has it.

        Raises UnsupportedError for `import_c` and `import_llvm`.
        """
        if key in ("import_c", "import_llvm"):
            raise UnsupportedError(
                f"a text that is named at a loop: pragma({key!r})",
                where=f"s[{self.name}]",
                hint="call what it defines: call_extern(dtype, compile_c(text).name, ...), or "
                "hardware_intrinsic(name, ..., llvm=text)",
            )
        self.annotate(loop, f"pragma_{key}", 1 if value is None else value)

    def prefetch(self, tensor: Tensor, loop: Handle, offset: int = 1) -> None:
        """Prefetch the part of a tensor that is read `offset` iterations of a loop later.

        Annotates the vector loads of the tensor in that loop, of which there must be at least one.
        """
        line = self._line("prefetch", tensor, loop, offset)
        if not isinstance(tensor, Tensor) or whole(offset, 1) is None:
            hint = "as in prefetch(A, y, 4)"
            raise _error(line, "give a tensor, a loop and how many iterations", hint)
        self._leaf(loop, line)
        self.marks.append(Mark(line, "prefetch", loop, (tensor, offset)))

    def tensorize(self, loop: Handle, intrinsic: TensorIntrinsic | str) -> None:
        """The nest at a loop by a declared intrinsic."""
        self._mark("tensorize", loop, intrinsic)

    # -- where the stage is computed, and where its values are kept

    def compute_at(self, stage: Stage, loop: Handle) -> None:
        """Inside a loop of a stage that reads it, only the part needed there."""
        line = self._line("compute_at", stage, loop)
        stage._leaf(loop, line)
        around: Stage | None = stage
        while around is not None and around is not self:
            around = None if around.attach is None else around.attach.stage
        if around is self:
            raise _error(
                line, "a stage cannot be computed inside itself", "name another stage"
            )
        self.attach = Attach(line, "at", stage, loop)

    def compute_inline(self) -> None:
        """Its value in the place of every read."""
        self.attach = Attach(self._line("compute_inline"), "inline")

    def compute_root(self) -> None:
        """Before everything that reads it, as from the start."""
        self.attach = None

    def set_scope(self, scope: Scope) -> None:
        """Keep it in another memory."""
        found = scope_of(scope, self._line("set_scope", scope))
        self._mark("set_scope", None, found)

    def storage_align(
        self,
        axis: Handle,
        factor: int,
        offset: int = 0,
    ) -> None:
        """Rows (the extent of everything inside `axis`) of a length = offset modulo factor."""
        line = self._line("storage_align", axis, factor, offset)
        if axis not in self.op.axis:
            raise _error(
                line, f"{axis} is not an axis of {self.name}", "take one of .op.axis"
            )
        assert isinstance(axis, Axis)
        dim = self.op.axis.index(axis)
        self.marks.append(Mark(line, "storage_align", None, (dim, factor, offset)))

    def double_buffer(self) -> None:
        """Use two copies alternately, so that the next part is computed while this one is used."""
        self._mark("double_buffer", None)

    # -- the records

    def moved(self, op: Op, tensors: tuple[Tensor, ...]) -> Stage:
        """A stage of `op` with everything recorded about this one's loops, which starts afresh."""
        other = Stage(op, tensors)
        if not self.touched:
            return other
        for name in ("leaves", "relations", "marks", "ordered", "_taken"):
            setattr(other, name, getattr(self, name))
        return other

    def restart(self, op: Op) -> None:
        """Compute by another operation, with nothing recorded about its loops."""
        self.op = op
        self.relations = []
        self.marks = []
        self.ordered = None
        self.__post_init__()

    def reduced_anew(self, op: Op) -> None:
        """Compute by an operation of the same axes but another reduction."""
        free = [x for x in self.leaves if x.combine == CC]
        bound = [x for x in self.leaves if x.combine != CC]
        gone = {*bound, *self.op.reduce_axis}
        self.op = op
        self.leaves = [*free, *op.reduce_axis]
        self.relations = [r for r in self.relations if consumed(r)[0].combine == CC]
        self.marks = [m for m in self.marks if m.loop not in gone]

    @property
    def touched(self) -> bool:
        """Whether anything was recorded about it but where it is computed."""
        return bool(self.relations or self.marks or self.ordered)

    def _mark(
        self,
        verb: str,
        loop: Handle | None,
        *args: Any,
    ) -> None:
        shown = args if loop is None else (loop, *args)
        line = self._line(verb, *shown)
        if loop is not None:
            self._leaf(loop, line)
        self.marks.append(Mark(line, verb, loop, args))

    def _line(self, verb: str, *args: Any, **options: Any) -> Line:
        parts = [_shown(a) for a in args]
        parts += [f"{k}={v!r}" for k, v in options.items() if v is not None]
        return Line(f"s[{self.name}].{verb}({', '.join(parts)})", caller_line())

    def _loop(self, name: str, combine: str) -> Loop:
        return Loop(fresh(self._taken, name), combine)

    def _leaf(self, loop: Any, line: Line) -> None:
        if any(x is loop for x in self.leaves):
            return
        made = next((r for r in self.relations if loop in consumed(r)), None)
        why = f"{loop!r} is not a loop of {self.name}"
        if made is not None:
            why = f"{loop!r} is no longer a loop since {made.line}"
        raise _error(
            line, why, f"its loops are {', '.join(x.name for x in self.leaves)}"
        )

    def _replace(self, old: Sequence[Handle], new: Sequence[Handle]) -> None:
        at = self.leaves.index(old[0])
        self.leaves[at : at + len(old)] = new

    def __repr__(self) -> str:
        return f"stage({self.name}: {', '.join(x.name for x in self.leaves)})"


def _shown(value: Any) -> str:
    if isinstance(value, Stage):
        return f"s[{value.name}]"
    if isinstance(value, ThreadAxis):
        return f"thread_axis({value.tag!r})"
    if isinstance(value, str):
        return repr(value)
    return str(getattr(value, "name", value))


def _error(line: Line, message: str, hint: str) -> ScheduleError:
    return ScheduleError(message, where=str(line), hint=hint)
