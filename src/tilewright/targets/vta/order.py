"""An execution order that the tokens allow, or the reason why there is none."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from tilewright.targets.vta.errors import DeadlockError, VTAError
from tilewright.targets.vta.isa import Finish
from tilewright.targets.vta.program import InstructionStream
from tilewright.targets.vta.stages import GIVERS, QUEUES, VtaModule


def dealt(program: InstructionStream) -> dict[VtaModule, deque[int]]:
    """The instructions' indices as they are dealt out to the stages."""
    queues: dict[VtaModule, deque[int]] = {s: deque() for s in VtaModule}
    for index, s in enumerate(program.stages):
        queues[s].append(index)
    return queues


def order(program: InstructionStream) -> Iterator[int]:
    """The instructions as they can be executed, up to FINISH.

    Always the first in the stream that can start; so a program that is right when executed one
    instruction after another does that. Raises DeadlockError when none can start, and VTAError
    when something is left after FINISH.
    """
    waiting = _Waiting(program)
    while True:
        ready = waiting.ready()
        if not ready:
            raise waiting.deadlock()
        index = min(ready)
        waiting.start(index)
        yield index
        waiting.end(index)
        if isinstance(program.instructions[index], Finish):
            waiting.check_nothing_left(index)
            return


class _Waiting:
    """The instructions that have not started, and the tokens that are there."""

    def __init__(self, program: InstructionStream) -> None:
        self.program = program
        self.queues = dealt(program)
        self.tokens = dict.fromkeys(QUEUES, 0)

    @property
    def heads(self) -> list[int]:
        """The next instruction of each stage that has one."""
        return [queue[0] for queue in self.queues.values() if queue]

    def ready(self) -> list[int]:
        """Those that have their tokens."""
        return [head for head in self.heads if not self.missing(head)]

    def missing(self, index: int) -> list[str]:
        """The queues that an instruction waits for."""
        return [queue for queue in self.program.pops[index] if not self.tokens[queue]]

    def start(self, index: int) -> None:
        self.queues[self.program.stages[index]].popleft()
        for queue in self.program.pops[index]:
            self.tokens[queue] -= 1

    def end(self, index: int) -> None:
        for queue in self.program.pushes[index]:
            self.tokens[queue] += 1

    def check_nothing_left(self, finish: int) -> None:
        if not self.heads:
            return
        if not self.ready():
            raise self.deadlock()
        count = sum(map(len, self.queues.values()))
        raise VTAError(
            f"{count} instructions are left when FINISH (instruction {finish}) has executed, "
            "this is the first",
            where=self.program.where(min(self.heads)),
            hint="put FINISH last, and let it wait for all that comes before",
        )

    def deadlock(self) -> DeadlockError:
        """The error for stages that all wait: which instruction waits for which queue, and why."""
        return DeadlockError(
            f"tokens never come: {'; '.join(map(self._waits, self.heads))}",
            where=self.program.where(min(self.heads)),
            hint="every pop needs a push before it on the other side",
        )

    def _waits(self, index: int) -> str:
        reasons = (
            f"for {queue} from {GIVERS[queue].name} ({self._why(queue)})"
            for queue in self.missing(index)
        )
        name = self.program.stages[index].name
        return f"{name} waits at instruction {index} {' and '.join(reasons)}"

    def _why(self, queue: str) -> str:
        left = self.queues[GIVERS[queue]]
        giver = next((i for i in left if queue in self.program.pushes[i]), None)
        if giver is None:
            return "none is pushed any more"
        held = (
            "waits itself" if giver == left[0] else f"comes after instruction {left[0]}"
        )
        return f"the next is pushed by instruction {giver}, which {held}"
