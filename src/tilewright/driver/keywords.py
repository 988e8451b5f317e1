"""The types of `**options`, so that editors complete them and type checkers know their values.

The values are checked, and their defaults are, in `options.Options`, which has the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from tilewright.driver.tuning import How

Math = Literal["exact", "default", "fast"]
Precision = Literal["bfloat16", "float16"]
Fallback = Literal["warn", "error"]
Optimize = Literal["off", "fast", "search", "saturate"]


class ReadOptions(TypedDict, total=False):
    """How a model is read. Those of `grad` and `value_and_grad`, which compile nothing."""

    memory_limit: int | None
    trust: bool
    inputs: Collection[str]
    external_data_roots: Sequence[str | Path]
    dynamic_shapes: Any


class SharedOptions(ReadOptions, total=False):
    """What every function takes that compiles a model; `tilewright.compile` says what each is."""

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
    """What a target of bytes takes its scales from as well."""

    samples: Sequence[Mapping[str, Any]]
    scales: Mapping[str, Any] | str | Path | None
    by: str | None


class CompileOptions(CalibratedOptions, total=False):
    """Those of `tilewright.compile`: all."""

    target: str
    mcpu: str
    threads: int | None
    precision: Precision | None
    records: bool | str | Path | None


class LibraryOptions(CalibratedOptions, total=False):
    """Those of `compile_library`, whose `mcpu` may be several."""

    target: str
    threads: int | None
    precision: Precision | None
    records: bool | str | Path | None


class TuneOptions(CalibratedOptions, total=False):
    """Those of `tune`, whose `records` are what it writes."""

    target: str
    mcpu: str
    threads: int | None
    precision: Precision | None


class ValidateOptions(CalibratedOptions, total=False):
    """Those of `validate_model`, whose `target` may be a machine."""

    mcpu: str
    threads: int | None
    precision: Precision | None
    records: bool | str | Path | None


class ModelOptions(CalibratedOptions, total=False):
    """Those of `llm.load`, which names threads and precision itself."""

    target: str
    mcpu: str
    records: bool | str | Path | None


class ServeOptions(ModelOptions, total=False):
    """Those of `llm.serve`: of `llm.load`, with what that names itself."""

    precision: str
    threads: int | None
    context: int | None
    chunks: Sequence[int]
    group: int


class EncoderOptions(ModelOptions, total=False):
    """Those of `llm.load_embedder`, which names threads itself."""

    precision: Precision | None


class TuneSettings(TypedDict, total=False):
    """When the tuning of one program ends, and where its records are; as for `tilewright.tune`."""

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
