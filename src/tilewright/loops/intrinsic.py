"""Tensor intrinsics: what one instruction of a machine computes, and how it is called.

The behavior is a Computation over small tensors. The lowering is up to three hardware calls: the
whole (`compute`), the start of a reduction (`reset`) and a step of it (`update`), after Chen et
al., TVM, OSDI 2018, section 4.3. Where it may be used is data too: the dtypes, by the description;
strides (those that a call does not pass must be compact, row-major) and alignment of the tensors;
their memory scopes; features of the machine.

`INTRINSICS` holds every declared one by name, which is how a schedule's trace refers to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from hashlib import sha256
from typing import NamedTuple

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.compute.canonical import canonical
from tilewright.compute.nodes import CC, PW, Computation
from tilewright.expr.affine import affine
from tilewright.expr.nodes import Buffer
from tilewright.loops.scopes import declare_scopes

PARTS = ("compute", "reset", "update")


class ThreadShare(NamedTuple):
    """Which elements along a dimension each thread of an axis has: runs of `run`, from thread to
    thread."""

    axis: str
    run: int
    threads: int


# For each of the last dimensions of a tile, the axes that share it out, the longest runs first.
Fragment = tuple[tuple[ThreadShare, ...], ...]


MODES = ("r", "w", "rw")


@dataclass(frozen=True, slots=True)
class Pointer:
    """The address of a tensor's first element; mode: r, w or rw."""

    tensor: int
    mode: str


@dataclass(frozen=True, slots=True)
class Stride:
    """The distance, in elements, of neighbors along one axis of a tensor."""

    tensor: int
    axis: int


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of a dimension of the description, for those that are free."""

    dim: int


Argument = Pointer | Stride | Extent | int | float


@dataclass(frozen=True, slots=True)
class HardwareCall:
    """An instruction by name, and its arguments in the machine's order.

    llvm: the text of the function that it is, where the machine does not know it by its name.
    """

    name: str
    args: tuple[Argument, ...]
    llvm: str = ""

    @property
    def tensors(self) -> tuple[int, ...]:
        """The tensors whose addresses are passed, in the order of the arguments."""
        return tuple(a.tensor for a in self.args if isinstance(a, Pointer))


@dataclass(frozen=True, slots=True)
class Formal:
    """A tensor of the description as a lowering sees it."""

    number: int
    buffer: Buffer

    def access_ptr(
        self,
        mode: str,
    ) -> Pointer:
        """Its address, to be read ("r"), written ("w") or both ("rw")."""
        if mode not in MODES:
            raise InputError(
                f"{mode!r} is not a way to access {self.buffer.name}",
                hint=f"one of {', '.join(MODES)}",
            )
        return Pointer(self.number, mode)

    @property
    def strides(self) -> tuple[Stride, ...]:
        """Its strides in elements, one per axis, known where the intrinsic is used."""
        return tuple(
            Stride(self.number, axis) for axis in range(len(self.buffer.shape))
        )


Lowering = tuple[HardwareCall | None, HardwareCall | None, HardwareCall | None]
Lower = Callable[
    [Sequence[Formal], Sequence[Formal]], HardwareCall | Sequence[HardwareCall | None]
]


@dataclass(frozen=True, eq=False, slots=True)
class TensorIntrinsic:
    """One instruction (or a short sequence of them) with its meaning and conditions.

    description: the meaning. compute, reset, update: the calls; None where there is none.
    alignment: of a tensor's first element in bytes, by its name. scopes: the combinations of memory
    scopes of the tensors, inputs first, that the machine can do (none: any). free: names of
    dimensions that may have any extent. most: the largest extents of those that may not.
    target: the machine it belongs to. features: what a processor must have. tolerance: the largest
    relative error of a product against the description, 0 where it is exact; rounding: in words.
    threads: how many threads of a GPU do it together: a warp, or several in a row. fragment: which
    elements of a tensor in "warp" each of them holds; empty if that is unspecified. by_proxy: it
    reads shared memory by another path than threads do, so that these fence what they write.
    """

    name: str
    description: Computation
    compute: HardwareCall | None
    reset: HardwareCall | None
    update: HardwareCall | None
    alignment: Mapping[str, int] = field(default_factory=dict)
    scopes: tuple[tuple[str, ...], ...] = ()
    free: frozenset[str] = frozenset()
    most: Mapping[str, int] = field(default_factory=dict)
    target: str | None = None
    features: tuple[str, ...] = ()
    tolerance: float = 0.0
    rounding: str = ""
    threads: int = 1
    fragment: Fragment = ()
    by_proxy: bool = False

    @property
    def tensors(self) -> tuple[Buffer, ...]:
        """The tensors of the description: inputs in order of first use, then the output."""
        return (*self.description.inputs, self.description.outputs[0].tensor)

    def call(
        self,
        part: str,
    ) -> HardwareCall | None:
        """The call of a part: compute, reset or update."""
        found: HardwareCall | None = getattr(self, part)
        return found

    def passes(
        self,
        part: str,
        stride: Stride,
    ) -> bool:
        """Whether the call of a part says a stride, which then may be any."""
        call = self.call(part)
        return call is not None and stride in call.args

    def __repr__(self) -> str:
        calls = (self.call(part) for part in PARTS)
        texts = "".join(c.llvm for c in calls if c is not None)
        digest = f" {sha256(texts.encode()).hexdigest()[:16]}" if texts else ""
        return f"<intrinsic {self.name}{digest}>"


@dataclass(frozen=True, slots=True)
class Instance:
    """A part of an intrinsic in use; sizes: the extents of the description's dimensions there."""

    intrinsic: TensorIntrinsic
    part: str
    sizes: tuple[int, ...]

    @property
    def call(self) -> HardwareCall:
        """The instruction."""
        found = self.intrinsic.call(self.part)
        assert found is not None
        return found

    @property
    def tensors(self) -> tuple[int, ...]:
        """The tensors that take part, by number: all, or the output where a reduction starts."""
        numbers = tuple(range(len(self.intrinsic.tensors)))
        if self.part == "reset":
            return numbers[-1:]
        return numbers


INTRINSICS: dict[str, TensorIntrinsic] = {}


def hardware_intrinsic(
    name: str,
    *args: Argument,
    llvm: str = "",
) -> HardwareCall:
    """A call of the machine's instruction `name`, for a lowering to return.

    llvm: for a processor, the text of a function `define void @name(...)` that does it: its
    parameters are a `ptr` for each address, an `i64` for each stride, extent and whole number and a
    `double` for each other one. It may call LLVM's intrinsics and nothing else. Raises InputError
    for a text without this function.
    """
    if llvm and f"define void @{name}(" not in llvm:
        raise InputError(
            "the text does not define the function",
            where=f"hardware intrinsic {name}",
            hint=f"it has a line 'define void @{name}(ptr %a, ...) {{'",
        )
    for a in args:
        if not isinstance(a, Pointer | Stride | Extent | int | float):
            raise InputError(
                f"an argument is {a!r}",
                where=f"hardware intrinsic {name}",
                hint="pass access_ptr(mode), a stride, a dimension's extent or a number",
            )
    return HardwareCall(name, args, llvm)


def decl_tensor_intrinsic(
    computation: Computation,
    lower: Lower,
    *,
    name: str | None = None,
    alignment: Mapping[str, int] | None = None,
    scopes: Sequence[Sequence[str]] = (),
    free: Collection[str] = (),
    most: Mapping[str, int] | None = None,
    target: str | None = None,
    features: Sequence[str] = (),
    tolerance: float = 0.0,
    rounding: str = "",
    threads: int = 1,
    fragment: Fragment = (),
    by_proxy: bool = False,
) -> TensorIntrinsic:
    """Declare an intrinsic: behavior as a Computation, and a lowering; registered by `name`.

    computation: one output, of cc dimensions or of cc and pw ones, whose indices are linear.
    lower(inputs, outputs): returns the call, or (compute, reset, update), where None is none.
    name: by default that of the first call. The rest: see `TensorIntrinsic`.
    Raises InputError for a Computation of another form, a lowering that returns something else, or
    a name that another description has.
    """
    where = f"intrinsic {name or computation.name}"
    _check_form(computation, where)
    formals = [
        Formal(n, b)
        for n, b in enumerate((*computation.inputs, computation.outputs[0].tensor))
    ]
    calls = _calls(lower(formals[:-1], formals[-1:]), where)
    reset = calls[1]
    if reset is not None and any(n != formals[-1].number for n in reset.tensors):
        raise InputError(
            "reset reads an input", where=where, hint="it only sets the output"
        )
    named = next(c.name for c in calls if c is not None)
    made = TensorIntrinsic(
        name or named,
        computation,
        *calls,
        dict(alignment or {}),
        tuple(tuple(row) for row in scopes),
        frozenset(free),
        dict(most or {}),
        target,
        tuple(features),
        tolerance,
        rounding,
        threads,
        fragment,
        by_proxy,
    )
    declare_scopes(*(scope for row in made.scopes for scope in row))
    return _registered(made)


def _check_form(
    c: Computation,
    where: str,
) -> None:
    def refuse(what: str) -> InputError:
        return InputError(
            what, where=where, hint="describe one output by a map or a reduction"
        )

    if len(c.outputs) != 1 or any(d.combine not in (CC, PW) for d in c.dims):
        raise refuse(
            f"the description has {len(c.outputs)} outputs and its dims are {c.dims}"
        )
    output = c.outputs[0]
    if c.reducer is not None and not c.reducer.commutative:
        raise refuse(f"{c.reducer.name} does not commute, and a machine keeps no order")
    if c.reducer is not None and c.reducer.dtypes != (output.tensor.dtype,):
        raise refuse("the accumulator and the output have different dtypes")
    own = {d.var for d in c.dims}
    for index in (*(load.index for load in c.accesses), output.index):
        for i in index:
            form = affine(i)
            if form.const or any(atom not in own for atom, _ in form.terms):
                raise refuse(f"the index {i!r} is not a sum of multiples of dimensions")


def _calls(
    made: object,
    where: str,
) -> Lowering:
    calls = (made, None, None) if isinstance(made, HardwareCall) else made
    if (
        not isinstance(calls, tuple)
        or len(calls) != len(PARTS)
        or not all(c is None or isinstance(c, HardwareCall) for c in calls)
        or not any(calls)
    ):
        raise InputError(
            f"the lowering returned {made!r}",
            where=where,
            hint="return hardware_intrinsic(...), or a tuple (compute, reset, update) of them",
        )
    return calls


def _registered(made: TensorIntrinsic) -> TensorIntrinsic:
    known = INTRINSICS.get(made.name)
    if known is not None and _meaning(known) != _meaning(made):
        raise InputError(
            "the name is taken by an intrinsic with another description",
            where=f"intrinsic {made.name}",
            hint="pass name= another name",
        )
    INTRINSICS[made.name] = made
    return made


def _meaning(intrinsic: TensorIntrinsic) -> object:
    calls = tuple(intrinsic.call(part) for part in PARTS)
    return canonical([intrinsic.description], intrinsic.tensors), calls


def intrinsic(name: str | TensorIntrinsic) -> TensorIntrinsic:
    """The intrinsic called `name`. Raises InputError with the names there are."""
    if isinstance(name, TensorIntrinsic):
        return name
    if name not in INTRINSICS:
        raise InputError(
            f"there is no intrinsic {name!r}",
            hint=f"declared are {', '.join(sorted(INTRINSICS)) or 'none'}; those of a target after "
            "targets.registry.intrinsics(target)",
        )
    return INTRINSICS[name]
