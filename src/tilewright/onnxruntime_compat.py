"""ONNX Runtime's Python interface over compiled models, for code that is written for it.

    import tilewright.onnxruntime_compat as ort

The usual calls are there and do what they do in ONNX Runtime; a setting without a counterpart here
is refused by its name, so that nothing is accepted and then ignored. Providers are the exception:
code lists several to take what is there, so others than the processor bring a warning.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError, TilewrightWarning
from tilewright.base.refused import UnsupportedName, refusing
from tilewright.base.text import did_you_mean, listing
from tilewright.driver import compile

Array = np.ndarray[Any, Any]
_PROVIDER: Final = "CPUExecutionProvider"
# What ONNX Runtime has besides, and what to write instead.
_ABSENT: Final = {
    "run_async": "call run in a thread: it releases Python's lock",
    "end_profiling": "Executable.profile of tw.compile measures each kernel",
    "get_provider_options": "there is one provider, without options",
    "set_providers": "there is one provider; tw.compile has targets for devices",
    "enable_fallback": "leave it out: there is one provider",
    "get_overridable_initializers": "Executable.defaults of tw.compile has them",
    "RunOptions": "leave it out: a run has no options",
    "set_default_logger_severity": "leave it out: there is no log",
    "set_seed": "leave it out: the operators of random numbers have attributes for it",
}
# Types of elements whose names in ONNX Runtime are not NumPy's.
_TYPES: Final = {"float32": "float", "float64": "double", "bool_": "bool"}


class GraphOptimizationLevel(IntEnum):
    """How much the graph is changed; without any, one operator runs at a time."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Operators in sequence, all threads on each; the other mode is refused."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class SessionOptions:
    """Settings of a session; one that has no counterpart raises InputError when it is set.

    intra_op_num_threads: 0 is the default of `tw.compile`. graph_optimization_level: all levels but
    ORT_DISABLE_ALL are one. log_severity_level: there is no log, so every level is honored.
    """

    intra_op_num_threads: int
    graph_optimization_level: int
    _FIXED: Final = {
        "inter_op_num_threads": (0, 1),
        "execution_mode": (ExecutionMode.ORT_SEQUENTIAL,),
        "enable_profiling": (False,),
        "enable_mem_pattern": (True,),
        "enable_cpu_mem_arena": (True,),
        "optimized_model_filepath": ("",),
    }
    _FREE: Final = {
        "intra_op_num_threads": 0,
        "graph_optimization_level": GraphOptimizationLevel.ORT_ENABLE_ALL,
        "log_severity_level": 2,
        "log_verbosity_level": 0,
        "logid": "",
    }

    def __init__(self) -> None:
        self.dims: dict[str, int]
        first = {name: values[0] for name, values in self._FIXED.items()}
        self.__dict__.update({**self._FREE, **first, "dims": {}})

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dict__ or name == "dims":
            known = [*self._FREE, *self._FIXED]
            raise InputError(
                f"SessionOptions has no setting {name!r} here",
                hint=did_you_mean(name, known),
            )
        if name in self._FIXED and value not in self._FIXED[name]:
            raise InputError(
                f"SessionOptions.{name} = {value!r} has no counterpart",
                hint="leave it out; Executable.profile and tw.compile have their own settings",
            )
        self.__dict__[name] = value

    def add_free_dimension_override_by_name(self, name: str, extent: int) -> None:
        """The extent of a symbolic dimension."""
        self.dims[name] = extent

    def add_session_config_entry(self, key: str, value: str) -> None:
        """There are none here. Raises InputError."""
        raise InputError(f"session configuration {key!r} has no counterpart")

    def keywords(self) -> dict[str, Any]:
        """As keyword arguments of `tw.compile`."""
        return {
            "threads": self.intra_op_num_threads or None,
            "fusion": self.graph_optimization_level != 0,
            "dims": self.dims or None,
        }


@dataclass(frozen=True)
class NodeArg:
    """An input or an output: type as `tensor(float)`; a shape of extents, names, and None."""

    name: str
    type: str
    shape: list[int | str | None]


class OrtValue:
    """An array in the memory of the processor."""

    def __init__(self, array: Array) -> None:
        self._array = array

    @staticmethod
    def ortvalue_from_numpy(
        array: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """A copy of the array. Raises InputError for another device than the processor."""
        _on_cpu(device_type)
        return OrtValue(np.array(array))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", *_: Any
    ) -> OrtValue:
        """Zeros of that shape and NumPy type."""
        _on_cpu(device_type)
        return OrtValue(np.zeros(tuple(shape), element_type))

    def numpy(self) -> Array:
        """The array itself."""
        return self._array

    def shape(self) -> list[int]:
        """The extents."""
        return list(self._array.shape)

    def data_type(self) -> str:
        """`tensor(float)`."""
        return _type(self._array.dtype.name)

    def device_name(self) -> str:
        """Where it is."""
        return "cpu"


@dataclass(frozen=True)
class ModelMetadata:
    """What the author of a model says of it."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


class IOBinding:
    """Inputs and outputs that are given to a session once and used by several runs."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._feed: dict[str, Any] = {}
        self._wanted: dict[str, Any] = {}
        self._results: list[OrtValue] = []

    def bind_cpu_input(self, name: str, array: Any) -> None:
        """An input from an array."""
        self._feed[_known(name, self._session.get_inputs(), "input")] = array

    def bind_ortvalue_input(self, name: str, value: OrtValue) -> None:
        """An input from an OrtValue."""
        self.bind_cpu_input(name, value.numpy())

    def bind_output(self, name: str, device_type: str = "cpu", *_: Any) -> None:
        """An output in new memory. Raises InputError for another device than the processor."""
        _on_cpu(device_type)
        self._wanted[_known(name, self._session.get_outputs(), "output")] = None

    def bind_ortvalue_output(self, name: str, value: OrtValue) -> None:
        """An output that is written into the memory of an OrtValue."""
        self.bind_output(name)
        self._wanted[name] = value.numpy()

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self._feed.clear()

    def clear_binding_outputs(self) -> None:
        """Forget the outputs."""
        self._wanted.clear()

    def get_outputs(self) -> list[OrtValue]:
        """The bound outputs of the last run, in the order in which they were bound."""
        return self._results

    def copy_outputs_to_cpu(self) -> list[Array]:
        """The same as arrays."""
        return [value.numpy() for value in self._results]

    def run(self) -> None:
        """Run the session on what is bound."""
        given = {n: array for n, array in self._wanted.items() if array is not None}
        results = self._session._call(self._feed, given or None)
        self._results = [OrtValue(results[name]) for name in self._wanted]


class InferenceSession:
    """A model compiled for this processor, with the methods of ONNX Runtime's session.

    path_or_bytes: an ONNX file, its bytes, or an artifact (.tw). Raises what `tw.compile` raises,
    and InputError for settings that have no counterpart.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        options = SessionOptions() if sess_options is None else sess_options
        if not isinstance(options, SessionOptions):
            raise InputError(
                f"sess_options is a {type(options).__module__}.{type(options).__name__}",
                hint="make it by tilewright.onnxruntime_compat.SessionOptions",
            )
        _warn_of(providers or ())
        self._options = options
        self._executable: Any = _loaded(path_or_bytes, options)
        # Read now: later the file may be another, and bytes would have to be kept.
        self._metadata = _described(path_or_bytes)
        self._inputs = _arguments(
            self._executable.inputs, getattr(self._executable, "given", None)
        )
        self._outputs = _arguments(self._executable.outputs, self._executable.made)

    def get_inputs(self) -> list[NodeArg]:
        """Name, type and shape of each input."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """Name, type and shape of each output."""
        return list(self._outputs)

    def disable_fallback(self) -> None:
        """There is one provider, so nothing falls back to another."""

    def get_modelmeta(self) -> ModelMetadata:
        """What the author says of the model. Raises InputError unless it was an ONNX model."""
        if self._metadata is None:
            raise InputError(
                "only an ONNX model has metadata: an artifact and a .pt2 file do not",
                hint="read them from the ONNX model",
            )
        return self._metadata

    def get_providers(self) -> list[str]:
        """What runs the model: the processor."""
        return [_PROVIDER]

    def get_session_options(self) -> SessionOptions:
        """The settings that it was made with."""
        return self._options

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: None = None,
    ) -> list[Array]:
        """The outputs of these names, or all of them for None, as NumPy arrays.

        Raises InputError for a name that the model does not have, a wrong dtype or shape, and run
        options, which have no counterpart.
        """
        if run_options is not None:
            raise InputError("run_options have no counterpart", hint="leave them out")
        if isinstance(output_names, str):
            raise InputError(
                f"output_names is {output_names!r}, not a list of names",
                hint=f"write [{output_names!r}]",
            )
        wanted = [_known(n, self._outputs, "output") for n in output_names or ()]
        results = self._call(input_feed)
        return [results[name] for name in wanted or results]

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: None = None,
    ) -> list[OrtValue]:
        """As `run`, from OrtValues to OrtValues."""
        results = self.run(output_names, input_dict_ort_values, run_options)
        return [OrtValue(array) for array in results]

    def io_binding(self) -> IOBinding:
        """Inputs and outputs to bind, for `run_with_iobinding`."""
        return IOBinding(self)

    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: None = None
    ) -> None:
        """Run on what is bound. Raises InputError as `run` does."""
        if run_options is not None:
            raise InputError("run_options have no counterpart", hint="leave them out")
        iobinding.run()

    if not TYPE_CHECKING:
        __getattr__ = refusing("ONNX Runtime", _ABSENT)

    def _call(
        self, feed: Mapping[str, Any], out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        if not isinstance(feed, Mapping):
            raise InputError(
                f"the inputs are a {type(feed).__name__}, not a mapping",
                hint="write {name: array, ...}",
            )
        for name in feed:
            if name not in self._executable.defaults:
                _known(name, self._inputs, "input")
        if missing := [v.name for v in self._inputs if v.name not in feed]:
            raise InputError(f"missing inputs: {listing(missing)}")
        arrays = {
            n: a.numpy() if isinstance(a, OrtValue) else a for n, a in feed.items()
        }
        results = self._executable.run(arrays, out)
        return {
            arg.name: found for arg, found in zip(self._outputs, results, strict=True)
        }


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _ABSENT:
            return UnsupportedName("ONNX Runtime", name, _ABSENT[name])
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def get_available_providers() -> list[str]:
    """The processor alone; `tw.compile` has targets for devices."""
    return [_PROVIDER]


def get_device() -> str:
    """What models run on."""
    return "CPU"


def _loaded(source: Any, options: SessionOptions) -> Any:
    given = options.keywords()
    if _is_artifact(source):
        from tilewright.runtime.ranged import load

        if not given["fusion"] or given["dims"]:
            raise InputError(
                "an artifact is already compiled",
                where=os.fspath(source),
                hint="leave graph_optimization_level and dimensions out",
            )
        return load(source, threads=given["threads"])
    return compile(source, **given)


def _is_artifact(source: Any) -> bool:
    return isinstance(source, str | os.PathLike) and os.fspath(source).endswith(".tw")


def _described(source: Any) -> ModelMetadata | None:
    """What the author of an ONNX model says of it; None for other files."""
    from tilewright.frontends.onnx.load import metadata

    if isinstance(source, str | os.PathLike):
        if os.fspath(source).endswith((".tw", ".pt2")):
            return None
    return ModelMetadata(**metadata(source))


def _warn_of(providers: Sequence[Any]) -> None:
    names = [p if isinstance(p, str) else p[0] for p in providers]
    others = [name for name in names if name != _PROVIDER]
    if others:
        warnings.warn(
            f"providers {', '.join(others)} are ignored: the model runs on the processor; "
            "tw.compile has targets for devices",
            TilewrightWarning,
            stacklevel=3,
        )


def _arguments(tensors: Any, values: Any) -> list[NodeArg]:
    """values: of a graph whose shapes have names, in the order of the tensors; or None."""
    shapes = [v.shape for v in values] if values else [t.shape for t in tensors]
    return [
        NodeArg(t.name, _type(t.dtype), list(shape or ()))
        for t, shape in zip(tensors, shapes, strict=True)
    ]


def _type(dtype: str) -> str:
    return f"tensor({_TYPES.get(dtype, dtype)})"


def _known(name: str, arguments: Sequence[NodeArg], what: str) -> str:
    names = [argument.name for argument in arguments]
    if name not in names:
        raise InputError(
            f"no {what} is called {name!r}", hint=did_you_mean(name, names)
        )
    return name


def _on_cpu(device: str) -> None:
    if device != "cpu":
        raise InputError(f"device {device!r}: values are in the processor's memory")
