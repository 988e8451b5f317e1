"""placeholder, var, reduce_axis, compute, scan: the constructors of tensor expressions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar

from tilewright.base.dtypes import dtype_of
from tilewright.base.errors import InputError
from tilewright.base.names import fresh
from tilewright.base.numbers import whole
from tilewright.base.text import plural
from tilewright.compute.isl import Domain, IslLimitReached, IslTranslator, sample
from tilewright.compute.nodes import CC, PW
from tilewright.expr.nodes import INDEX, Cast, Expr, Load, Var, matching
from tilewright.expr.reads import reads
from tilewright.ir.node import postorder
from tilewright.lang.te.syntax.functions import const
from tilewright.lang.te.syntax.matching import matched
from tilewright.lang.te.syntax.naming import assigned
from tilewright.lang.te.syntax.nodes import (
    Axis,
    Compute,
    Extent,
    Placeholder,
    Recurrence,
    Tensor,
    TensorBuffer,
    TensorSlice,
)
from tilewright.lang.te.syntax.program import check_sizes, order
from tilewright.lang.te.syntax.ragged import is_ragged, ragged
from tilewright.lang.te.syntax.reduce import Reduction


def var(name: str | None = None, dtype: Any = "int64") -> Var:
    """A size that is known when a built function is called.

    name: in programs and errors; n, n_1, ... by default. dtype: of integers, else InputError.
    """
    label = name_of("n", name)
    of = dtype_of(dtype)
    if not of.is_int:
        raise InputError(
            f"a size of {of}", where=f"var {label}", hint="sizes are integers"
        )
    return Var(label, of)


def placeholder(shape: Any, dtype: Any = "float32", name: str | None = None) -> Tensor:
    """A tensor passed by the caller.

    shape: an integer or size made by `var` per dimension, or one alone. dtype: a name, such as
    "float32", or a NumPy dtype. name: in programs and errors. Raises InputError for an invalid
    shape and an unknown dtype.
    """
    label = name_of("placeholder", name)
    tensor = Tensor(label, shape_of(shape, label), dtype_of(dtype))
    tensor.op = Placeholder(tensor)
    return tensor


def reduce_axis(domain: Any, name: str | None = None) -> Axis:
    """An axis to reduce over, `low <= axis < high` for the domain `(low, high)`.

    Made inside the function of a compute, its ends may be read from tensors, at its axes.
    """
    label = name_of("k", name)
    if not isinstance(domain, tuple | list) or len(domain) != 2:
        raise InputError(
            f"the domain is {domain!r}",
            where=f"reduce_axis {label}",
            hint="give (low, high)",
        )
    low, high = (
        Cast(e, INDEX) if isinstance(e, Expr) and e.dtype is not INDEX else e
        for e in domain
    )
    for end in domain:
        is_size = isinstance(end, Expr) and end.dtype.is_int
        if not is_size and (isinstance(end, Expr) or whole(end) is None):
            raise InputError(
                f"an end of the domain is {end!r}",
                where=f"reduce_axis {label}",
                hint="give integers, or expressions of var('n')",
            )
    extent = high if isinstance(low, int) and low == 0 else high - low
    return Axis(label, INDEX, low, shape_of(extent, label)[0], PW)


class tag_scope:
    """`with tag_scope("word"):` tags the computes inside; also usable as a decorator.

    A compute inside may not have its own tag.
    """

    _now: ClassVar[list[str]] = []

    def __init__(self, tag: str) -> None:
        self.tag = tag

    def __enter__(self) -> tag_scope:
        if self._now:
            raise InputError(
                f"a tag_scope {self.tag!r} inside another, {self._now[-1]!r}",
                where="tag_scope",
                hint="end the outer one before",
            )
        self._now.append(self.tag)
        return self

    def __exit__(self, *_: object) -> None:
        self._now.pop()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def tagged(*args: Any, **options: Any) -> Any:
            with self:
                return function(*args, **options)

        return tagged

    @classmethod
    def of(cls, tag: str) -> str:
        """The tag of an operation that is given this one."""
        if tag and cls._now:
            raise InputError(
                f"a tag {tag!r} inside a tag_scope {cls._now[-1]!r}",
                where="tag_scope",
                hint="give one of them",
            )
        return tag or (cls._now[-1] if cls._now else "")


def compute(
    shape: Any,
    fcompute: Callable[..., Any],
    name: str | Sequence[str] | None = None,
    tag: str = "",
    varargs_names: Sequence[str] | None = None,
) -> Any:
    """A tensor by its value at each index: `compute((m, n), lambda i, j: A[i, j] + 1)`.

    fcompute gets one axis per dimension and returns an expression, a reduction, or a tuple of
    expressions for several tensors; a reduction on tuples makes several tensors too. Several come
    as a tuple. name: one, or one per tensor. tag: a word for it, which nothing here reads.
    varargs_names: of the axes that `*i` takes.
    Raises InputError for a wrong number of arguments, mixed dtypes, an access outside a tensor.
    """
    names = _given_names(name) or assigned() or ["compute"]
    where = f"compute {names[0]}"
    extents = shape_of(shape, where)
    if not callable(fcompute):
        raise InputError(
            f"the body is {fcompute!r}, no function",
            where=where,
            hint="as in compute((4,), lambda i: A[i] + 1)",
        )
    axis = _axes(extents, fcompute, where, varargs_names)
    body = _body(fcompute, axis, where)
    reduction = body if isinstance(body, Reduction) else None
    values = _values(body, reduction, where)
    labels = labels_of(names, len(values))
    _check_bound(values, {*axis, *(reduction.axes if reduction else ())}, where)
    outputs = tuple(
        Tensor(n, extents, v.dtype) for n, v in zip(labels, values, strict=True)
    )
    if reduction is not None and any(map(is_ragged, reduction.axes)):
        return _ragged(labels[0], axis, reduction, outputs, where)
    op = Compute(
        labels[0] if len(labels) == len(names) else names[0],
        axis,
        reduction.axes if reduction else (),
        values,
        reduction.op if reduction else None,
        reduction.scanned if reduction else (),
        outputs,
        tag_scope.of(tag),
    )
    for t in outputs:
        t.op = op
    check_sizes(op, bounds=False)
    if isinstance(body, tuple) or len(outputs) > 1:
        return outputs
    return outputs[0]


def _body(function: Callable[..., Any], axis: tuple[Axis, ...], where: str) -> Any:
    """The function's result for the axes; errors in it name the tensor."""
    try:
        with matching(matched):
            return function(*axis)
    except InputError as error:
        raise error.at(where) from None
    except TypeError as error:  # of an expression whose parts do not fit
        raise InputError(
            str(error),
            where=where,
            hint="build one expression, of operands of one dtype",
        ) from error


def _ragged(
    name: str,
    axis: tuple[Axis, ...],
    reduction: Reduction,
    outputs: tuple[Tensor, ...],
    where: str,
) -> Any:
    if reduction.scanned:
        raise InputError(
            "a scan along an axis whose length is read from a tensor",
            where=where,
            hint="hybrid.script writes the loop out",
        )
    known = set(axis)
    for a in reduction.axes:
        ends = tuple(e for e in (a.low, a.extent) if isinstance(e, Expr))
        _check_bound(ends, known, where)
        known.add(a)
    op = ragged(name, axis, reduction.axes, reduction.values, reduction.op, outputs)
    for t in outputs:
        t.op = op
    return outputs[0] if len(outputs) == 1 else outputs


def _check_bound(values: tuple[Expr, ...], axes: set[Axis], where: str) -> None:
    for value in values:
        for node in postorder(value):
            if isinstance(node, Axis) and node not in axes:
                raise InputError(
                    f"{node.name} is neither an axis of the tensor nor reduced over",
                    where=where,
                    hint=f"as in sum(..., axis={node.name})",
                )


def scan(
    init: Tensor | Sequence[Tensor],
    update: Tensor | Sequence[Tensor],
    state: Tensor | Sequence[Tensor],
    inputs: Sequence[Tensor] = (),
    name: str | None = None,
) -> Any:
    """A recurrence along dimension 0: slices `init` first, each later one by `update`.

    state: placeholders of the whole shape that the updates read at earlier steps, `state[t-1, i]`.
    inputs: the other tensors that the updates read (as TVM has it; they are found anyway).
    Every tensor between state and update has the time as its dimension 0 and is read there only at
    the current step. Raises InputError where shapes, dtypes or these conditions do not fit.
    """
    inits = _tensors(init)
    updates = _tensors(update)
    states = _tensors(state)
    names = [name] if name else assigned() or ["scan"]
    where = f"scan {names[0]}"
    if not len(inits) == len(updates) == len(states):
        raise InputError(
            f"{len(inits)} inits, {len(updates)} updates and {len(states)} states",
            where=where,
            hint="give one init, one update and one state per tensor",
        )
    for i, u, s in zip(inits, updates, states, strict=True):
        _check_state(i, u, s, where)
    steps = _steps(updates, states, where)
    first = inits[0].shape[0]
    whole = states[0].shape[0]
    for step in steps:
        _check_earlier(step, states, first, whole, where)
    time = Axis(steps[-1].axis[0].name, INDEX, first, whole - first, CC)
    labels = labels_of(names, len(states))
    outputs = tuple(
        Tensor(n, s.shape, s.dtype) for n, s in zip(labels, states, strict=True)
    )
    op = Recurrence(names[0], time, inits, steps, updates, states, outputs)
    for t in outputs:
        t.op = op
    if len(outputs) > 1:
        return outputs
    return outputs[0]


def _check_state(
    init: Tensor,
    update: Tensor,
    state: Tensor,
    where: str,
) -> None:
    if not isinstance(state.op, Placeholder):
        raise InputError(
            f"the state {state!r} is not a placeholder",
            where=where,
            hint="make it with placeholder(...), of the whole shape",
        )
    if update.shape != state.shape or init.shape[1:] != state.shape[1:]:
        raise InputError(
            f"init {init!r}, update {update!r} and state {state!r} have different shapes",
            where=where,
            hint="state and update have the whole shape, init the first slices of it",
        )
    if not init.dtype is update.dtype is state.dtype:
        raise InputError(
            f"init is {init.dtype}, update {update.dtype}, state {state.dtype}",
            where=where,
            hint="convert one, as by .astype('float32')",
        )


def _steps(
    updates: tuple[Tensor, ...], states: tuple[Tensor, ...], where: str
) -> tuple[Compute, ...]:
    """The operations of one step: those between the states and the updates."""
    changing: set[Tensor] = set(states)
    steps: list[Compute] = []
    for op in order(updates):
        if isinstance(op, Placeholder) or not (
            changing & set(op.inputs) or any(t in updates for t in op.outputs)
        ):
            continue
        if not isinstance(op, Compute) or not op.axis or op.scanned[:1] == op.axis[:1]:
            raise InputError(
                f"{op.name} is not a step along dimension 0",
                where=where,
                hint="a step is a compute whose dimension 0 is the time, and which scans none",
            )
        steps.append(op)
        changing.update(op.outputs)
    made = {t for s in steps for t in s.outputs}
    for s in steps:
        for load in _loads(s):
            source = load.buffer
            if not isinstance(source, TensorBuffer) or source.tensor not in made:
                continue
            if load.index[0] is not s.axis[0]:
                raise InputError(
                    f"{s.name} reads {load!r} at another step than its own",
                    where=where,
                    hint="only a state may be read at earlier steps",
                )
    return tuple(steps)


def _check_earlier(
    step: Compute, states: Collection[Tensor], first: Extent, whole: Extent, where: str
) -> None:
    """Every read of a state is of an earlier step: `index < time` wherever it is performed."""
    time = step.axis[0]
    ranges: dict[Var, tuple[int | None, int | None]] = {
        a: _range(a.low, a.extent) for a in (*step.axis, *step.reduce_axis)
    }
    ranges[time] = (_range(first, 0)[0], _range(0, whole)[1])
    for read in reads(step.values, ranges):
        source = read.load.buffer
        if not isinstance(source, TensorBuffer) or source.tensor not in states:
            continue
        domain = Domain()
        names: dict[Var, str] = {
            a: domain.variable(*span) for a, span in ranges.items()
        }
        translate = IslTranslator(domain, names, read.ranges)
        for condition, holds in read.guards:
            domain.require(translate.condition(condition, holds))
        text = translate.expr(read.load.index[0])
        try:
            earlier = sample(domain, [f"{text} >= {names[time]}"]) is None
        except IslLimitReached:
            earlier = False
        if not earlier:
            raise InputError(
                f"{step.name} reads {read.load!r}, which is not proven to be of an earlier step",
                where=where,
                hint=f"a step reads a state at earlier steps only, as at {time.name} - 1",
            )


def _range(low: object, extent: object) -> tuple[int | None, int | None]:
    """First and last value of an axis; None if it depends on a symbolic size."""
    if not isinstance(low, int):
        return None, None
    return low, low + extent - 1 if isinstance(extent, int) else None


def _loads(op: Compute) -> list[Load]:
    return [n for v in op.values for n in postorder(v) if isinstance(n, Load)]


def _tensors(given: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    parts = given if isinstance(given, list | tuple) else (given,)
    for t in parts:
        if not isinstance(t, Tensor):
            raise InputError(
                f"{t!r} is not a tensor",
                where="scan",
                hint="give a tensor, or a list of them",
            )
    return tuple(parts)


def name_of(default: str, given: object) -> str:
    """The given name, else the name of the assigned variable, else the default."""
    if given is None or given == "":
        return (assigned() or [default])[0]
    if not isinstance(given, str):
        raise InputError(
            f"the name is {given!r}", where=default, hint="give it as text"
        )
    return given


def _given_names(name: str | Sequence[str] | None) -> list[str]:
    if isinstance(name, str):
        return [name]
    return list(name or ())


def labels_of(names: list[str], count: int) -> list[str]:
    """One name per output: those given, or `<name>.v0`, `<name>.v1`."""
    if len(names) == count:
        return names
    if count > 1:
        return [f"{names[0]}.v{n}" for n in range(count)]
    return names[:1]


def shape_of(shape: Any, where: str) -> tuple[Extent, ...]:
    parts = shape if isinstance(shape, tuple | list) else (shape,)
    for n in parts:
        sized = isinstance(n, Expr) and n.dtype is INDEX
        if not sized and whole(n, 0) is None:
            raise InputError(
                f"the extent {n!r} is not a size",
                where=where,
                hint="an integer, or var('n')",
            )
    return tuple(n if isinstance(n, Expr) else int(n) for n in parts)


def _axes(
    shape: tuple[Extent, ...],
    f: Callable[..., Any],
    where: str,
    rest_names: Sequence[str] | None,
) -> tuple[Axis, ...]:
    """One axis per dimension, with the lambda's own names where it has them."""
    kinds = inspect.Parameter
    parameters = list(inspect.signature(f).parameters.values())
    named: list[str] = []
    rest: str | None = None
    for p in parameters:
        if p.kind is kinds.VAR_POSITIONAL:
            rest = p.name
        elif p.kind is kinds.POSITIONAL_OR_KEYWORD and p.default is kinds.empty:
            named.append(p.name)  # not the A of `lambda i, A=A: ...`
    missing = len(shape) - len(named)
    if missing < 0 or (missing > 0 and rest is None):
        raise InputError(
            f"the function takes {plural(len(named), 'index', 'indices')}, "
            f"the shape has {plural(len(shape), 'dimension')}",
            where=where,
            hint="give it one parameter per dimension, or *i",
        )
    taken: set[str] = set()
    if rest_names is not None and len(rest_names) != missing:
        raise InputError(
            f"{len(rest_names)} varargs_names for {missing} axes",
            where=where,
            hint="give one for each axis that *i takes",
        )
    names = named + list(rest_names or (f"{rest}{n}" for n in range(missing)))
    labels = [fresh(taken, n.strip("_") or "i") for n in names]
    return tuple(Axis(n, INDEX, 0, e, CC) for n, e in zip(labels, shape, strict=True))


def _values(body: Any, reduction: Reduction | None, where: str) -> tuple[Expr, ...]:
    if reduction is not None:
        return reduction.values
    parts = body if isinstance(body, tuple) else (body,)
    if any(isinstance(p, Reduction) for p in parts):
        raise InputError(
            "several reductions in one body",
            where=where,
            hint="comm_reducer reduces tuples by one operator; or give each its own compute",
        )
    for p in parts:
        if isinstance(p, TensorSlice):
            p._part()
        if not isinstance(p, Expr | bool | int | float):
            raise InputError(
                f"the body is {p!r}, no expression",
                where=where,
                hint="return an expression, a number, or a tuple of them",
            )
    return tuple(p if isinstance(p, Expr) else const(p) for p in parts)
