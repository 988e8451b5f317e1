"""A model for the shapes of ranges: code for single shapes, and code for all of many others."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ArtifactError
from tilewright.runtime.conditions import ExtentCondition
from tilewright.runtime.dispatch import Allowed
from tilewright.runtime.model import CompiledModel, SymbolicType
from tilewright.runtime.open_model import OpenModel
from tilewright.runtime.packed import NO_CONSTANTS, Constants

Key = tuple[int, ...]  # extents of the dimensions, in the order of `allowed`


@dataclass(frozen=True, eq=False, slots=True)
class Cover:
    """Combinations of extents: the product of some values per dimension, with a few exceptions."""

    extents: tuple[Collection[int], ...]
    without: frozenset[Key] = frozenset()

    def __contains__(self, key: Key) -> bool:
        inside = all(n in values for n, values in zip(key, self.extents, strict=True))
        return inside and key not in self.without

    def __len__(self) -> int:
        return math.prod(map(len, self.extents)) - len(self.without)


@dataclass(frozen=True, eq=False, slots=True)
class SharedModel:
    """A model of all combinations of extents that it covers."""

    opened: OpenModel
    covers: Cover

    def with_constants(self, held: Constants) -> SharedModel:
        """The same code with these constants."""
        model = _sharing(self.opened.model, held)
        return replace(self, opened=replace(self.opened, model=model))


@dataclass(frozen=True, eq=False, slots=True)
class RangedModel:
    """What runs each combination of extents that is allowed.

    inputs, outputs: their extents by name. single: models of one combination each. shared: models
    of many. meta: as of CompiledModel, for all of them. conditions: on the extents of a call. All
    models have the same constants.
    """

    inputs: tuple[SymbolicType, ...]
    outputs: tuple[SymbolicType, ...]
    allowed: Allowed
    single: Mapping[Key, CompiledModel]
    shared: tuple[SharedModel, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    conditions: tuple[ExtentCondition, ...] = ()

    @property
    def models(self) -> tuple[CompiledModel, ...]:
        """Each model there is code of."""
        return (*self.single.values(), *(s.opened.model for s in self.shared))

    @property
    def held(self) -> Constants:
        """The constants of all models."""
        return self.models[0].held if self.models else NO_CONSTANTS

    def needs(self, constants: int) -> int:
        """Bytes of all arenas, and of so many bytes of constants."""
        return constants + sum(m.arena_bytes for m in self.models)

    def fits(self, limit: int, threads: int) -> bool:
        """Whether it needs at most half of the limit in bytes; calls have the other half."""
        return self.needs(len(self.held.block)) <= limit // 2

    def with_constants(self, held: Constants) -> RangedModel:
        """The same code with these constants."""
        single = {key: _sharing(m, held) for key, m in self.single.items()}
        shared = (s.with_constants(held) for s in self.shared)
        return replace(self, single=single, shared=tuple(shared))


def _sharing(model: CompiledModel, held: Constants) -> CompiledModel:
    return replace(model.with_constants(held), shares_constants=True)


def check(model: RangedModel) -> None:
    """Raise ArtifactError unless each allowed combination is one that the parts can be of."""
    count = len(model.allowed)
    wrong = any(len(key) != count for key in model.single)
    if wrong or not _within(model.single, model.allowed):
        raise ArtifactError("the model has code for extents that it does not allow")
    known = {d for v in model.inputs for d in v.shape or ()}
    if not all(known.issuperset(c.names) for c in model.conditions):
        raise ArtifactError("the model has conditions on extents that no input has")
    for shared in model.shared:
        if len(shared.covers.extents) != count:
            raise ArtifactError("the model's code for all sizes has other sizes")
    if len({id(m.constants) for m in model.models}) > 1:
        raise ArtifactError("the model's codes have different constants")
    for m in model.models:
        ends = zip(
            (*model.inputs, *model.outputs), (*m.inputs, *m.outputs), strict=False
        )
        if len(m.inputs) != len(model.inputs) or any(a.name != b.name for a, b in ends):
            raise ArtifactError("the model has code for other inputs or outputs")


def _within(keys: Collection[Key], allowed: Allowed) -> bool:
    values: Sequence[Collection[int]] = list(allowed.values())
    return all(n in v for key in keys for n, v in zip(key, values, strict=True))
