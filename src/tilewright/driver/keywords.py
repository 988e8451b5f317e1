"""The types of `**options`, for completion in editors and for type checkers.

`options.Options` has fields of the same names; it checks the values and has the defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from tilewright.driver.tuning import How

Math = Literal["exact", "default", "fast"]
Precision = Literal["bfloat16", "float16", "tf32"]
Fallback = Literal["warn", "error"]
Optimize = Literal["off", "fast", "search", "saturate"]


class ReadOptions(TypedDict, total=False):
    """How to read a model. The options of `grad` and `value_and_grad`, which compile nothing."""

    memory_limit: int | None
    trust: bool
    inputs: Collection[str]
    external_data_roots: Sequence[str | Path]
    dynamic_shapes: Any


class SharedOptions(ReadOptions, total=False):
    """The options of every function that compiles a model; see `tilewright.compile`."""

    machine: str | Path | None
    fallback: Fallback | None
    math: Math
    cache: bool | None
    sanitize: bool
    fusion: bool
    optimize: Optimize
    schedules: Mapping[str, Mapping[str, Any]]
    aliases: Mapping[str, str]
    jit: bool


class CalibratedOptions(SharedOptions, total=False):
    """As well, the options that calibrate the scales of a target that computes in bytes."""

    samples: Sequence[Mapping[str, Any]]
    scales: Mapping[str, Any] | str | Path | None
    by: str | None


class CompileOptions(CalibratedOptions, total=False):
    """All options of `tilewright.compile`."""

    target: str
    mcpu: str
    threads: int | None
    precision: Precision | None
    records: bool | str | Path | None


class LibraryOptions(CalibratedOptions, total=False):
    """The options of `compile_library`, which has its own `mcpu`."""

    target: str
    threads: int | None
    precision: Precision | None
    records: bool | str | Path | None


class TuneOptions(CalibratedOptions, total=False):
    """The options of `tune`, which has its own `records`."""

    target: str
    mcpu: str
    threads: int | None
    precision: Precision | None


class ValidateOptions(CalibratedOptions, total=False):
    """The options of `validate_model`, which has its own `target`."""

    mcpu: str
    threads: int | None
    precision: Precision | None
    records: bool | str | Path | None


class ModelOptions(CalibratedOptions, total=False):
    """The options of `llm.load`, which has its own `threads` and `precision`."""

    target: str
    mcpu: str
    records: bool | str | Path | None


class ServeOptions(ModelOptions, total=False):
    """The options of `llm.serve`: all of `llm.load`."""

    precision: str
    threads: int | None
    context: int | None
    chunks: Sequence[int]
    group: int


class EncoderOptions(ModelOptions, total=False):
    """The options of `llm.load_embedder`, which has its own `threads`."""

    precision: Precision | None


class TuneSettings(TypedDict, total=False):
    """When to end the tuning of a program, and where to record it; as for `tilewright.tune`."""

    trials: int | None
    seconds: float | None
    expected_gain: float
    records: str | Path | None
    until: Callable[[], bool] | None
    how: How | None


class QuantizeOptions(TypedDict, total=False):
    """How `tilewright.quantize` chooses ranges and rounds; see `graph.quantize.recipe.Recipe`."""

    method: Literal["min-max", "percentile", "entropy", "mse"]
    percentile: float | None
    activations: Literal["uint8", "int8"]
    rounding: Literal["nearest", "gptq"]
    equalize: bool
    smooth: float | None
    search: bool
    correct_bias: bool
