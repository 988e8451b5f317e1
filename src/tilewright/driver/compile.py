"""`compile()`: loads the model from the cache, and imports the compiler only if needed."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack, overload

from tilewright.base import events, flags, limits
from tilewright.base.arguments import expect
from tilewright.base.errors import ModelError
from tilewright.base.roomy import roomy
from tilewright.base.text import listing
from tilewright.driver import model_cache, version
from tilewright.driver.compile_lock import exclusive
from tilewright.driver.options import Options
from tilewright.frontends import torch
from tilewright.runtime.executable import Executable
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.threads import thread_count

if TYPE_CHECKING:
    from tilewright.base.store import FileStore
    from tilewright.driver.dims import Dims
    from tilewright.driver.dynamic import DynamicExecutable
    from tilewright.driver.keywords import CompileOptions
    from tilewright.driver.model_cache import AnyModel, CachedModel
    from tilewright.driver.schedule_records import ScheduleRecord
    from tilewright.driver.sized import SizedExecutable
    from tilewright.driver.tiered import TieredExecutable
    from tilewright.runtime.ranged import RangedExecutable

    OneTier: TypeAlias = (
        Executable | DynamicExecutable | RangedExecutable | SizedExecutable
    )


@overload
def compile(
    source: Any,
    example_inputs: Any = (),
    *,
    dims: Dims | None = None,
    tiered: Literal[False] = False,
    **options: Unpack[CompileOptions],
) -> OneTier: ...


@overload
def compile(
    source: Any,
    example_inputs: Any = (),
    *,
    dims: Dims | None = None,
    tiered: bool,
    **options: Unpack[CompileOptions],
) -> OneTier | TieredExecutable: ...


def compile(
    source: Any,
    example_inputs: Any = (),
    *,
    dims: Dims | None = None,
    tiered: bool = False,
    **options: Unpack[CompileOptions],
) -> OneTier | TieredExecutable:
    """Compile a model for this machine.

    source: a path to an ONNX file or to an exported PyTorch program (.pt2), the bytes of an ONNX
    file, an onnx.ModelProto, a torch.nn.Module, an ExportedProgram, a Graph, or a Kernel, which is
    compiled as scheduled. example_inputs: the inputs to trace a module with: a tensor, a sequence
    of arguments, or a mapping of arguments by name. dims: for each symbolic dimension, its value or
    the values that calls may have: (least, most), (least, most, step), or a list. tiered: return as
    soon as the model is read; calls interpret it until it is compiled in the background, see
    `driver.tiered`. options:

    - target, mcpu, threads: the machine to compile for
    - machine: a file that describes the processor's caches and costs, or the accelerator; for the
      npu, also a name
    - samples, by: for a target that computes in bytes, sample inputs by name to calibrate its
      scales with, and its method of rescaling sums; or scales: the file that `tilewright quantize`
      wrote, or its contents
    - fallback: "warn" or "error", for operators without native code
    - math: "exact", "default" or "fast"
    - precision: "bfloat16" or "float16", the type to store constant matrices of products in; sums
      stay in float32, but if the processor multiplies pairs of bfloat16, activations are rounded to
      it, too, and convolutions run in it. For target cuda, "tf32": tensor cores multiply float32,
      whose factors they round to 10 bits after the point
    - cache: False neither reads nor writes the kernel cache
    - memory_limit: in bytes
    - trust: read a .pt2 with PyTorch's own reader, which runs code from the file
    - sanitize: check every access while the model runs
    - optimize: "fast", the default, applies the substitutions that reduce arithmetic; "search" and
      "saturate" search for the graph with the fastest kernels, "off" applies none; `tw.optimize`
      has all settings
    - fusion: False runs one operator at a time, for comparison
    - inputs: names of inputs that every call must pass although the model has defaults for them
    - external_data_roots: folders besides the model's own to read weights from, also from files
      with several hard links
    - schedules: values of schedule parameters by kernel, in the form that `schedules` returns, to
      replace default schedules
    - aliases: maps outputs to inputs: the output is written to the memory of the input, which a
      call overwrites and returns; this updates a key-value cache in place, without a copy
    - dynamic_shapes: for a torch.nn.Module, the dimensions that differ between calls, in the form
      of torch.export.export; `dims` and errors use the names given there
    - jit: False compiles nothing during calls: all shapes that `dims` allows are compiled now, and
      calls with other shapes are rejected
    - records: the file of tuning records to take schedules from, by default the user's; False uses
      none

    Raises TilewrightError subclasses: ModelError, UnsupportedError, InputError, MemoryLimitError.
    """
    asked = source, example_inputs, dims, tiered, Options.of(options)
    made = _compiled(*asked)
    if made.defaults:
        made.overrides.compile = partial(_form, *asked, made.overrides.origin)
    return made


def _form(
    source: Any,
    example_inputs: Sequence[Any],
    dims: Dims | None,
    tiered: bool,
    chosen: Options,
    origin: Any,
    names: frozenset[str],
) -> OneTier | TieredExecutable:
    """The model with the named inputs, which have defaults, as required inputs.

    origin: the model that was compiled. A file that has changed since is another model, whose
    defaults may differ from those of the executable that asks.
    """
    free = replace(chosen, inputs=(*chosen.inputs, *names))
    found = _compiled(source, example_inputs, dims, tiered, free)
    if found.overrides.origin != origin:
        raise ModelError(
            f"the model has changed since it was compiled, so {listing(sorted(names))} "
            "cannot be passed",
            hint="compile it again",
        )
    return found


@roomy
def _compiled(
    source: Any,
    example_inputs: Sequence[Any],
    dims: Dims | None,
    tiered: bool,
    chosen: Options,
) -> OneTier | TieredExecutable:
    """Load the model from the cache if it is there; else compile and store it."""
    expect(tiered=tiered, dims=dims)
    torch.refuse_examples(source, example_inputs)
    with exclusive(), events.span("compile"):
        store = chosen.store
        limit = chosen.limit
        asked = None
        # TILEWRIGHT_CHECK validates single kernels, and a cached model does not have them.
        if store is not None and not flags.CHECK.get():
            if not chosen.jit and torch.is_module(source):
                from tilewright.driver.sources import import_model

                # All of its shapes take long to compile, and its graph identifies it.
                source = import_model(source, example_inputs, chosen)
                example_inputs = ()
            asked = _identified(store, source, dims, chosen)
        if store is not None and asked is not None:
            model = model_cache.find(store, asked, limit, thread_count(chosen.threads))
            if model is not None:
                ready = _executable(model, chosen.threads)
                if not tiered:
                    return ready
                if isinstance(ready, Executable):  # a range has one tier
                    return _in_tiers(ready)

        def keep(model: AnyModel) -> None:
            if store is not None and asked is not None:
                model_cache.keep(store, asked, model, limit)

        if tiered:
            from tilewright.driver.first_tier import begin

            return begin(source, example_inputs, dims, chosen, keep)
        _load(chosen)
        from tilewright.driver import steps
        from tilewright.runtime.ranged import RangedExecutable

        made = steps.executable(source, example_inputs, dims, chosen)
        if isinstance(made, Executable | RangedExecutable):
            keep(made.model)
        return made


def _executable(model: AnyModel, threads: int | None) -> Executable | RangedExecutable:
    if isinstance(model, CompiledModel):
        return Executable(model, threads=threads, lazy=True)
    from tilewright.runtime.ranged import RangedExecutable

    return RangedExecutable(model, threads=threads)


def _identified(
    store: FileStore, source: Any, dims: Dims | None, chosen: Options
) -> CachedModel | None:
    """The model as the cache identifies it.

    A file that has to be read is hardly in the cache, nor is any if the compiler's sources have to
    be read. The compiler is loaded meanwhile, and another process reads: a thread would wait for
    the interpreter after each chunk.
    """
    identify = partial(
        model_cache.known,
        store,
        source,
        dims,
        chosen.decisive,
        limits.file_bytes(chosen.limit),
        chosen.external_data_roots,
    )
    loaded = "tilewright.driver.steps" in sys.modules
    if loaded or not isinstance(source, str | os.PathLike):
        return identify()
    if not model_cache.is_new(store, source) and version.is_known(store):
        return identify()
    from tilewright.driver.processes import can_fork, meanwhile

    if not can_fork():
        return identify()
    with meanwhile(lambda: pickle.dumps((identify(), version.FOUND))) as result:
        _load(chosen)
        found = result()
    if found is None:
        return identify()
    asked: CachedModel | None
    asked, versions = pickle.loads(found)
    version.FOUND.update(versions)
    return asked


def _load(chosen: Options) -> None:
    """Load the compiler, while LLVM makes the code that all models for this processor share."""
    if "tilewright.driver.steps" in sys.modules:
        return
    if (chosen.target, chosen.mcpu) == ("cpu", "native"):
        from tilewright.driver.processes import briefly
        from tilewright.targets import registry

        briefly(registry.target(chosen.target).support)
    from tilewright.driver import steps  # noqa: F401


def _in_tiers(ready: Executable) -> TieredExecutable:
    from tilewright.driver.tiered import TieredExecutable

    return TieredExecutable(ready, None)


@roomy
def text(
    source: Any,
    kind: str,
    example_inputs: Sequence[Any] = (),
    *,
    dims: Mapping[str, int] | None = None,
    kernel: str | None = None,
    **options: Unpack[CompileOptions],
) -> str:
    """The model at one stage of compilation: graph, plan, computation, schedule, kernel, llvm or
    asm.

    dims: as for `compile`. kernel: show only kernels with this text in their name or an operator's,
    or that match it as a pattern. Raises InputError for an unknown kind, a name that no kernel has,
    or, in stages after the graph, a symbolic dimension without a value; and the errors of
    `compile`.
    """
    from tilewright.driver import stages

    expect(dims=dims)
    chosen = Options.of(options)
    with exclusive():
        return stages.text(source, kind, example_inputs, dims, chosen, kernel)


@roomy
def schedules(
    source: Any,
    example_inputs: Sequence[Any] = (),
    *,
    dims: Dims | None = None,
    **options: Unpack[CompileOptions],
) -> list[ScheduleRecord]:
    """How each kernel of a model is scheduled, and why: sketch, parameters, trace, refusals.

    dims: as for `compile`. With jit=False and ranges: how each kernel of the code that shapes
    share computes its sizes, such as by units or positions; shapes with their own code are left
    out. Raises InputError for a symbolic dimension without a value otherwise, and the errors of
    `compile`.
    """
    from tilewright.driver import stages

    expect(dims=dims)
    with exclusive():
        return stages.schedules(source, example_inputs, dims, Options.of(options))
