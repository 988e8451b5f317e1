"""The schedule methods for GPUs, recorded: which loops are over blocks and which over threads.

    f.gpu_tile(x, y, xo, yo, xi, yi, 16, 8)       one block for each tile, one thread for each point
    g.compute_at(f, xo).gpu_threads(x, y)         before it, by the same threads

A loop is given a group of axes, and `replay.py` the axis: as in Halide, the innermost loop of a
group is on x, the next one on y. What is computed at a block's loop is memory of the block. Nobody
writes barriers: see docs/launches.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Self

from tilewright.base.errors import ScheduleError
from tilewright.lang.halide.plan import LoopKind, PipelinePlan, TailStrategy, line

# The groups of axes. Lanes are threads that are inside all others.
BLOCKS: Final = "blockIdx"
THREADS: Final = "threadIdx"
LANES: Final = "lanes"
_KINDS: Final = (BLOCKS, THREADS, LANES)


def axes(vars: Sequence[str], kinds: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each loop of a group with its axis. vars: the loops, innermost first, by name.

    Raises ScheduleError for more than three of a group.
    """
    blocks = [v for v in vars if kinds.get(v) == BLOCKS]
    threads = [v for group in (LANES, THREADS) for v in vars if kinds.get(v) == group]
    for group, bound in ((BLOCKS, blocks), (THREADS, threads)):
        if len(bound) > 3:
            raise ScheduleError(
                f"{', '.join(bound)} are {len(bound)} loops on the axes of {group}",
                hint="there are three; fuse some of them",
            )
        for v, axis in zip(bound, "xyz", strict=False):
            yield v, f"{group}.{axis}"


def on_gpu(plan: PipelinePlan) -> bool:
    """Whether a loop of the definition is over blocks or threads."""
    return any(isinstance(d, LoopKind) and d.kind in _KINDS for d, _ in plan.directives)


class GpuVerbs:
    """The verbs for GPUs of a Func and a Stage.

    Each returns the object itself, and takes Halide's DeviceAPI, which says nothing here: the
    target of `realize` or `compile_jit` chooses the device. Each raises ScheduleError for a Var
    that is not a loop.
    """

    def _plan(self) -> PipelinePlan:
        raise NotImplementedError

    def split(
        self, old: Any, outer: Any, inner: Any, factor: Any, tail: TailStrategy
    ) -> Self:
        """See `Verbs`."""
        raise NotImplementedError

    def reorder(self, *vars: Any) -> Self:
        """See `Verbs`."""
        raise NotImplementedError

    def _kind(self, kind: str, var: Any, factor: Any, tail: TailStrategy) -> Self:
        raise NotImplementedError

    def gpu_blocks(self, *vars: Any, device_api: Any = None) -> Self:
        """One to three loops over the blocks of the grid."""
        return self._bound("gpu_blocks", BLOCKS, vars)

    def gpu_threads(self, *vars: Any, device_api: Any = None) -> Self:
        """One to three loops over the threads of a block."""
        return self._bound("gpu_threads", THREADS, vars)

    def gpu_lanes(self, var: Any, device_api: Any = None) -> Self:
        """A loop over neighboring threads of a block, inside those of `gpu_threads`."""
        return self._bound("gpu_lanes", LANES, (var,))

    def gpu_single_thread(self, device_api: Any = None) -> Self:
        """Run in a single thread: the default if no loop is over blocks or threads."""
        return self

    def gpu(self, *vars: Any, device_api: Any = None) -> Self:
        """`gpu(bx, tx)`, `gpu(bx, by, tx, ty)`, ...: loops over blocks, then over threads."""
        given = _without_api(vars)
        half = len(given) // 2
        if len(given) % 2 or not 1 <= half <= 3:
            raise _wrong(self._plan(), "gpu", given, "gpu(bx, tx), gpu(bx, by, tx, ty)")
        with self._plan().whole():
            self.gpu_blocks(*given[:half])
            return self.gpu_threads(*given[half:])

    def gpu_tile(
        self,
        *given: Any,
        tail: TailStrategy = TailStrategy.Auto,
        device_api: Any = None,
    ) -> Self:
        """`gpu_tile(x, y, bx, by, tx, ty, xsize, ysize)`; so too of one or three loops.

        Tiles over blocks, their points over threads. Without bx, by the loops over blocks keep the
        names x, y.
        """
        rest = list(_without_api(given))
        if rest and isinstance(rest[-1], TailStrategy):
            tail = rest.pop()
        count = {3: 1, 4: 1, 6: 2, 8: 2, 9: 3, 12: 3}.get(len(rest))
        if count is None:
            usage = "gpu_tile(x, y, [bx, by,] tx, ty, xsize, ysize)"
            raise _wrong(self._plan(), "gpu_tile", rest, usage)
        old = rest[:count]
        threads = rest[-2 * count : -count]
        sizes = rest[-count:]
        blocks = rest[count : -2 * count] or old
        with self._plan().whole():
            for names in zip(old, blocks, threads, sizes, strict=True):
                self.split(*names, tail)
            self.reorder(*threads, *blocks)
            self.gpu_blocks(*blocks)
            return self.gpu_threads(*threads)

    def _bound(self, verb: str, kind: str, vars: Sequence[Any]) -> Self:
        given = _without_api(vars)
        if not 1 <= len(given) <= 3:
            raise _wrong(self._plan(), verb, given, f"{verb}(x), {verb}(x, y)")
        with self._plan().whole():
            for var in given:
                self._kind(kind, var, None, TailStrategy.Auto)
        return self


def _without_api(given: Sequence[Any]) -> Sequence[Any]:
    """The arguments without Halide's DeviceAPI at the end."""
    if not given:
        return given
    last = given[-1]
    is_api = isinstance(last, Enum) and not isinstance(last, TailStrategy)
    return given[:-1] if is_api else given


def _wrong(
    plan: PipelinePlan, verb: str, given: Sequence[Any], usage: str
) -> ScheduleError:
    return ScheduleError(
        f"{verb} is given {len(given)} arguments",
        where=f"{plan.title}, {line()}",
        hint=f"as in {usage}",
    )
