"""Recording which region of a Func is computed, and how its rows are laid out."""

from __future__ import annotations

from typing import Any, Self

from tilewright.base.errors import ScheduleError
from tilewright.lang.halide.plan import line
from tilewright.lang.halide.syntax.expr import constant
from tilewright.lang.halide.syntax.func import Func
from tilewright.lang.halide.verbs import var_name


class Storage(Func):
    """The verbs about a Func's region and memory.

    Each returns the object itself. Each raises ScheduleError for a Var that is not a dimension, and
    for a size that is not positive.
    """

    def __init__(self) -> None:
        self.padded: dict[str, tuple[int, str]] = {}
        self.limited: dict[str, tuple[int, str]] = {}

    def storage_key(self) -> tuple[Any, ...]:
        """All that these verbs have recorded, as a key."""
        tables = (self.padded, self.limited, self.promised, self.aligned)
        return tuple(tuple(t.items()) for t in tables)

    def bound(self, var: Any, min: Any, extent: Any) -> Self:
        """Compute exactly these coordinates of `var`; they must include the required ones."""
        found = constant(min), constant(extent)
        self.promised[self.dimension_name("bound", var)] = found
        return self

    def bound_extent(self, var: Any, extent: Any) -> Self:
        """Compute this many coordinates of `var`, from the first that is needed."""
        name = self.dimension_name("bound_extent", var)
        self.promised[name] = None, self._positive("bound_extent", extent)
        return self

    def align_bounds(self, var: Any, modulus: Any, remainder: Any = 0) -> Self:
        """Compute whole blocks of `modulus` coordinates that begin at `remainder` modulo it."""
        name = self.dimension_name("align_bounds", var)
        size = self._positive("align_bounds", modulus)
        self.aligned[name] = size, constant(remainder) % size
        return self

    def align_extent(self, var: Any, modulus: Any) -> Self:
        """Compute a multiple of `modulus` coordinates, from the first that is needed."""
        name = self.dimension_name("align_extent", var)
        self.aligned[name] = self._positive("align_extent", modulus), None
        return self

    def align_storage(self, var: Any, alignment: Any) -> Self:
        """Give each row along `var` room for a multiple of `alignment` elements."""
        name = self.dimension_name("align_storage", var)
        self.padded[name] = self._positive("align_storage", alignment), line()
        return self

    def bound_storage(self, var: Any, extent: Any) -> Self:
        """Keep at most this many coordinates of `var` in memory; more are an error."""
        name = self.dimension_name("bound_storage", var)
        self.limited[name] = self._positive("bound_storage", extent), line()
        return self

    def dimension_name(self, verb: str, var: Any) -> str:
        """The name of a dimension. Raises ScheduleError for another."""
        name = var_name(var)
        if name not in [v.name() for v in self.args]:
            raise ScheduleError(
                f"{verb}: there is no dimension {name}",
                where=f"{self.name()}, {line()}",
                hint=f"its dimensions: {self.dimension_names()}",
            )
        return name

    def dimension_names(self) -> str:
        """Its dimensions, as an error says them."""
        return ", ".join(v.name() for v in self.args) or "(none)"

    def _positive(self, verb: str, value: Any) -> int:
        size = constant(value)
        if size < 1:
            raise ScheduleError(
                f"{verb}: {size} is not positive", where=f"{self.name()}, {line()}"
            )
        return size
