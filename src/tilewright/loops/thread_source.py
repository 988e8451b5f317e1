"""Python source of a thread of a launch, as a generator that pauses before each statement."""

from __future__ import annotations

from collections.abc import (
    Callable,
    Mapping,
    Sequence,
)
from typing import Any, Final

from tilewright.expr.nodes import Buffer, Lt, Var, const
from tilewright.loops.interp_source import SourceWriter
from tilewright.loops.launch import (
    AXIS,
    AtomicUpdate,
    Barrier,
    CombineThreads,
    Commit,
    Launch,
    Wait,
)
from tilewright.loops.nodes import (
    ASYNC,
    BULK,
    MULTICAST,
    Alloc,
    Block,
    For,
    If,
    Stmt,
    Unit,
    While,
)
from tilewright.loops.passes.in_flight import runs_beside
from tilewright.loops.passes.thread_program import THREAD_AXES
from tilewright.loops.passes.warp_units import lanes, written_fragments


class ThreadWriter(SourceWriter):
    """Writes a thread as a generator, which yields the number of each statement before it."""

    calls = "yield from "

    def __init__(self) -> None:
        super().__init__()
        self.statements: list[Stmt] = []
        self.exchanged: Sequence[Buffer] = ()
        self.lanes: tuple[str, ...] = ()
        self.is_piece = False
        self.copy = ""
        self.is_beside = False

    def launch(
        self,
        launch: Launch,
        sizes: Sequence[Var],
    ) -> str:
        """Source of `main(the buffers, the sizes, the numbers of the block and of the thread)`."""
        self.names = {b: self._fresh("b") for b in (*launch.params, *launch.shared)}
        self.names |= {v: self._fresh("n") for v in (*sizes, *AXIS.values())}
        self.exchanged = written_fragments(launch.body)
        threads = dict(zip(THREAD_AXES, launch.threads, strict=True))
        self.lanes = lanes(launch.body, threads)
        for axis, n in zip(AXIS, (*launch.grid, *launch.threads), strict=True):
            if isinstance(n, int):
                self.ranges[AXIS[axis]] = (0, n - 1)
        self.line(f"def main({', '.join(self.names.values())}):")
        self.depth += 1
        self.line("yield")
        self.stmt(launch.body)
        return "\n".join(self.lines)

    def stmt(
        self,
        s: Stmt,
    ) -> None:
        write = _HERE.get(type(s))
        if write is not None:
            self.done = {}
            write(self, s)
            return
        is_part = self.is_piece or self.copy in (_COPIES[BULK], _COPIES[MULTICAST])
        if not is_part and not isinstance(s, Alloc | Block | While):
            self.pause(s)
        outer = self.copy
        if isinstance(s, For):
            self.copy = _COPIES.get(s.kind, outer)
        super().stmt(s)
        self.copy = outer

    def pause(
        self,
        s: Stmt,
        more: str = "None",
    ) -> None:
        """Let others continue before this statement."""
        self.line(f"yield {len(self.statements)}, {more}")
        self.statements.append(s)

    def while_(
        self,
        s: While,
    ) -> None:
        self.line("while True:")
        self.depth += 1
        self.blocks += 1
        self.pause(s)
        self.line(f"if not {self.value(s.condition)}: break")
        self.stmt(s.body)
        self.blocks -= 1
        self.depth -= 1

    def unit(
        self,
        s: Unit,
    ) -> None:
        """Memory effects of a warp are performed by its first thread, effects on its registers by
        each thread, after it got what the others have of them."""
        held = [o.buffer for o in s.operands if o.buffer in self.exchanged]
        names = "".join(f"{self.known(b)}," for b in dict.fromkeys(held))
        self.pause(s, f"({names})" if held else "None")
        body = s.body
        if s.threads > 1 and s.operands[-1].buffer.scope != "warp":
            for axis in self.lanes:
                body = If(Lt(AXIS[axis], const(1)), body, None)
        self.is_piece = s.threads > 1
        self.is_beside = runs_beside(s)
        super().stmt(body)
        self.is_piece = self.is_beside = False

    def get(self, buffer: Buffer, at: str) -> str:
        if self.is_beside and buffer.scope == "shared":
            return f"{self.known(buffer)}.factor({at})"
        return super().get(buffer, at)

    def put(
        self,
        memory: str,
        at: str,
        value: str,
    ) -> None:
        if self.copy:
            self.line(f"{memory}.{self.copy}({at}, {value})")
        else:
            super().put(memory, at, value)

    def barrier(
        self,
        s: Barrier | Commit | Wait,
    ) -> None:
        self.pause(s)

    def atomic(
        self,
        s: AtomicUpdate,
    ) -> None:
        self.pause(s)
        ((b, index),) = s.targets
        at, name, r = self.position(b, index), self.known(b), s.reducer
        value = self.value(s.values[0])
        self.done[r.lhs[0]] = self.assign(f"{name}.held({at}, {r.name!r})")
        self.done[r.rhs[0]] = value
        self.written.add(b)
        self.line(f"{name}.atomic({at}, {self.value(r.result[0])})")

    def combine(
        self,
        s: CombineThreads,
    ) -> None:
        at = [(self.known(b), self.position(b, i)) for b, i in s.targets]
        self.pause(s, "[" + "".join(f"({b}, {i})," for b, i in at) + "]")


_COPIES: Final = {ASYNC: "copy", BULK: "box", MULTICAST: "multicast"}


_HERE: Final[Mapping[type[Stmt], Callable[[ThreadWriter, Any], None]]] = {
    Barrier: ThreadWriter.barrier,
    Commit: ThreadWriter.barrier,
    Wait: ThreadWriter.barrier,
    CombineThreads: ThreadWriter.combine,
    AtomicUpdate: ThreadWriter.atomic,
    Unit: ThreadWriter.unit,
}
