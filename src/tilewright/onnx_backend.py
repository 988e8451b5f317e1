"""ONNX's Backend API: `prepare`, `run_model`, `run_node`, `supports_device`.

    import onnx.backend.test, tilewright.onnx_backend
    tests = onnx.backend.test.BackendTest(tilewright.onnx_backend.TilewrightBackend, __name__)

The module itself can stand in for the class, as with other runtimes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.driver import compile
from tilewright.driver.dynamic import DynamicExecutable
from tilewright.driver.sized import SizedExecutable
from tilewright.frontends.onnx.author import (
    Backend,
    BackendRep,
    Device,
    DeviceType,
    model_of_node,
)
from tilewright.runtime.executable import Executable
from tilewright.runtime.ranged import RangedExecutable

# What a caller may pass on to the compiler, which refuses `strict` and names its replacement;
# test runners add their own words.
_OPTIONS = (
    "threads", "fallback", "strict", "math", "mcpu", "cache", "memory_limit", "dims",
)  # fmt: skip


class TilewrightRep(BackendRep):
    """A compiled model."""

    def __init__(
        self,
        executable: Executable | DynamicExecutable | RangedExecutable | SizedExecutable,
    ) -> None:
        self.executable = executable

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs for `inputs`: a mapping by name, a sequence in order, or one array."""
        if isinstance(inputs, Mapping):
            results = self.executable(inputs)
        else:
            several = isinstance(inputs, list | tuple)
            results = self.executable(*(inputs if several else [inputs]))
        return (results,) if len(self.executable.outputs) == 1 else tuple(results)


class TilewrightBackend(Backend):
    """Tilewright as ONNX's tests and tools see it."""

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model can be tried: always, the reasons against come from `prepare`."""
        return True

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether `device` ("CPU", "CUDA:0", ...) is one we compile for."""
        try:
            return bool(Device(device).type == DeviceType.CPU)
        except (AttributeError, ValueError):
            return False

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> TilewrightRep:
        """Compile an `onnx.ModelProto`, its bytes or its path. Raises TilewrightError."""
        options = {name: kwargs[name] for name in _OPTIONS if name in kwargs}
        return TilewrightRep(compile(model, **options))

    @classmethod
    def run_model(
        cls, model: Any, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Compile and run once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: Any,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Compile and run a single NodeProto; `opset_version` says of which operator set."""
        names = [name for name in node.input if name]
        values = (
            [inputs[name] for name in names]
            if isinstance(inputs, Mapping)
            else list(inputs)
            if isinstance(inputs, list | tuple)
            else [inputs]
        )
        model = model_of_node(node, values, kwargs.pop("opset_version", None))
        return cls.prepare(model, device, **kwargs).run(values)


is_compatible = TilewrightBackend.is_compatible
prepare = TilewrightBackend.prepare
run_model = TilewrightBackend.run_model
run_node = TilewrightBackend.run_node
supports_device = TilewrightBackend.supports_device
