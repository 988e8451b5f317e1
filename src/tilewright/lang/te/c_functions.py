"""C functions of the user's own inside of kernels: called at their address in this process.

    mine = compile_c("float mine(float x) { return 2 * x; }").mine
    Y = compute((n,), lambda i: call_pure_extern("float32", mine, X[i]))

The code runs as it is, on any thread: nothing guards it.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tilewright.base.dtypes import (
    DType,
    float32,
    float64,
    int32,
    int64,
    uint32,
    uint64,
)
from tilewright.base.errors import CompileError, InputError, UnsupportedError
from tilewright.expr.functions import FUNCTIONS, Function
from tilewright.expr.nodes import Call, Expr, const
from tilewright.loops.intrinsic import HardwareCall, Pointer, hardware_intrinsic
from tilewright.runtime.abi import OF_PROCESS

CFunction = Any  # what ctypes makes
_C_FUNCTION: Final = ctypes.CFUNCTYPE(None).__mro__[1]
_COMPILERS: Final = ("cc", "gcc", "clang")
_CALLED: Final[dict[str, CFunction]] = {}  # which must stay where they are
# Of values that are passed; LLVM's type and that of ctypes.
_TYPES: Final[dict[DType, tuple[str, Any]]] = {
    float32: ("float", ctypes.c_float),
    float64: ("double", ctypes.c_double),
    int32: ("i32", ctypes.c_int32),
    int64: ("i64", ctypes.c_int64),
    uint32: ("i32", ctypes.c_uint32),
    uint64: ("i64", ctypes.c_uint64),
}
# How a whole number or a real one of an intrinsic is passed as a declared type.
_PASSED: Final[dict[str, dict[Any, tuple[str, str]]]] = {
    "i64": {
        ctypes.c_int32: ("trunc", "i32"),
        ctypes.c_uint32: ("trunc", "i32"),
        ctypes.c_int64: ("", "i64"),
        ctypes.c_uint64: ("", "i64"),
        ctypes.c_double: ("sitofp", "double"),
        ctypes.c_float: ("sitofp", "float"),
    },
    "double": {
        ctypes.c_double: ("", "double"),
        ctypes.c_float: ("fptrunc", "float"),
    },
}


def is_c_function(value: Any) -> bool:
    """Whether ctypes made it."""
    return isinstance(value, _C_FUNCTION)


def compile_c(source: str, flags: Sequence[str] = ("-O2",)) -> ctypes.CDLL:
    """The functions of a text in C, by the system's compiler. The text is trusted: it is run.

    Raises UnsupportedError where there is no compiler, CompileError for what it refuses.
    """
    found = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if found is None:
        raise UnsupportedError(
            f"this system has no C compiler ({', '.join(_COMPILERS)})",
            where="compile_c",
            hint="install one, or load a library that is compiled elsewhere: ctypes.CDLL(path)",
        )
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "own.c")
        library = Path(folder, "own.so")
        text.write_text(source)
        command = [found, *flags, "-shared", "-fPIC", "-o", str(library), str(text)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            raise CompileError(
                f"the C compiler refuses the text: {run.stderr.strip()}",
                where="compile_c",
                hint="correct it",
            )
        return ctypes.CDLL(str(library))


def pure_call(kind: DType, function: CFunction, args: Sequence[Any]) -> Expr:
    """A call inside of an expression; it may happen at any time, for any values of its type.

    Numbers are passed as `kind`. Raises InputError for types that are not passed, and others than
    the function declares.
    """
    given = [a if isinstance(a, Expr) else const(a, kind) for a in args]
    for dtype in (kind, *(a.dtype for a in given)):
        if dtype not in _TYPES:
            raise InputError(
                f"a value of {dtype}",
                where=f"call of {_name(function)}",
                hint=f"cast it: {', '.join(map(str, _TYPES))} are passed",
            )
    types = [_TYPES[a.dtype] for a in given]
    result = _TYPES[kind]
    _check_declared(function, [c for _, c in types], result[1])
    kinds = "_".join(t for t, _ in (result, *types))
    name = f"{OF_PROCESS}{_name(function)}.{_address(function):x}.{kinds}"
    parameters = [(llvm, f"%a{n}") for n, (llvm, _) in enumerate(types)]
    reference = _reference(function, [c for _, c in types], result[1])
    text = _wrapper(name, parameters, result[0], function, parameters, [])
    FUNCTIONS[name] = Function(name, len(given), kind, reference, text)
    _CALLED[name] = function
    return Call(name, tuple(given))


def instruction(function: CFunction, args: Sequence[Any]) -> HardwareCall:
    """A call with addresses, for a lowering to return; its meaning is what is described there.

    Whole numbers are passed as int64_t and others as double, or as the function declares. Raises
    InputError for arguments that do not fit.
    """
    declared = getattr(function, "argtypes", None) or [None] * len(args)
    if len(declared) != len(args):
        raise InputError(
            f"{len(args)} arguments given, {len(declared)} declared",
            where=f"call of {_name(function)}",
            hint="its argtypes say what it takes",
        )
    parameters, passed, lines = [], [], []
    for n, (a, c) in enumerate(zip(args, declared, strict=True)):
        pointer = isinstance(a, Pointer)
        llvm = "ptr" if pointer else "double" if isinstance(a, float) else "i64"
        parameters.append((llvm, f"%a{n}"))
        if c is None or pointer:
            passed.append(parameters[-1])
            continue
        if c not in _PASSED[llvm]:
            raise InputError(
                f"argument {n} is declared as {c.__name__}",
                where=f"call of {_name(function)}",
                hint="whole numbers are passed as integers or reals, others as reals",
            )
        convert, wanted = _PASSED[llvm][c]
        if convert:
            lines.append(f"  %p{n} = {convert} {llvm} %a{n} to {wanted}")
        passed.append((wanted, f"%p{n}" if convert else f"%a{n}"))
    kinds = "_".join(t for t, _ in passed)
    name = f"{OF_PROCESS}{_name(function)}.{_address(function):x}.{kinds}"
    text = _wrapper(name, parameters, "void", function, passed, lines)
    _CALLED[name] = function
    return hardware_intrinsic(name, *args, llvm=text)


def _wrapper(
    name: str,
    parameters: Sequence[tuple[str, str]],
    result: str,
    function: CFunction,
    passed: Sequence[tuple[str, str]],
    lines: Sequence[str],
) -> str:
    """LLVM's function of this name, which calls the address."""
    taken = ", ".join(f"{t} {v}" for t, v in parameters)
    given = ", ".join(f"{t} {v}" for t, v in passed)
    kind = "internal " if result != "void" else ""
    call = f"call {result} inttoptr (i64 {_address(function)} to ptr)({given})"
    body = [f"  {call}", "  ret void"]
    if result != "void":
        body = [f"  %r = {call}", f"  ret {result} %r"]
    head = f"define {kind}{result} @{name}({taken}) {{"
    return "\n".join([head, *lines, *body, "}", ""])


def _address(function: CFunction) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _name(function: CFunction) -> str:
    return str(getattr(function, "__name__", "function"))


def _check_declared(function: CFunction, args: Sequence[Any], result: Any) -> None:
    """Raise InputError where the function declares other types than it is called with."""
    declared = getattr(function, "argtypes", None)
    returned = getattr(function, "restype", ctypes.c_int)
    same = declared is None or list(declared) == list(args)
    # c_int is what ctypes takes where nothing is declared.
    if not same or returned not in (result, ctypes.c_int):
        wanted = ", ".join(c.__name__ for c in args)
        raise InputError(
            f"it is called as {result.__name__} (*)({wanted}), and declared otherwise",
            where=f"call of {_name(function)}",
            hint="cast the arguments, or correct its argtypes and restype",
        )


def _reference(
    function: CFunction, args: Sequence[Any], result: Any
) -> Callable[..., Any]:
    """The function on arrays, for the interpreter."""
    typed = ctypes.CFUNCTYPE(result, *args)(_address(function))

    def one(*values: Any) -> Any:
        return typed(*(v.item() for v in values))

    def reference(*values: Any) -> Any:
        if not values:
            return np.array(one(), result)
        arrays = np.broadcast_arrays(*values)
        found = [one(*row) for row in zip(*(a.ravel() for a in arrays), strict=True)]
        return np.array(found, result).reshape(arrays[0].shape)

    return reference


def c_function(function: Any, where: str) -> CFunction:
    """A function of ctypes. Raises InputError for anything else."""
    if not is_c_function(function):
        raise InputError(
            f"{getattr(function, '__name__', function)} is not a C function",
            where=where,
            hint="compile_c(text).name, ctypes.CDLL(path).name, or a CFUNCTYPE at an address",
        )
    return function
