"""Validates every kernel of a model, for any machine description that this processor can run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack

from tilewright.base import events
from tilewright.base.errors import UnsupportedError
from tilewright.compute.nodes import Computation
from tilewright.driver.aliases import Aliases, aliased_buffers, in_place
from tilewright.driver.chosen_schedules import ChosenSchedules, chosen_schedules
from tilewright.driver.compilation import Compilation
from tilewright.driver.compile_lock import exclusive
from tilewright.driver.graph_passes import passed
from tilewright.driver.guard import EFFORT, Fault, Verdict, share_of, validate
from tilewright.driver.kernels import KernelCompiler
from tilewright.driver.options import Options
from tilewright.driver.sources import import_model, with_dims
from tilewright.plan.nodes import Plan
from tilewright.plan.normalize import kernel_signature
from tilewright.runtime.device import HOST
from tilewright.runtime.threads import thread_count
from tilewright.schedule.space.patterns import parts
from tilewright.targets.base import Target
from tilewright.targets.registry import target as find_target

if TYPE_CHECKING:
    from tilewright.driver.keywords import ValidateOptions

__all__ = [
    "EFFORT",
    "Fault",
    "Verdict",
    "kind_of",
    "share_of",
    "validate",
    "validate_groups",
    "validate_model",
]


def validate_model(
    source: Any,
    example_inputs: Sequence[Any] = (),
    *,
    dims: Mapping[str, int] | None = None,
    target: Target | str = "cpu",
    effort: int = EFFORT,
    shares: Sequence[int] = (3,),
    seed: int = 0,
    **options: Unpack[ValidateOptions],
) -> list[Verdict]:
    """Compile a model and return the verdict on each of its distinct kernels.

    source, example_inputs, dims, options: as for `tilewright.compile`. target: the machine to
    compile the kernels for, or its name, as for `compile`. effort, shares, seed: as for `validate`.
    Raises the errors of `compile`, and UnsupportedError for a machine whose code does not run here.
    """
    named = {"target": target} if isinstance(target, str) else {}
    chosen = Options.of({**options, **named})
    with exclusive():
        graph = import_model(source, example_inputs, chosen)
        if dims:
            graph = with_dims(graph, dims, chosen)
        count = thread_count(chosen.threads)
        machine = target
        if isinstance(machine, str):
            exact = chosen.math == "exact"
            machine = find_target(
                machine, chosen.mcpu, exact, count, chosen.description
            )
        if machine.device != HOST:
            raise UnsupportedError(
                f"kernels of {machine.name!r} cannot be validated in the host's memory",
                code="TW-TARGET",
                hint="use target cpu; the simulators check every access themselves",
            )
        graph, _ = passed(graph, chosen, machine)
        plan = Compilation.of(machine, chosen).planned(graph)
        given: Any = {"effort": effort, "shares": shares, "seed": seed}
        given["choose"] = chosen_schedules(plan, machine, chosen)
        given["aliases"] = aliased_buffers(plan, chosen.aliases)
        return list(validate_groups(plan, machine, sanitize=chosen.sanitize, **given))


def validate_groups(
    plan: Plan,
    target: Target,
    *,
    effort: int = EFFORT,
    shares: Sequence[int] = (3,),
    seed: int = 0,
    sanitize: bool = False,
    choose: ChosenSchedules | None = None,
    aliases: Aliases = MappingProxyType({}),
) -> Iterator[Verdict]:
    """The verdict on each distinct kernel of a plan.

    choose: selects their schedules; None: the default ones. aliases: results in the memory of an
    input.
    """
    compiler = KernelCompiler(target, target, None, sanitize)
    if choose is not None:
        compiler.choose, compiler.withdraw = choose, choose.withdraw
    seen: set[str] = set()
    for stage in plan.groups:
        signature = in_place(kernel_signature(stage, plan.live[stage]), aliases)
        with events.record() as happened:
            code = compiler.compile(signature, plan.data)
        if code.symbol in seen:
            continue
        seen.add(code.symbol)
        fixed = [b in plan.data for b in signature.values]
        yield validate(
            signature,
            code,
            fixed,
            kind=_sketch(happened, signature.group or signature.name)
            or kind_of(signature.computations),
            known=plan.data,
            effort=effort,
            shares=shares,
            seed=seed,
        )


def _sketch(happened: Sequence[events.Event], kernel: str) -> str | None:
    """The sketch that made a kernel's schedule; None for a schedule by parts, which have kinds."""
    chosen = [e.fields for e in happened if e.kind == "sketch-chosen"]
    made = [fields["sketch"] for fields in chosen if fields["kernel"] == kernel]
    return None if not made or made[-1] == "parts" else str(made[-1])


def kind_of(computations: Sequence[Computation]) -> str:
    """The kernel pattern of the Computations of a kernel, or the patterns of its parts."""
    if not computations:
        return "kernel"
    names = [k.name for k in parts(computations)]
    return names[0] if len(names) == 1 else f"parts: {', '.join(names)}"
