"""Validates every kernel of a model, on any machine description that this processor can run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilewright.compute.nodes import Computation
from tilewright.driver.alone import alone
from tilewright.driver.kernels import KernelCompiler, interface
from tilewright.driver.options import Options
from tilewright.driver.stage_passes import stages
from tilewright.driver.steps import import_model, optimise, with_dims
from tilewright.driver.validate.check import EFFORT, validate
from tilewright.driver.validate.verdict import Verdict
from tilewright.graph.lower import Lowered, live_buffers
from tilewright.graph.stages import Stage
from tilewright.runtime.threads import thread_count
from tilewright.schedule.sketch.sketches import parts
from tilewright.targets.base import Target
from tilewright.targets.registry import target as find_target


def validate_model(
    source: Any,
    example_inputs: Sequence[Any] = (),
    *,
    dims: Mapping[str, int] | None = None,
    target: Target | None = None,
    effort: int = EFFORT,
    threads: Sequence[int] = (3,),
    seed: int = 0,
    **options: Any,
) -> list[Verdict]:
    """The verdict on each distinct kernel of a model, which is compiled anew for that.

    source, example_inputs, dims, options: as for `tilewright.compile`. target: a machine to make
    the kernels for, in place of the one that the options name. effort, threads, seed: as for
    `validate`. Raises what `compile` raises, and UnsupportedError for a machine whose code does not
    run here.
    """
    chosen = Options.of(options)
    with alone():
        graph = import_model(source, example_inputs, chosen)
        if dims:
            graph = with_dims(graph, dims, chosen)
        machine = target
        if machine is None:
            count = thread_count(chosen.threads)
            machine = find_target(chosen.target, chosen.mcpu, chosen.math == "exact", count)
        lowered = stages(optimise(graph, chosen, machine), machine, chosen.math)
        return list(validate_stages(lowered, machine, effort=effort, threads=threads, seed=seed))


def validate_stages(
    lowered: Lowered,
    target: Target,
    *,
    effort: int = EFFORT,
    threads: Sequence[int] = (3,),
    seed: int = 0,
) -> Iterator[Verdict]:
    """The verdict on each distinct kernel of a model that was cut into Stages."""
    compiler = KernelCompiler(target, target, None)
    live = live_buffers(lowered)
    seen: set[str] = set()
    for stage in lowered.steps:
        if not isinstance(stage, Stage):
            continue
        face = interface(stage, live[stage])
        code = compiler.compile(face, lowered.data)
        if code.symbol in seen:
            continue
        seen.add(code.symbol)
        fixed = [b in lowered.data for b in face.values]
        yield validate(
            face,
            code,
            fixed,
            kind=kind_of(face.computations),
            known=lowered.data,
            effort=effort,
            threads=threads,
            seed=seed,
        )


def kind_of(computations: Sequence[Computation]) -> str:
    """How the sketches see the Computations of a kernel: one kind, or those of its parts."""
    if not computations:
        return "kernel"
    names = [k.name for k in parts(computations)]
    return names[0] if len(names) == 1 else f"parts: {', '.join(names)}"
