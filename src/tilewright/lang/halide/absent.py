"""Names of Halide that do not exist here, each with what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

from tilewright.base.errors import UnsupportedError

_GPU: Final = "use parallel and vectorize for a CPU; there is no GPU target"
_SEE: Final = (
    "print_loop_nest(sizes) shows the loops, print(f.kernel(sizes)) the program"
)
_BUILD: Final = "tilewright.compile(f.kernel(sizes)).save(path) writes an artifact"
_TEXT: Final = "f.compile_jit(sizes).source('kernel'), 'llvm' or 'asm' is the text"
_TUNE: Final = "the sketches choose a schedule: cpu.default_schedule of f.kernel(sizes)"
_RANDOM: Final = "fill a Buffer with numpy.random"
_WATCH: Final = "realize the Func of that value"

VERBS: Final = {
    "add_trace_tag": _SEE,
    "apply_autoscheduler": _TUNE,
    "async_": "use parallel to run iterations on several threads",
    "atomic": "rfactor gives each thread a partial result",
    "compile_to": _BUILD,
    "compile_to_assembly": _TEXT,
    "compile_to_bitcode": _BUILD,
    "compile_to_c": _TEXT,
    "compile_to_callable": "compile_jit(sizes) is a function on arrays",
    "compile_to_file": _BUILD,
    "compile_to_header": _BUILD,
    "compile_to_llvm_assembly": _TEXT,
    "compile_to_lowered_stmt": _SEE,
    "compile_to_module": _BUILD,
    "compile_to_object": _BUILD,
    "compile_to_static_library": _BUILD,
    "debug_to_file": _WATCH,
    "define_extern": "write it as a Func, or call it on the realized Buffers",
    "gpu": _GPU,
    "gpu_blocks": _GPU,
    "gpu_lanes": _GPU,
    "gpu_single_thread": _GPU,
    "gpu_threads": _GPU,
    "gpu_tile": _GPU,
    "hexagon": _GPU,
    "hoist_storage": "store_at names the loop that memory lives in",
    "memoize": "keep the realized Buffer",
    "ring_buffer": "fold_storage(var, extent) keeps a ring",
    "specialize_fail": "specialize without it: other values take the general way",
    "trace_loads": _SEE,
    "trace_realizations": _SEE,
    "trace_stores": _SEE,
}

FUNCTIONS: Final = {
    "memoize_tag": "keep the realized Buffer",
    "print": _WATCH,
    "print_when": _WATCH,
    "random_float": _RANDOM,
    "random_int": _RANDOM,
    "random_uint": _RANDOM,
    "require": "check the arguments before realize",
    "Generator": "a Python function that returns the Func",
    "Target": "realize(sizes, target='cpu', threads=2)",
    "get_host_target": "realize(sizes, target='cpu') is for this machine",
    "create_callable_from_generator": "a Python function that returns the Func",
    "load_plugin": _TUNE,
}


def refuse(name: str, hint: str) -> NoReturn:
    """Raise UnsupportedError for a name of Halide's."""
    raise UnsupportedError(f"Halide's {name} is not supported", where=name, hint=hint)


def refusing(name: str, hint: str) -> Callable[..., Any]:
    """A function that refuses when it is called."""

    def absent(*args: Any, **options: Any) -> Any:
        refuse(name, hint)

    absent.__name__ = name
    absent.__doc__ = f"Raises UnsupportedError. Instead: {hint}."
    return absent


class Absent:
    """Gives its subclasses the verbs that are not here, to refuse them by name."""

    def __getattr__(self, name: str) -> Any:
        if name in VERBS:
            return refusing(name, VERBS[name])
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}"
        )
