"""The registry of targets by name, the only way to reach them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from tilewright.base.errors import UnsupportedError
from tilewright.loops.intrinsic import INTRINSICS, TensorIntrinsic
from tilewright.targets.base import Mapper, Network, QuantizedModel, Simulator, Target

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from tilewright.graph.nodes import Graph


GROUP = "tilewright.machines"  # of entry points
Place = str | Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Machine:
    """Where to find what a machine supplies (targets/base.py); "" for what it does not.

    target, simulator, mapper, network, quantized: what makes one, or its place as
    "module:function", which is imported when used. intrinsics: the module that declares its tensor
    intrinsics. described: whether `target` takes a machine description.
    """

    target: Place = ""
    simulator: Place = ""
    mapper: Place = ""
    network: Place = ""
    quantized: Place = ""
    intrinsics: str = ""
    described: bool = False


_MACHINES = {
    "cpu": Machine(
        target="tilewright.targets.cpu.target:make",
        intrinsics="tilewright.targets.cpu.intrinsics",
        described=True,
    ),
    "npu": Machine(
        mapper="tilewright.targets.npu.target:make",
        network="tilewright.targets.npu.network:Network",
    ),
    "vdla": Machine(
        simulator="tilewright.targets.vdla.simulator:make",
        intrinsics="tilewright.targets.vdla.intrinsics",
    ),
    "vta": Machine(
        simulator="tilewright.targets.vta.target:make",
        quantized="tilewright.targets.vta.network:Network",
        intrinsics="tilewright.targets.vta.intrinsics",
    ),
}


def register(name: str, machine: Machine) -> None:
    """Add a machine, or replace one.

    An installed package says it in its metadata instead: an entry point `name` of the group
    `tilewright.machines`, which is a `Machine`.
    """
    _MACHINES[name] = machine


def supplies(name: str, role: str) -> bool:
    """Whether there is a machine `name` with this part: `target`, `simulator`, ..."""
    return bool(getattr(_find(name), role, ""))


def names() -> tuple[str, ...]:
    """The targets that whole models are compiled for."""
    return _with("target")


def simulators() -> tuple[str, ...]:
    """The machines that are simulated."""
    return _with("simulator")


def mappers() -> tuple[str, ...]:
    """The machines that Lift programs are brought to by rewriting."""
    return _with("mapper")


def networks() -> tuple[str, ...]:
    """The machines that a whole model is brought to as it is."""
    return _with("network")


def quantizers() -> tuple[str, ...]:
    """The machines that a whole model is quantized for."""
    return _with("quantized")


def described() -> tuple[str, ...]:
    """The targets that take a machine description."""
    return _with("described")


def target(
    name: str = "cpu",
    mcpu: str = "native",
    exact: bool = False,
    threads: int | None = None,
    description: Mapping[str, Any] | None = None,
) -> Target:
    """The target `name` for the processor `mcpu`.

    exact: no fused multiply-adds. threads: on which its code is to run; None: as many as there are
    cores. description: what is otherwise than usual about the machine, in the target's own fields.

    Raises UnsupportedError for an unknown target or one that takes no description, InputError for
    a bad description.
    """
    make, given = _load(name, "target"), (mcpu, exact, threads)
    if description is not None and not supplies(name, "described"):
        raise UnsupportedError(
            f"target {name!r} takes no machine description",
            code="TW-TARGET",
            hint=f"for {', '.join(described())}; leave out --machine, unset TILEWRIGHT_MACHINE",
        )
    made: Target = make(*given) if description is None else make(*given, description)
    return made


def simulator(name: str) -> Simulator:
    """The simulated machine `name`. Raises UnsupportedError for an unknown one."""
    made: Simulator = _load(name, "simulator")()
    return made


def mapper(name: str) -> Mapper:
    """The machine `name` that Lift programs are brought to. Raises UnsupportedError for others."""
    made: Mapper = _load(name, "mapper")()
    return made


def network(name: str, graph: Graph, description: str | None = None) -> Network:
    """A float model on the machine `name`.

    description: which one, where the name is that of a kind of machines, by a name or a file that
    it knows. Raises UnsupportedError for an unknown machine or a model that it cannot take.
    """
    make = _load(name, "network")
    made: Network = make(graph) if description is None else make(graph, description)
    return made


def quantized(
    name: str,
    graph: Graph,
    samples: Sequence[Mapping[str, Any]],
    scales: Mapping[str, float] | None = None,
    by: str = "shift",
) -> QuantizedModel:
    """A float model for the machine `name`, with scales from samples, an array per input each.

    scales: those of a model made before; a sample then says the shapes only. by: how sums become
    bytes, as the machine names it.

    Raises UnsupportedError for an unknown machine or a model that it cannot take.
    """
    made: QuantizedModel = _load(name, "quantized")(graph, samples, scales, by)
    return made


def intrinsics(name: str) -> dict[str, TensorIntrinsic]:
    """The tensor intrinsics of a machine by name, declared from now on; those of users included.

    Raises UnsupportedError for an unknown machine.
    """
    machine = _find(name)
    if machine is None:
        raise _unknown(name)
    if machine.intrinsics:
        importlib.import_module(machine.intrinsics)
    return {i.name: i for i in INTRINSICS.values() if i.target == name}


def _with(role: str) -> tuple[str, ...]:
    return tuple(
        sorted(name for name in {*_MACHINES, *_installed()} if supplies(name, role))
    )


@cache
def _installed() -> dict[str, EntryPoint]:
    """What other packages supply, by name."""
    from importlib.metadata import entry_points

    return {p.name: p for p in entry_points(group=GROUP)}


def _find(name: str) -> Machine | None:
    if name not in _MACHINES and name in _installed():
        place = _installed()[name]
        try:
            found = place.load()
        except Exception as error:
            raise _broken(name, place, f"it cannot be imported: {error}") from error
        if not isinstance(found, Machine):
            raise _broken(name, place, f"it is a {type(found).__name__}")
        _MACHINES[name] = found
    return _MACHINES.get(name)


def _broken(name: str, place: EntryPoint, why: str) -> UnsupportedError:
    package = place.dist.name if place.dist else "a package"
    return UnsupportedError(
        f"machine {name!r} is supplied by {package} as {place.value}: {why}",
        code="TW-TARGET",
        hint="its place is that of a targets.registry.Machine; fix or uninstall the package",
    )


def _load(name: str, role: str) -> Any:
    place = getattr(_find(name), role, "")
    if not place:
        raise _unknown(name)
    if not isinstance(place, str):
        return place
    module, function = place.split(":")
    return getattr(importlib.import_module(module), function)


def _unknown(name: str) -> UnsupportedError:
    whole = sorted({*networks(), *quantizers()})
    hint = (
        f"known: {', '.join(names())}; simulated, for one kernel: {', '.join(simulators())}; "
        f"for Lift programs: {', '.join(mappers())}; "
        f"for `run` and `compile --emit asm`: {', '.join(whole)}"
    )
    return UnsupportedError(f"unknown target {name!r}", code="TW-TARGET", hint=hint)
