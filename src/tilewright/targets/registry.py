"""The targets by name; everybody but a target itself goes through here."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilewright.base.errors import UnsupportedError
from tilewright.loops.intrinsic import INTRINSICS, TensorIntrinsic
from tilewright.targets.base import Mapper, QuantisedModel, Simulator, Target

if TYPE_CHECKING:
    from tilewright.graph.nodes import Graph

_FACTORIES = {"cpu": "tilewright.targets.cpu.target:make"}
_SIMULATORS = {
    "vdla": "tilewright.targets.vdla.simulator:make",
    "vta": "tilewright.targets.vta.target:make",
}
_MAPPERS = {"npu": "tilewright.targets.npu.target:make"}
_QUANTISED = {"vta": "tilewright.targets.vta.network:Network"}
_INTRINSICS = {
    "cpu": "tilewright.targets.cpu.intrinsics",
    "vdla": "tilewright.targets.vdla.intrinsics",
    "vta": "tilewright.targets.vta.intrinsics",
}


def names() -> tuple[str, ...]:
    """The targets this build knows."""
    return tuple(sorted(_FACTORIES))


def simulators() -> tuple[str, ...]:
    """The machines that are simulated."""
    return tuple(sorted(_SIMULATORS))


def register(name: str, factory: str) -> None:
    """Add a target: `factory` is "module:function", called with `mcpu` and `exact`."""
    _FACTORIES[name] = factory


def target(name: str = "cpu", mcpu: str = "native", exact: bool = False) -> Target:
    """The target `name` for the processor `mcpu`; `exact` forbids fused multiply-adds.

    Raises UnsupportedError for an unknown one.
    """
    if name not in _FACTORIES:
        raise _unknown(name)
    made: Target = _load(_FACTORIES[name])(mcpu, exact)
    return made


def simulator(name: str) -> Simulator:
    """The simulated machine `name`. Raises UnsupportedError for an unknown one."""
    if name not in _SIMULATORS:
        raise _unknown(name)
    made: Simulator = _load(_SIMULATORS[name])()
    return made


def mappers() -> tuple[str, ...]:
    """The machines that Lift programs are brought to by rewriting."""
    return tuple(sorted(_MAPPERS))


def mapper(name: str) -> Mapper:
    """The machine `name` that Lift programs are brought to. Raises UnsupportedError for others."""
    if name not in _MAPPERS:
        raise _unknown(name)
    made: Mapper = _load(_MAPPERS[name])()
    return made


def quantisers() -> tuple[str, ...]:
    """The machines that a whole model is quantised for."""
    return tuple(sorted(_QUANTISED))


def quantised(
    name: str,
    graph: Graph,
    samples: Sequence[Mapping[str, Any]],
    scales: Mapping[str, int] | None = None,
) -> QuantisedModel:
    """A float model for the machine `name`, with scales from samples, an array per input each.

    scales: those of a model made before; a sample then says the shapes only.

    Raises UnsupportedError for an unknown machine or a model that it cannot take.
    """
    if name not in _QUANTISED:
        raise _unknown(name)
    made: QuantisedModel = _load(_QUANTISED[name])(graph, samples, scales)
    return made


def intrinsics(name: str) -> dict[str, TensorIntrinsic]:
    """The tensor intrinsics of a target by name, declared from now on; those of users included.

    Raises UnsupportedError for an unknown target.
    """
    if name not in (*names(), *simulators()):
        raise _unknown(name)
    if name in _INTRINSICS:
        importlib.import_module(_INTRINSICS[name])
    return {i.name: i for i in INTRINSICS.values() if i.target == name}


def _load(place: str) -> Any:
    module, function = place.split(":")
    return getattr(importlib.import_module(module), function)


def _unknown(name: str) -> UnsupportedError:
    hint = f"known: {', '.join(names())}; simulated, for one kernel: {', '.join(simulators())}"
    return UnsupportedError(f"unknown target {name!r}", code="TW-TARGET", hint=hint)
