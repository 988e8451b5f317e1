"""The nodes of tensor expressions: axes, tensors, and operations.

    Op = Placeholder(tensor)
       | Compute(name, axis, reduce_axis, values, reducer, scanned, outputs)
       | Recurrence(name, inits, updates, states, outputs)
       | Script(name, body, axis, reduce_axis, loops, outputs)  statements of the loop IR
       | HostCall(name, calls, inputs, outputs)          functions called on whole arrays

Bodies are ordinary scalar expressions over the axes, with loads of other tensors. An extent is an
integer or, where `var` made a size, an expression; such a program is specialized before it becomes
Computations (`program.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.base.errors import InputError
from tilewright.base.refused import refusing
from tilewright.compute.nodes import CC, PS, PW
from tilewright.compute.reducer import Reducer
from tilewright.expr.nodes import INDEX, Buffer, Cast, Const, Expr, Load, Var, as_expr
from tilewright.ir.node import Node, postorder
from tilewright.loops.nodes import Stmt

Extent = int | Expr


class Axis(Var, intern=False):
    """A dimension that a body iterates over: `low <= axis < low + extent`.

    combine: cc for an axis of a tensor, pw for one that is reduced over.
    """

    low: object
    extent: object
    combine: str

    @property
    def var(self) -> Axis:
        """The variable in bodies: the axis itself."""
        return self

    @property
    def dom(self) -> tuple[object, object]:
        """The first value and the number of values."""
        return self.low, self.extent

    @property
    def iter_type(self) -> str:
        """cc of an axis of a tensor, pw of one that is reduced over."""
        return self.combine

    @property
    def thread_tag(self) -> str:
        """None: loops are bound by a stage."""
        return ""

    def __repr__(self) -> str:
        return self.name


class Operation:
    """What every operation tells of itself, in TVM's words."""

    __slots__ = ()

    __getattr__ = refusing(
        "TVM",
        {"attrs": "tag_scope gives a tag; other attributes have no reader here"},
    )

    @property
    def input_tensors(self) -> tuple[Tensor, ...]:
        """The tensors that it reads."""
        return self.inputs  # type: ignore[attr-defined, no-any-return]

    @property
    def num_outputs(self) -> int:
        """How many tensors it makes."""
        return len(self.outputs)  # type: ignore[attr-defined]

    def output(self, index: int) -> Tensor:
        """One of the tensors that it makes."""
        return self.outputs[index]  # type: ignore[attr-defined, no-any-return]


@dataclass(frozen=True, eq=False, slots=True)
class Placeholder(Operation):
    """A tensor passed by the caller."""

    tensor: Tensor

    axis = reduce_axis = ()

    @property
    def name(self) -> str:
        """The tensor's."""
        return self.tensor.name

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The tensor."""
        return (self.tensor,)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """None."""
        return ()


@dataclass(frozen=True, eq=False, slots=True)
class Compute(Operation):
    """Tensors given by a value at each point of `axis`, combined over `reduce_axis`.

    values: one per output. reducer: of `reduce_axis` and of the axes in `scanned`. tag: a word of
    the user's for it.
    """

    name: str
    axis: tuple[Axis, ...]
    reduce_axis: tuple[Axis, ...]
    values: tuple[Expr, ...]
    reducer: Reducer | None
    scanned: tuple[Axis, ...]
    outputs: tuple[Tensor, ...]
    tag: str = ""

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors read, each once, in order of first use."""
        return read_tensors(self.values)

    @property
    def body(self) -> tuple[Expr, ...]:
        """The values."""
        return self.values

    def combine(self, axis: Axis) -> str:
        """cc, pw or ps."""
        if axis in self.scanned:
            return PS
        return CC if axis in self.axis else PW


@dataclass(frozen=True, eq=False, slots=True)
class Recurrence(Operation):
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


@dataclass(frozen=True, eq=False, slots=True)
class Script(Operation):
    """Tensors made by statements of the loop IR, over the buffers of tensors.

    axis, reduce_axis: handles of loops of the statements; loops: the names of these, in order.
    """

    name: str
    body: Stmt
    axis: tuple[Axis, ...]
    reduce_axis: tuple[Axis, ...]
    loops: tuple[str, ...]
    outputs: tuple[Tensor, ...]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors read, but for those it makes itself, in order of first use."""
        found = read_tensors([self.body])
        return tuple(t for t in found if t not in self.outputs)


@dataclass(frozen=True, eq=False, slots=True)
class Packed:
    """A call of a function on arrays (given by tensors), numbers and texts.

    pointers: whether arrays are passed as addresses, as a C function takes them.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    pointers: bool = False

    @property
    def name(self) -> str:
        """The function's name."""
        return str(getattr(self.function, "__name__", "function"))


@dataclass(frozen=True, eq=False, slots=True)
class HostCall(Operation):
    """Tensors made by functions that are called, between the compiled parts of a program."""

    name: str
    calls: tuple[Packed, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    axis = reduce_axis = ()


Op = Placeholder | Compute | Recurrence | Script | HostCall


class TensorBuffer(Buffer):
    """A buffer that knows its tensor."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor, name: str, scope: str) -> None:
        super().__init__(name, tensor.shape, tensor.dtype, scope)
        self.tensor = tensor


class TensorSlice:
    """A tensor with its first indices: `A[i]`, to be given the others."""

    def __init__(self, tensor: Tensor, indices: tuple[Any, ...]) -> None:
        self.tensor, self.indices = tensor, indices

    @property
    def dtype(self) -> DType:
        """The dtype of the elements."""
        return self.tensor.dtype

    def __getitem__(self, index: Any) -> Any:
        more = index if isinstance(index, tuple) else (index,)
        return self.tensor[(*self.indices, *more)]

    def _part(self, *_: object) -> NoReturn:
        raise InputError(
            f"indexed with {len(self.indices)} expressions, it has {self.tensor.ndim} dimensions",
            where=f"tensor {self.tensor.name}",
            hint="give one index per dimension",
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _part
    __truediv__ = __rtruediv__ = __floordiv__ = __mod__ = __neg__ = _part
    __lt__ = __le__ = __gt__ = __ge__ = _part
    astype = equal = asobject = expr_ty = _part


_TENSOR = {
    "equal": "a.eq(b) of two elements; `is` of two tensors",
    "astype": "compute(A.shape, lambda *i: A[i].astype(dtype))",
    "expr_ty": ".dtype",
}


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

    def __getitem__(self, index: Any) -> Any:
        """The element at `index`; with fewer indices, what takes the others: `A[i][j]`.

        Raises InputError for too many indices, and for one of a wrong dtype or value.
        """
        parts = index if isinstance(index, tuple) else (index,)
        if len(parts) < self.ndim:
            return TensorSlice(self, parts)
        return self.at(parts)

    def at(self, parts: tuple[Any, ...]) -> Load:
        """The element at an index of all dimensions."""
        if len(parts) != self.ndim:
            raise InputError(
                f"indexed with {len(parts)} expressions, it has {self.ndim} dimensions",
                where=f"tensor {self.name}",
                hint="give one index per dimension",
            )
        return Load(self.buffer, tuple(self._index(n, i) for n, i in enumerate(parts)))

    def __call__(self, *index: Any) -> Load:
        """The element at `index`, as `A(i, j)` or `A(*indices)`."""
        return self.at(index)

    @property
    def value_index(self) -> int:
        """Which result of its operation it is."""
        return next(n for n, t in enumerate(self.op.outputs) if t is self)

    def same_as(self, other: object) -> bool:
        """Whether it is the other one."""
        return self is other

    __getattr__ = refusing("TVM", _TENSOR)

    def _whole(self, *_: object) -> NoReturn:
        names = ", ".join("ijklmn"[n : n + 1] or f"i{n}" for n in range(self.ndim))
        raise InputError(
            "arithmetic on a whole tensor",
            where=f"tensor {self.name}",
            hint=f"compute(A.shape, lambda {names}: A[{names}] + 1)",
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _whole
    __truediv__ = __rtruediv__ = __floordiv__ = __mod__ = __neg__ = _whole

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


def read_tensors(values: Iterable[Node]) -> tuple[Tensor, ...]:
    """The tensors loaded in the expressions, each once, in order of first use."""
    found: dict[Tensor, None] = {}
    for value in values:
        for node in postorder(value):
            if isinstance(node, Load) and isinstance(node.buffer, TensorBuffer):
                found[node.buffer.tensor] = None
    return tuple(found)
