"""MDH's tuning parameters on a GPU: its layers are blocks, threads, and registers of a thread.

    PRT.BLK.i, PRT.THR.i    parts for blocks and for the threads of a block, of cc dimensions;
                            what is left of a dimension is a loop of each thread
    PRT.BLK.k               parts for blocks of a reduced dimension: each block has a partial
                            result in global memory, and a second launch combines them in order
    PRT.SM.k                tiles of a reduced dimension: what a block reads of one is in its shared
                            memory at a time
    MEM.SM.<buffer>         whether a buffer is read by way of shared memory
    ORD.RM                  the order of the loops of a thread

The result is in registers until its reductions are done (MDH's `C:RM`). Where a buffer goes by way
of shared memory, all threads of the block fetch its part together. Dimensions beyond the third of a
layer are flattened into z, as MDH does. A reduced dimension has no parts for threads: the target's
own sketches combine results between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import CC, PW, Dim
from tilewright.expr.affine import affine
from tilewright.lang.mdh.parameters import (
    PartedExpression,
    orders,
    parts,
    room,
    split_layers,
)
from tilewright.lang.mdh.partial import PART, in_two_passes
from tilewright.loops.walk import names_of
from tilewright.schedule import Schedule, tree
from tilewright.schedule.primitives.split import Tail
from tilewright.schedule.space.nest import fuse_all
from tilewright.tune.space import Parameter, Set
from tilewright.tune.space.formula import BoundFormula

NEST = ("BLK", "SM", "THR", "RM")
_AXES = {"BLK": "blockIdx", "THR": "threadIdx"}


@dataclass(frozen=True)
class GpuCut(PartedExpression):
    """One expression and its limits. threads: the most of a block."""

    threads: int = 256

    def parameters(self) -> Iterator[Parameter]:
        """The parameters of the layers; each chain of parts is in decision order."""
        taken_threads: list[str] = []
        for d in reversed(self.dims):
            name = d.var.name
            taken: list[str] = []
            whole = BoundFormula(d.extent, ())
            if d.combine == CC:
                most = room(self.threads, taken_threads)
                yield parts("THR", name, d.extent, taken, most)
                taken_threads.append(f"PRT.THR.{name}")
                yield parts("BLK", name, d.extent, taken, whole)
            else:
                yield parts("SM", name, d.extent, taken, whole)
                if d.combine == PW:
                    yield parts("BLK", name, d.extent, taken, whole)
        choices = orders([d.var.name for d in self.dims])
        if len(choices) > 1:
            yield Parameter("ORD.RM", Set(*choices))
        for b in self._staged():
            yield Parameter(f"MEM.SM.{b}", Set(False, True))

    def _staged(self) -> list[str]:
        """The buffers that may go by way of shared memory: a reduction reads them."""
        if all(d.combine == CC for d in self.dims):
            return []
        return [b.name for b in self.expression.inputs]

    def schedule(self, values: Mapping[str, Any]) -> Schedule:
        """The nest of these values. Raises ScheduleError if it is not legal.

        Of a reduction in parts for blocks there are two: of the parts, and of their results.
        """
        cut: dict[Dim, int] = {}
        for d in self.dims:
            count = values.get(f"PRT.BLK.{d.var.name}", 1)
            if d.combine == PW and count > 1:
                cut[d] = count
        passes = in_two_passes(self.expression, cut)
        s = self.plain(passes)
        for found in passes:
            part = replace(self, expression=found)
            own = dict(values)
            for d, count in cut.items():
                name = d.var.name
                own[f"PRT.BLK.{name}"] = 1
                own[f"PRT.BLK.{name}{PART}"] = count
                if found is not passes[0]:
                    own[f"PRT.SM.{name}"] = 1
            part.arrange_in(s, own)
        return s

    def arrange_in(self, s: Schedule, values: Mapping[str, Any]) -> None:
        """The loops of the expression, in a schedule that may have others."""
        loops: dict[tuple[str, str], str] = {}
        for d in self.dims:
            name = f"{self.expression.name}.{d.var.name}"
            loops |= split_layers(s, name, d, NEST, values, rest="RM")
        staged = [b for b in self._staged() if values.get(f"MEM.SM.{b}")]
        nest = NEST if staged else ("BLK", "THR", "SM", "RM")
        order: list[tuple[str, str]] = []
        for layer in nest:
            keys = self.layer(layer, values)
            order += [key for key in keys if key in loops]
        starts = self.arrange(s, [(loops[key], key[1]) for key in order])
        made = _Nest(s, loops, order, starts)
        self._in_registers(made, phases=bool(staged))
        for buffer in staged:
            made.fetch(buffer)
        made.bind_all()

    def _in_registers(self, made: _Nest, phases: bool) -> None:
        """Keep results in registers from their initialization until they are stored."""
        if all(d.combine == CC for d in self.dims):
            return
        tiles = made.of("SM") if phases else []
        around = made.of("BLK")
        if not tiles:
            around = around + made.of("THR")
        free = [d for d in self.dims if d.combine == CC]
        for o in self.expression.outputs:
            if not around:
                continue
            acc = made.s.cache_write(o.tensor.name, around[-1], "register")
            for n, index in enumerate(o.index if tiles else ()):
                for d in free:
                    if affine(index).coefficient(d.var) == 1:
                        made.store(f"{acc}.w{n}", d)


@dataclass(frozen=True)
class _Nest:
    """The loops of an expression: by layer and dimension, in order.

    starts: the loop that initializes results, by the loop that updates them.
    """

    s: Schedule
    loops: dict[tuple[str, str], str]
    order: list[tuple[str, str]]
    starts: dict[str, str]

    def of(self, layer: str) -> list[str]:
        """The loops of a layer, outermost first."""
        return [self.loops[key] for key in self.order if key[0] == layer]

    def axis(self, dim: str) -> str:
        """The axis of the threads of a dimension; empty without them. Raises ScheduleError."""
        dims = [key[1] for key in reversed(self.order) if key[0] == "THR"]
        if dim not in dims:
            return ""
        if len(dims) > 3:
            raise ScheduleError(
                f"{len(dims)} dimensions are split over threads, but a block has three axes",
                where="MEM.SM",
                hint="give one of them one part, or read no buffer through shared memory",
            )
        return f"threadIdx.{'xyz'[dims.index(dim)]}"

    def store(self, loop: str, d: Dim) -> None:
        """Bind a loop that stores what threads have in registers, as the loops that compute it."""
        axis = self.axis(d.var.name)
        if not axis:
            return
        own = self.loops.get(("RM", d.var.name))
        if own is not None:
            run = tree.find_loop(self.s.kernel, own, "bind")[0].trips
            assert run is not None
            loop = self.s.split(loop, run)[0]
        self.s.bind(loop, axis)

    def fetch(self, buffer: str) -> None:
        """Read a buffer by way of shared memory, which all threads of the block fill together."""
        at = (self.of("BLK") + self.of("SM"))[-1:]
        new = self.s.cache_read(buffer, at[0] if at else None, "shared")
        threads = [self.loops[key] for key in reversed(self.order) if key[0] == "THR"]
        copies = [n for n in sorted(names_of(self.s.kernel)) if _copies(new, n)]
        for loop, thread, axis in zip(reversed(copies), threads, "xyz", strict=False):
            n = tree.find_loop(self.s.kernel, thread, "bind")[0].trips
            extent = tree.find_loop(self.s.kernel, loop, "bind")[0].trips
            assert n is not None and extent is not None
            if extent > n:
                fits = extent % n == 0
                tail: Tail = "exact" if fits else "guard"
                loop = self.s.split(loop, n, tail)[1]
            self.s.bind(loop, f"threadIdx.{axis}")

    def bind_all(self) -> None:
        """Bind the loops of blocks and threads, those beyond the third as one with it."""
        for layer, group in _AXES.items():
            found = self.of(layer)
            starts = [self.starts[n] for n in found if n in self.starts]
            for names in (found, starts):
                inner = list(reversed(names))[:2]
                count = len(names) - len(inner)
                rest = names[:count]
                if len(rest) > 1:
                    fused = fuse_all(self.s, rest)
                    rest = [fused or rest[0]]
                for loop, axis in zip([*inner, *rest], "xyz", strict=False):
                    self.s.bind(loop, f"{group}.{axis}")


def _copies(buffer: str, loop: str) -> bool:
    """Whether a loop is one of those that fill a staged buffer."""
    return loop.startswith(f"{buffer}.r") and loop[len(buffer) + 2 :].isdigit()
