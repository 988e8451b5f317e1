"""MDH's tuning parameters as a space that is searched, on a processor or on a GPU."""

from __future__ import annotations

from typing import Final

from tilewright.base.errors import InputError, UnsupportedError
from tilewright.base.text import listing
from tilewright.compute.nodes import PS, Computation
from tilewright.lang.mdh.gpu_parameters import GpuCut
from tilewright.lang.mdh.parameters import PartedExpression
from tilewright.tune.space import ProgramSpace

GPUS: Final = ("cuda", "opencl")


def parameter_space(
    expression: Computation,
    *,
    lanes: int = 16,
    cores: int | None = None,
    target: str = "cpu",
    threads: int = 256,
) -> ProgramSpace:
    """The space of one expression; `.schedule(candidate)` is its schedule.

    target: "cpu", or a GPU ("opencl", "cuda"), whose layers are other ones (`gpu_parameters.py`).
    threads: the most of a block. lanes: the longest vector. cores: the most parts for cores, of
    all dimensions together; None: no limit. Parts for cores, lanes and threads are of cc dimensions
    only: results of others would have to be combined between them. Raises InputError for what is
    not a single expression, UnsupportedError for one with a scan, whose steps have one order.
    """
    if not isinstance(expression, Computation):
        raise InputError(
            f"{expression!r} is not an expression",
            where="mdh.parameter_space",
            hint="as in out_view[...](...) @ md_hom[...](...) @ inp_view[...](...)",
        )
    scans = [d.var.name for d in expression.dims if d.combine == PS and d.extent > 1]
    if scans:
        raise UnsupportedError(
            f"{expression.name} is a scan along {listing(scans)}",
            where="mdh.parameter_space",
            hint="build it: the target's sketches have their own parameters",
        )
    cut: PartedExpression = PartedExpression(expression, lanes, cores)
    if target in GPUS:
        cut = GpuCut(expression, lanes, cores, threads)
    return ProgramSpace(expression.name, cut.parameters(), cut.schedule)
