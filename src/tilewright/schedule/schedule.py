"""Schedule: a method per primitive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tilewright.schedule.primitives  # noqa: F401  (fills the table)
from tilewright.loops.intrinsic import TensorIntrinsic
from tilewright.schedule.primitives.layout import written
from tilewright.schedule.primitives.tile import Tail
from tilewright.schedule.record import Record


class Schedule(Record):
    """Applies primitives to a kernel and records them.

    `kernel` is the current program (immutable), `trace` how it came about; `print(schedule)` shows
    the program. Loops and buffers are found by name or by handle (`loop`, `buffer`); the names that
    a primitive makes are returned. Each method's full contract is the docstring of the function of
    its name in `schedule/primitives/`. Every method raises ScheduleError, and changes nothing,
    where it is illegal.
    """

    __slots__ = ()

    def split(self, loop: str, factor: int, tail: Tail = "exact") -> tuple[str, ...]:
        """Tiles of `factor` iterations; the names of outer and inner loop (cut: and the rest)."""
        if tail == "exact":
            return self._do("split", loop, factor)  # type: ignore[no-any-return]
        return self._do("split", loop, factor, tail=tail)  # type: ignore[no-any-return]

    def tile(self, *loops_and_factors: str | int, tail: Tail | None = None) -> tuple[str, ...]:
        """Tiles of a nest, as tile('i', 'j', 4, 8); the outer loops' names, then the inner."""
        return self._do("tile", *loops_and_factors, tail=tail)  # type: ignore[no-any-return]

    def fuse(self, outer: str, inner: str) -> str:
        """Two directly nested loops as one; its name."""
        return self._do("fuse", outer, inner)  # type: ignore[no-any-return]

    def reorder(self, *loops: str) -> None:
        """Directly nested loops in another order, outermost first."""
        self._do("reorder", *loops)

    def vectorize(self, loop: str) -> None:
        """Run the iterations of a loop together, as vector lanes."""
        self._do("vectorize", loop)

    def unroll(self, loop: str) -> None:
        """Write the iterations of a loop out."""
        self._do("unroll", loop)

    def parallel(self, loop: str) -> None:
        """Run the iterations of a loop on several threads."""
        self._do("parallel", loop)

    def serial(self, loop: str) -> None:
        """Run the iterations of a loop one after the other."""
        self._do("serial", loop)

    def bind(self, loop: str, axis: str) -> None:
        """Give each iteration of a loop to a block or thread of a GPU, or to a virtual thread."""
        self._do("bind", loop, axis)

    def pipeline(self, loop: str, *stages: int) -> None:
        """Run each statement of a loop's body some iterations late, so that iterations overlap."""
        self._do("pipeline", loop, *stages)

    def double_buffer(self, buffer: str, loop: str | None = None) -> None:
        """Fill a staged buffer for the next iteration before this one uses it, in two copies."""
        self._do("double_buffer", buffer, loop)

    def vthread(self, loop: str) -> tuple[str, ...]:
        """Interleave the iterations of a loop as virtual threads; the loops that it becomes."""
        return self._do("vthread", loop)  # type: ignore[no-any-return]

    def annotate(self, loop: str, key: str, value: int | float | str | None) -> None:
        """Note something about a loop (None: no longer)."""
        self._do("annotate", loop, key, value)

    def rename(self, *names: str) -> None:
        """Call loops otherwise, as rename('C.y', 'row', 'C.x', 'column')."""
        self._do("rename", *names)

    def fission(self, loop: str, after: int) -> str:
        """Part a loop's body after some statements; the name of the second loop."""
        return self._do("fission", loop, after)  # type: ignore[no-any-return]

    def merge(self, loop: str, other: str) -> None:
        """Run the loop that follows another one together with it, an iteration of each in turn."""
        self._do("merge", loop, other)

    def pad(self, loop: str, multiple: int) -> None:
        """Add iterations, which have no effect, until their number is a multiple."""
        self._do("pad", loop, multiple)

    def specialize(self, condition: str, loop: str | None = None) -> tuple[str, ...]:
        """Run a copy of a program where a condition such as 'mm.i < 8' holds; the copy's loops."""
        return self._do("specialize", condition, loop)  # type: ignore[no-any-return]

    def partition_loop(self, loop: str, *points: int) -> tuple[str, ...]:
        """Run a loop in parts without the guards decided there; the names of the parts' loops."""
        return self._do("partition_loop", loop, *points)  # type: ignore[no-any-return]

    def decompose_reduction(self, buffer: str, loop: str) -> tuple[str, ...]:
        """Initialise a reduction in its own nest before `loop`; the names of that nest's loops."""
        return self._do("decompose_reduction", buffer, loop)  # type: ignore[no-any-return]

    def cache_write(
        self,
        buffer: str,
        loop: str | None = None,
        scope: str = "register",
        name: str | None = None,
    ) -> str:
        """Stage what is written of a buffer; the new buffer's name."""
        return self._do("cache_write", buffer, loop, scope, name=name)  # type: ignore[no-any-return]

    def cache_read(
        self,
        buffer: str,
        loop: str | None = None,
        scope: str = "stack",
        pad: bool = False,
        name: str | None = None,
    ) -> str:
        """Stage what is read of a buffer, with its padding if asked; the new buffer's name."""
        return self._do(  # type: ignore[no-any-return]
            "cache_read", buffer, loop, scope, pad=pad or None, name=name
        )

    def pack(self, buffer: str, *loops: str, scope: str = "global", name: str | None = None) -> str:
        """Store what a nest reads of a buffer in the order of its loops; the new buffer's name."""
        return self._do("pack", buffer, *loops, scope=scope, name=name)  # type: ignore[no-any-return]

    def transform_layout(self, buffer: str, index_map: str | Callable[..., Any]) -> None:
        """Keep each element at another index, such as `lambda i, j: (j, i)`, or its text."""
        text = index_map if isinstance(index_map, str) else written(index_map)
        self._do("transform_layout", buffer, text)

    def storage_align(self, buffer: str, dim: int, factor: int, offset: int = 0) -> None:
        """Leave room so that the stride of a dimension is `offset` modulo `factor`."""
        self._do("storage_align", buffer, dim, factor, offset)

    def expand(self, buffer: str, loop: str) -> None:
        """Give each iteration its own element of a buffer allocated inside the loop."""
        self._do("expand", buffer, loop)

    def compute_at(self, buffer: str, loop: str, scope: str | None = None) -> None:
        """Compute an intermediate inside a consumer's loop, only the part needed there."""
        self._do("compute_at", buffer, loop, scope=scope)

    def duplicate(self, buffer: str, loop: str) -> tuple[str, ...]:
        """A copy of an intermediate for one consumer's loop; names of buffers, then of loops."""
        return self._do("duplicate", buffer, loop)  # type: ignore[no-any-return]

    def reverse_compute_at(self, buffer: str, loop: str) -> None:
        """Run the nest that writes a buffer inside its producer's loop, on the part just made."""
        self._do("reverse_compute_at", buffer, loop)

    def store_at(self, buffer: str, loop: str | None, compute: str) -> None:
        """Compute an intermediate inside the loop `compute`, allocated inside `loop` around it."""
        self._do("store_at", buffer, loop, compute)

    def store_with(self, buffer: str, other: str) -> None:
        """Keep an intermediate in the memory of what is stored where it is last used."""
        self._do("store_with", buffer, other)

    def slide(self, buffer: str, loop: str) -> tuple[str, ...]:
        """Compute in each iteration only what earlier ones have not; the first rows' loops."""
        return self._do("slide", buffer, loop)  # type: ignore[no-any-return]

    def fold_storage(self, buffer: str, dim: int, factor: int) -> None:
        """Use a dimension of an intermediate as a ring of `factor` rows."""
        self._do("fold_storage", buffer, dim, factor)

    def compute_inline(self, buffer: str) -> None:
        """Put the value of an intermediate map in the place of its reads."""
        self._do("compute_inline", buffer)

    def blockize(self, loop: str, unit: str | None = None) -> None:
        """Keep the nest at a loop together as one piece."""
        self._do("blockize", loop, unit=unit)

    def tensorize(self, loop: str, intrinsic: str | TensorIntrinsic) -> str:
        """Do the nest at a loop by a declared intrinsic; the name of the hardware call."""
        name = intrinsic.name if isinstance(intrinsic, TensorIntrinsic) else intrinsic
        return self._do("tensorize", loop, name)  # type: ignore[no-any-return]

    def reverse_compute_inline(self, buffer: str) -> None:
        """Apply the map that reads an intermediate where that is stored."""
        self._do("reverse_compute_inline", buffer)

    def rfactor(
        self, loop: str, scope: str = "register", buffer: str | None = None
    ) -> tuple[str, ...]:
        """A partial result per iteration of a reduction loop; the new buffers' names."""
        return self._do("rfactor", loop, scope, buffer=buffer)  # type: ignore[no-any-return]

    def set_scope(self, buffer: str, scope: str) -> None:
        """Move an allocated buffer to another memory scope."""
        self._do("set_scope", buffer, scope)
