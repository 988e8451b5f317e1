"""The nodes of tensor expressions: axes, tensors, and operations.

    Op = Placeholder(output)
       | Compute(name, axis, reduce_axis, values, reducer, scanned, outputs)
       | Recurrence(name, inits, updates, states, outputs)

Bodies are ordinary scalar expressions over the axes, with loads of other tensors. An extent is an
integer or, where `var` made a size, an expression; such a program is specialized before it becomes
Computations (`program.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tilewright.base.dtypes import DType
from tilewright.base.errors import InputError
from tilewright.compute.nodes import CC, PS, PW
from tilewright.compute.reducer import Reducer
from tilewright.expr.nodes import INDEX, Buffer, Cast, Const, Expr, Load, Var, as_expr
from tilewright.ir.node import postorder

Extent = int | Expr


class Axis(Var, intern=False):
    """A dimension that a body iterates over: `low <= axis < low + extent`.

    combine: cc for an axis of a tensor, pw for one that is reduced over.
    """

    low: object
    extent: object
    combine: str

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False, slots=True)
class Placeholder:
    """A tensor that the caller gives."""

    output: Tensor

    axis = reduce_axis = ()

    @property
    def name(self) -> str:
        """The tensor's."""
        return self.output.name

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The tensor."""
        return (self.output,)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """None."""
        return ()


@dataclass(frozen=True, eq=False, slots=True)
class Compute:
    """Tensors given by a value at each point of `axis`, combined over `reduce_axis`.

    values: one per output. reducer: of `reduce_axis` and of the axes in `scanned`.
    """

    name: str
    axis: tuple[Axis, ...]
    reduce_axis: tuple[Axis, ...]
    values: tuple[Expr, ...]
    reducer: Reducer | None
    scanned: tuple[Axis, ...]
    outputs: tuple[Tensor, ...]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors read, each once, in order of first use."""
        return read_tensors(self.values)

    def combine(self, axis: Axis) -> str:
        """cc, pw or ps."""
        if axis in self.scanned:
            return PS
        return CC if axis in self.axis else PW


@dataclass(frozen=True, eq=False, slots=True)
class Recurrence:
    """Tensors whose slices along dimension 0 follow from earlier slices (TVM's `scan`).

    states: the placeholders that the updates read earlier slices of. steps: the operations of one
    step in order, the updates last.
    """

    name: str
    time: Axis
    inits: tuple[Tensor, ...]
    steps: tuple[Compute, ...]
    updates: tuple[Tensor, ...]
    states: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    reduce_axis = ()

    @property
    def axis(self) -> tuple[Axis, ...]:
        """The time axis."""
        return (self.time,)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What the steps read that no step makes, and the initial slices."""
        made = {*self.states, *(t for s in self.steps for t in s.outputs)}
        found = dict.fromkeys((*self.inits, *(t for s in self.steps for t in s.inputs)))
        return tuple(t for t in found if t not in made)


Op = Placeholder | Compute | Recurrence


class TensorBuffer(Buffer):
    """A buffer that knows its tensor."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor, name: str, scope: str) -> None:
        super().__init__(name, tensor.shape, tensor.dtype, scope)
        self.tensor = tensor


class Tensor:
    """A tensor to be indexed in bodies: `A[i, j + 1]`.

    op: what makes it. shape: integers, or expressions of sizes made by `var`.
    """

    __slots__ = ("buffer", "dtype", "op", "shape")

    op: Op

    def __init__(
        self, name: str, shape: tuple[Extent, ...], dtype: DType, scope: str = "global"
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.buffer = TensorBuffer(self, name, scope)

    @property
    def name(self) -> str:
        """Its name in printed programs."""
        return self.buffer.name

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def static(self) -> bool:
        """Whether every extent is a number."""
        return all(isinstance(e, int) for e in self.shape)

    def __getitem__(self, index: Any) -> Load:
        """The element at `index`. Raises InputError for a wrong number, dtype or constant."""
        parts = index if isinstance(index, tuple) else (index,)
        if len(parts) != self.ndim:
            raise InputError(
                f"indexed with {len(parts)} expressions, it has {self.ndim} dimensions",
                where=f"tensor {self.name}",
                hint="give one index per dimension",
            )
        return Load(self.buffer, tuple(self._index(n, i) for n, i in enumerate(parts)))

    def __call__(self, *index: Any) -> Load:
        """The element at `index`, as `A(i, j)` or `A(*indices)`."""
        return self[index]

    def _index(self, n: int, value: Any) -> Expr:
        where = f"tensor {self.name}, dimension {n}"
        if isinstance(value, float | str | slice) or value is None:
            raise InputError(
                f"the index is {value!r}", where=where, hint="an index is an integer"
            )
        i = as_expr(value, INDEX)
        if not i.dtype.is_int:
            raise InputError(
                f"the index is {i.dtype}",
                where=where,
                hint="convert it: .astype('int64')",
            )
        extent = self.shape[n]
        if (
            isinstance(i, Const)
            and isinstance(extent, int)
            and not 0 <= int(i.value.real) < extent
        ):
            raise InputError(
                f"index {i.value} is outside 0..{extent - 1}",
                where=where,
                hint="indices begin at 0; negative ones do not count from the end",
            )
        if i.dtype is INDEX:
            return i
        return Cast(i, INDEX)

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(repr, self.shape))}]"


def read_tensors(values: Iterable[Expr]) -> tuple[Tensor, ...]:
    """The tensors loaded in the expressions, each once, in order of first use."""
    found: dict[Tensor, None] = {}
    for value in values:
        for node in postorder(value):
            if isinstance(node, Load) and isinstance(node.buffer, TensorBuffer):
                found[node.buffer.tensor] = None
    return tuple(found)
