"""extern: tensors that functions of the user's own make, or statements of the loop IR.

    C = extern((n, m), [A, B], lambda ins, outs: call_packed(np_matmul, ins[0], ins[1], outs[0]))

`np_matmul` gets NumPy arrays, and writes the last one. It is called between the compiled parts of a
program, which `build` makes (`parts.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tilewright.base.dtypes import dtype_of
from tilewright.base.errors import InputError
from tilewright.expr.nodes import INDEX, Buffer, Const
from tilewright.lang.te.c_functions import c_function, instruction, is_c_function
from tilewright.lang.te.syntax.build import labels_of, name_of, shape_of
from tilewright.lang.te.syntax.nodes import (
    Axis,
    HostCall,
    Packed,
    Script,
    Tensor,
)
from tilewright.loops.intrinsic import Extent, HardwareCall, Pointer, Stride
from tilewright.loops.nodes import For, Kernel, Stmt
from tilewright.loops.verify import verify
from tilewright.schedule import edit

_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {}


def register_func(
    name: str | Callable[..., Any],
    f: Callable[..., Any] | None = None,
    override: bool = False,
) -> Any:
    """Make a function known by a name, for `call_packed(name, ...)`; a decorator too.

    Raises InputError for a name that another function has, unless it is overridden.
    """
    if not isinstance(name, str):
        return register_func(name.__name__, name, override)
    if f is None:
        return lambda g: register_func(name, g, override)
    if name in _FUNCTIONS and not override:
        raise InputError(
            f"there is a function {name!r}",
            where="register_func",
            hint="take another name, or override=True",
        )
    _FUNCTIONS[name] = f
    return f


def call_packed(function: str | Callable[..., Any], *args: Any) -> Packed:
    """A call of a Python function on arrays, or of a C function (made by ctypes) on addresses.

    function: itself, or the name it is registered by. args: tensors of `ins` and `outs`, numbers
    and texts; a Python function gets inputs as read-only arrays.
    """
    found = registered(function)
    given = tuple(_argument(a) for a in args)
    return Packed(found, given, is_c_function(found))


def is_registered(name: str) -> bool:
    """Whether `register_func` has been given this name."""
    return name in _FUNCTIONS


def registered(function: str | Callable[..., Any]) -> Callable[..., Any]:
    """The function of a name, or itself. Raises InputError where there is none."""
    found = _FUNCTIONS.get(function) if isinstance(function, str) else function
    if not callable(found):
        known = ", ".join(sorted(_FUNCTIONS)) or "none"
        raise InputError(
            f"there is no function {function!r}",
            where="call_packed",
            hint=f"register_func(name, f), or give the function itself; registered: {known}",
        )
    return found


def call_extern(
    dtype: str, function: str | Callable[..., Any], *args: Any
) -> Packed | HardwareCall:
    """A call of a C function; dtype: of its return value, which is ignored.

    args: tensors, numbers and strings, as for `call_packed`; or, in the lowering of an intrinsic,
    addresses (`access_ptr`), strides and numbers: it is then called inside the kernel. Raises
    InputError for a function that was not made by ctypes.
    """
    dtype_of(dtype)
    found = c_function(registered(function), "call_extern")
    if any(isinstance(a, Pointer | Stride | Extent) for a in args):
        return instruction(found, args)
    return call_packed(found, *args)


def _argument(value: Any) -> Any:
    if isinstance(value, Const):
        return value.value.real
    if isinstance(value, Tensor | int | float | str):
        return value
    raise InputError(
        f"the argument {value!r}",
        where="call_packed",
        hint="give tensors of ins and outs, numbers and texts",
    )


def extern(
    shape: Any,
    inputs: Sequence[Tensor],
    fcompute: Callable[[list[Tensor], list[Tensor]], Any],
    name: str | None = None,
    dtype: Any = None,
    tag: str = "",
) -> Any:
    """Tensors computed by functions: `fcompute(ins, outs)` returns the calls, or a Kernel.

    shape: of the output, or a list for several. inputs: the tensors to read. dtype: of the outputs,
    one or one for each; by default the inputs' dtype. A Kernel's parameters are the inputs, then
    the outputs. Raises InputError if they do not match.
    """
    label = name_of("extern", name)
    where = f"extern {label}"
    several = isinstance(shape, list | tuple) and any(
        isinstance(n, list | tuple) for n in shape
    )
    shapes = [shape_of(s, where) for s in (shape if several else [shape])]
    ins = list(inputs)
    if not all(isinstance(t, Tensor) for t in ins):
        raise InputError(
            "an input is not a tensor", where=where, hint="a list of tensors"
        )
    names = labels_of([label], len(shapes))
    types = _dtypes(dtype, ins, len(shapes), where)
    outs = [Tensor(n, s, d) for n, s, d in zip(names, shapes, types, strict=True)]
    made = fcompute(ins, outs)
    if isinstance(made, Kernel):
        op: Script | HostCall = _script(label, made, ins, outs)
    else:
        op = HostCall(
            label, _calls(made, [*ins, *outs], where), tuple(ins), tuple(outs)
        )
    for t in outs:
        t.op = op
    return outs[0] if len(outs) == 1 else tuple(outs)


def _dtypes(given: Any, inputs: Sequence[Tensor], count: int, where: str) -> list[Any]:
    if given is None:
        found = {t.dtype for t in inputs}
        if len(found) != 1:
            raise InputError(
                "the inputs have no common dtype",
                where=where,
                hint='say the outputs\': dtype="float32"',
            )
        return [*found] * count
    several = list(given) if isinstance(given, list | tuple) else [given] * count
    if len(several) != count:
        raise InputError(
            f"{len(several)} dtypes for {count} outputs", where=where, hint="one each"
        )
    return [dtype_of(d) for d in several]


def _calls(made: Any, known: Sequence[Tensor], where: str) -> tuple[Packed, ...]:
    calls = tuple(made) if isinstance(made, list | tuple) else (made,)
    for call in calls:
        if not isinstance(call, Packed):
            raise InputError(
                f"the function returns {call!r}",
                where=where,
                hint="return call_packed(f, ins[0], outs[0]), a list of such calls, or a Kernel",
            )
        for a in call.args:
            if isinstance(a, Tensor) and not any(a is t for t in known):
                raise InputError(
                    f"the call of {call.name} reads {a.name}, no input",
                    where=where,
                    hint="name it among the inputs",
                )
    return calls


def extern_primfunc(
    input_tensors: Sequence[Tensor], primfunc: Kernel, name: str | None = None
) -> Any:
    """The outputs of a Kernel of the loop IR on tensors: one Tensor, or a list if it has several.

    input_tensors: for the kernel's inputs, in order, of their shapes and dtypes. primfunc: the
    Kernel; its outputs give the shapes and dtypes of the results. name: in programs and errors.
    Raises as `extern`.
    """
    outputs = primfunc.outputs
    shapes = [b.shape for b in outputs]
    return extern(
        shapes,
        input_tensors,
        lambda ins, outs: primfunc,
        name_of("primfunc", name),
        [b.dtype.name for b in outputs],
    )


def _script(
    name: str, kernel: Kernel, ins: Sequence[Tensor], outs: Sequence[Tensor]
) -> Script:
    verify(kernel)
    params = (*kernel.inputs, *kernel.outputs)
    tensors = (*ins, *outs)
    one = [(b.shape, b.dtype) for b in params]
    other = [(t.shape, t.dtype) for t in tensors]
    if one != other:
        raise InputError(
            f"the kernel takes {', '.join(map(repr, params))}",
            where=f"extern {name}",
            hint=f"here: {', '.join(map(repr, tensors))}",
        )
    to = {b: _to(t.buffer) for b, t in zip(params, tensors, strict=True)}
    return script(name, edit.rewrite(kernel.body, {}, {}, to), outs)


def script(name: str, body: Stmt, outputs: Sequence[Tensor]) -> Script:
    """Tensors made by statements over their buffers; the loops around all are its axes."""
    axes: list[Axis] = []
    loops: list[str] = []
    inner = body
    while isinstance(inner, For):
        loops.append(inner.var.name)
        label = inner.var.name.rpartition(".")[2]
        axes.append(Axis(label, INDEX, 0, inner.trips or inner.extent, "cc"))
        inner = inner.body
    return Script(name, body, tuple(axes), (), tuple(loops), tuple(outputs))


def _to(buffer: Buffer) -> edit.Move:
    return lambda index: (buffer, index)
