"""Names of Halide that do not exist here, each with an alternative.

`ABSENT` has a table for the module (`""`) and for each class; a Stage also has a Func's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tilewright.base.refused import refusing

_DEVICE: Final = "targets are cpu, opencl and cuda; copies are made by the call"
_BUILD: Final = (
    "compile_to_file writes a C header and object, "
    "tilewright.compile(f.kernel(sizes)).save(path) an artifact"
)
_MEMORY: Final = "a Buffer's memory is the host's; drop the line"
_ARGUMENTS: Final = "a compiled function takes NumPy arrays: images first, outputs last"
_KEEP: Final = "memoize() without a key, or keep the realized Buffer"
_GRADIENT: Final = "tilewright.te.gradient, or write the Funcs of the gradient"
_HOST: Final = "ask get_host_target() in Python"
_PARAM: Final = "the ImageParam or Param itself has the methods"
_NAMES: Final = "name Vars and RVars themselves"
_TEXT: Final = "f.compile_jit(sizes).source('kernel'), 'llvm' or 'asm' is the text"


def _each(names: str, hint: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), hint)


_RUNS: Final = {
    **_each(
        "compile_to compile_to_bitcode compile_to_c compile_to_module "
        "compile_to_multitarget_object_files compile_to_multitarget_static_library "
        "compile_to_static_library",
        _BUILD,
    ),
    "compile_to_callable": "compile_jit(sizes) is a function on arrays",
    "infer_arguments": _ARGUMENTS,
}

_VERBS: Final = {
    **_each(
        "hexagon copy_to_device copy_to_host",
        _DEVICE,
    ),
}


ABSENT: Final[dict[str, dict[str, str]]] = {
    "": {
        **_each(
            "ArgInfo ArgInfoDirection ArgInfoKind Argument ArgumentEstimates ArgumentKind",
            _ARGUMENTS,
        ),
        **_each("Derivative propagate_adjoints", _GRADIENT),
        **_each("EvictionKey memoize_tag", _KEEP),
        "NameMangling": "the function is called by its C name",
        **_each(
            "LinkageType Module OutputFileType compile_standalone_runtime link_modules "
            "serialize_pipeline deserialize_pipeline serialize_parameters "
            "deserialize_parameters install_dir main",
            _BUILD,
        ),
        **_each("target_arch_is target_bits target_has_feature target_os_is", _HOST),
        **_each("target_feature_for_device_api", _DEVICE),
        "target_natural_vector_size": "get_host_target().natural_vector_size(type)",
        "get_target_from_environment": "get_host_target()",
        "FuncTupleElementRef": "f[x][n] is an Expr",
        "Handle": "a value is a number; pass arrays as ImageParams",
        "Parameter": _PARAM,
        "VarOrRVar": _NAMES,
        "halide_": "the names of the module itself",
        "user_context_value": "a Param",
    },
    "Func": {
        **_RUNS,
        **_VERBS,
    },
    "Stage": {
        **_VERBS,
        "unscheduled": "drop the line: no warning is given",
    },
    "Pipeline": {
        **_RUNS,
        "invalidate_cache": "a new directive recompiles automatically",
    },
    "Buffer": _each(
        "copy_to_device device_deallocate device_detach_native device_free device_malloc "
        "device_sync make_bounds_query set_device_dirty set_host_dirty",
        _MEMORY,
    ),
    "ImageParam": {
        "parameter": _PARAM,
        "store_in": _MEMORY,
        "set_host_alignment": "give an aligned array: any alignment is right here",
        "host_alignment": "any alignment is right here",
    },
    "OutputImageParam": {
        "parameter": _PARAM,
        "store_in": "store_in on a Func that is not an output",
        "set_host_alignment": "give an aligned array: any alignment is right here",
        "host_alignment": "any alignment is right here",
        "set_estimates": "set_estimates on the Func",
        "type": "type() of the Func",
    },
    "Param": {"parameter": _PARAM},
    "RDom": {"domain": "the RDom itself: r.x, r.dimensions()"},
    "Var": {
        "outermost": "compute_root, or the loop that is outside",
    },
}


def absent(table: str) -> Callable[[Any, str], Any]:
    """A `__getattr__` of the class of this table, whose names of Halide's are refused."""
    return refusing("Halide", ABSENT[table])
