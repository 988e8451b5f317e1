"""Groups of Computations with GPU schedules, and a check of their programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from tilewright.base.dtypes import DType, float32, int64
from tilewright.compute.build import reduce_
from tilewright.compute.nodes import CC, PS, PW, Computation, Dim, Output
from tilewright.compute.reducer import arg_reducer
from tilewright.expr.nodes import INDEX, Buffer, Call, Cast, Expr, Select, Var, const
from tilewright.loops import interp, launch_interp
from tilewright.loops.launch import LaunchProgram
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.operators import map_
from tilewright.schedule.space import Sketch
from tilewright.targets.simt.machine import SimtMachine
from tilewright.targets.simt.schedules import sketches

Group = tuple[Kernel, list[Computation]]


def softmax(m: int, n: int, t: DType = float32) -> Group:
    """Of each row."""
    x, y = Buffer("x", (m, n), t), Buffer("y", (m, n), t)
    e = Buffer("e", (m, n), t)
    most, total = Buffer("most", (m,), t), Buffer("total", (m,), t)
    made = [
        reduce_("max", most, (n,), "max", lambda i, k: x[i, k]),
        map_("exp", e, lambda i, j: Call("exp", (x[i, j] - most[i],))),
        reduce_("sum", total, (n,), "add", lambda i, k: e[i, k]),
        map_("div", y, lambda i, j: e[i, j] / total[i]),
    ]
    return lower("softmax", made, params=[x, y], outputs=[y]), made


def centered(m: int, n: int, t: DType = float32) -> Group:
    """Each row minus its mean, over its squared deviation; the mean is a result too."""
    x, y = Buffer("x", (m, n), t), Buffer("y", (m, n), t)
    total, mean = Buffer("total", (m,), t), Buffer("mean", (m,), t)
    square = Buffer("square", (m,), t)
    made = [
        reduce_("sum", total, (n,), "add", lambda i, k: x[i, k]),
        map_("avg", mean, lambda i: total[i] / const(n, t)),
        reduce_(
            "sq",
            square,
            (n,),
            "add",
            lambda i, k: (x[i, k] - mean[i]) * (x[i, k] - mean[i]),
        ),
        map_("out", y, lambda i, j: (x[i, j] - mean[i]) / (square[i] + const(1, t))),
    ]
    return lower("centered", made, params=[x, y, mean], outputs=[y, mean]), made


def row_sum(m: int, n: int, t: DType = float32) -> Group:
    """Of each row."""
    x, y = Buffer("x", (m, n), t), Buffer("y", (m,), t)
    made = [reduce_("sum", y, (n,), "add", lambda i, k: x[i, k])]
    return lower("row_sum", made, params=[x, y], outputs=[y]), made


def argmax(m: int, n: int, t: DType = float32) -> Group:
    """The first of the largest of each row, and its place."""
    x, v, y = Buffer("x", (m, n), t), Buffer("v", (m,), t), Buffer("y", (m,), int64)
    i, k = Var("i", INDEX), Var("k", INDEX)
    outputs = (Output(v, (i,), x[i, k]), Output(y, (i,), Cast(k, int64)))
    dims = (Dim(i, m, CC), Dim(k, n, PW))
    made = [Computation("arg", dims, outputs, arg_reducer("argmax", t, int64))]
    return lower("argmax", made, params=[x, v, y], outputs=[v, y]), made


def column_sum(m: int, n: int, t: DType = float32) -> Group:
    """Of each column, by their number."""
    x, s, y = Buffer("x", (m, n), t), Buffer("s", (n,), t), Buffer("y", (n,), t)
    made = [
        reduce_("sum", s, (m,), "add", lambda j, k: x[k, j]),
        map_("avg", y, lambda j: s[j] / const(m, t)),
    ]
    return lower("column_sum", made, params=[x, y], outputs=[y]), made


def total(m: int, n: int, t: DType = float32) -> Group:
    """Of everything."""
    x, y = Buffer("x", (m * n,), t), Buffer("y", (), t)
    made = [reduce_("sum", y, (m * n,), "add", lambda k: x[k])]
    return lower("total", made, params=[x, y], outputs=[y]), made


def running(m: int, n: int, t: DType = float32) -> Group:
    """The sum of each row up to every element."""
    return scan(m, n, t=t)


def scan(
    m: int, n: int, across: bool = False, exclusive: bool = False, t: DType = float32
) -> Group:
    """Running sums of rows, or across them; exclusive: of what is before."""
    x, y = Buffer("x", (m, n), t), Buffer("y", (m, n), t)

    def value(i: Expr, k: Expr) -> Expr:
        before = k - 1 if exclusive else k
        here = x[before, i] if across else x[i, before]
        return Select(k > 0, here, const(0, t)) if exclusive else here

    made = reduce_(
        "scan",
        y,
        (m if across else n,),
        "add",
        value,
        extents=(n if across else m,),
        index=lambda i, k: (k, i) if across else (i, k),
        combine=PS,
    )
    return lower("scan", [made], params=[x, y], outputs=[y]), [made]


def transpose(m: int, n: int, t: DType = float32) -> Group:
    """Of the last dimension with the first of three."""
    x, y = Buffer("x", (m, 2, n), t), Buffer("y", (n, 2, m), t)
    made = [map_("turn", y, lambda i, b, j: x[j, b, i] + x[j, b, i])]
    return lower("transpose", made, params=[x, y], outputs=[y]), made


GROUPS: Final[Mapping[str, tuple[Callable[..., Group], str]]] = {
    "softmax": (softmax, "rows"),
    "centered": (centered, "rows"),
    "row_sum": (row_sum, "rows"),
    "argmax": (argmax, "rows"),
    "column_sum": (column_sum, "columns"),
    "total": (total, "total"),
    "running": (running, "scan"),
    "transpose": (transpose, "transpose"),
}


def families(group: Group, machine: SimtMachine, exact: bool = False) -> list[Sketch]:
    """The sketches of a group."""
    return sketches(*group, machine, exact)


def inputs(kernel: Kernel, seed: int = 0) -> dict[Buffer, Any]:
    """Random integers, which any order adds up to the same, as the dtype; results of 77."""
    rng = np.random.default_rng(seed)
    return {
        b: np.full(b.shape, 77, b.dtype.numpy)
        if b in kernel.outputs
        else rng.integers(-4, 5, b.shape).astype(b.dtype.numpy)
        for b in kernel.params
    }


def check(
    kernel: Kernel,
    program: LaunchProgram,
    arrays: Mapping[Buffer, Any],
    run: Callable[[LaunchProgram, dict[Buffer, Any]], Any] = launch_interp.run,
    rtol: float = 1e-5,
) -> None:
    """The kernel's program computes the same on these arrays as its loops."""
    wanted = {b: a.copy() for b, a in arrays.items()}
    with np.errstate(all="ignore"):
        interp.run(kernel, wanted)
        found = {b: a.copy() for b, a in arrays.items()}
        found = run(program, found) or found
    for b in kernel.outputs:
        np.testing.assert_allclose(
            found[b].astype("d"), wanted[b].astype("d"), rtol=rtol, err_msg=str(program)
        )
