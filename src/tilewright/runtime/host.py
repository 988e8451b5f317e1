"""Host fallbacks: operators that run in Python, found by provider and name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tilewright.base.errors import ArtifactError, TilewrightError

# Takes the inputs in order (None where left out), returns the outputs in order. Inputs are not to
# be written to; arrays among them are read-only views.
HostKernel = Callable[[Sequence[Any]], Sequence[Any]]
Factory = Callable[[str, Mapping[str, Any]], HostKernel]

# Only these modules are ever imported: an artifact names a provider, never a module.
_MODULES: Final[Mapping[str, tuple[str, str]]] = {
    "onnx": ("tilewright.frontends.onnx.host_fallback", "onnx"),
    "trim": ("tilewright.runtime.trim", "tilewright"),
}
_factories: dict[str, Factory] = {}


def register(provider: str, factory: Factory) -> None:
    """Make `factory(op, attributes)` the maker of a provider's kernels.

    Providers of our own call it when imported; a user's may call it before loading a model.
    """
    _factories[provider] = factory


def resolve(provider: str, op: str, attributes: Mapping[str, Any]) -> HostKernel:
    """The kernel for one host step, importing the provider when first needed.

    Raises ArtifactError for a provider that is unknown or not installed, and for attributes that
    it cannot make a kernel of.
    """
    if provider not in _factories:
        _import(provider)
    try:
        return _factories[provider](op, attributes)
    except TilewrightError:
        raise
    except Exception as error:
        raise ArtifactError(
            f"the host fallback of {op} cannot be created: {type(error).__name__}: {error}",
            code="TW-HOST",
        ) from error


def _import(provider: str) -> None:
    if provider not in _MODULES:
        raise ArtifactError(
            f"the model needs operators of {provider!r}, which is not registered",
            code="TW-HOST",
            hint="Import the module that registers them before loading the model",
        )
    module, package = _MODULES[provider]
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ArtifactError(
            f"the model has operators that need the host fallbacks of {provider!r}, "
            f"which cannot be imported: {error}",
            code="TW-HOST",
            hint=f"Run: pip install {package}",
        ) from error
    if provider not in _factories:
        raise ArtifactError(
            f"{module} registers no kernels for {provider!r}", code="TW-HOST"
        )
