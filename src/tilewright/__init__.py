"""Tilewright: a deep-learning compiler in pure Python. A model in, fast native code out."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from tilewright.base.collector import paused
from tilewright.base.idle_threads import soon_asleep

if TYPE_CHECKING:
    # All but `tune`, a module that can be called.
    from tilewright import llm, rules
    from tilewright.base.dtypes import DType, dtype_of
    from tilewright.base.errors import TilewrightError, TilewrightWarning
    from tilewright.driver.compile import compile
    from tilewright.driver.differentiate import grad, jvp, value_and_grad
    from tilewright.driver.library import compile_library
    from tilewright.driver.optimize import optimize
    from tilewright.driver.quantize import quantize
    from tilewright.driver.training import compile_training_step
    from tilewright.frontends.onnx.export import to_onnx
    from tilewright.frontends.onnx.save import save_onnx
    from tilewright.graph import optimizers as optim
    from tilewright.graph.nodes import Graph
    from tilewright.lang import halide, lift, mdh, te
    from tilewright.runtime.executable import Executable, load

__version__ = "0.1.0"

# Public name -> `module` or `module:attribute`. Loaded when first used: importing stays cheap.
_PUBLIC: Final = {
    "compile": "tilewright.driver:compile",
    "compile_library": "tilewright.driver.library:compile_library",
    "compile_training_step": "tilewright.driver.training:compile_training_step",
    "grad": "tilewright.driver.differentiate:grad",
    "jvp": "tilewright.driver.differentiate:jvp",
    "value_and_grad": "tilewright.driver.differentiate:value_and_grad",
    "optim": "tilewright.graph.optimizers",
    "optimize": "tilewright.driver.optimize:optimize",
    "load": "tilewright.runtime.ranged:load",
    "Executable": "tilewright.runtime.executable:Executable",
    "Graph": "tilewright.graph.nodes:Graph",
    "halide": "tilewright.lang.halide",
    "lift": "tilewright.lang.lift",
    "llm": "tilewright.llm",
    "mdh": "tilewright.lang.mdh",
    "quantize": "tilewright.driver.quantize:quantize",
    "rules": "tilewright.rules",
    "save_onnx": "tilewright.frontends.onnx.save:save_onnx",
    "te": "tilewright.lang.te",
    "to_onnx": "tilewright.frontends.onnx.export:to_onnx",
    "tune": "tilewright.driver.tune_face",
    "DType": "tilewright.base.dtypes:DType",
    "dtype_of": "tilewright.base.dtypes:dtype_of",
    "TilewrightError": "tilewright.base.errors:TilewrightError",
    "TilewrightWarning": "tilewright.base.errors:TilewrightWarning",
}

__all__ = [
    "DType",
    "Executable",
    "Graph",
    "TilewrightError",
    "TilewrightWarning",
    "__version__",
    "compile",
    "compile_library",
    "compile_training_step",
    "dtype_of",
    "grad",
    "halide",
    "jvp",
    "lift",
    "llm",
    "load",
    "mdh",
    "optim",
    "optimize",
    "quantize",
    "rules",
    "save_onnx",
    "te",
    "to_onnx",
    "tune",
    "value_and_grad",
]


def __getattr__(name: str) -> Any:
    place = _PUBLIC.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = place.partition(":")
    with paused(), soon_asleep():  # of what is loaded, nothing is garbage
        value = import_module(module)
    value = getattr(value, attribute) if attribute else value
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """A public name stays what `_PUBLIC` says when a subpackage of the same name is imported.

    `lift` is the language, and `tilewright.lift` is also the package of its nodes and rules.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        is_subpackage = isinstance(value, ModuleType)
        if is_subpackage and _PUBLIC.get(name, value.__name__) != value.__name__:
            return
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
