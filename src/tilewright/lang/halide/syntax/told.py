"""What a Func tells of its definitions: their arguments, values and reduction variables."""

from __future__ import annotations

from tilewright.base.errors import InputError
from tilewright.lang.halide.syntax.definition import Definition
from tilewright.lang.halide.syntax.domain import RVar
from tilewright.lang.halide.syntax.expr import Expr


class DefinitionQueries:
    """The questions that Halide has about a Func's definitions; updates are counted from 0."""

    definitions: list[Definition]

    def value(self) -> Expr:
        """The (first) value of the pure definition."""
        return self.values()[0]

    def values(self) -> tuple[Expr, ...]:
        """The values of the pure definition."""
        return self._values(0)

    def update_value(self, idx: int = 0) -> Expr:
        """The (first) value of an update; for a reduction step, the value that it combines with."""
        return self.update_values(idx)[0]

    def update_values(self, idx: int = 0) -> tuple[Expr, ...]:
        """The values of an update."""
        return self._values(idx + 1)

    def update_args(self, idx: int = 0) -> list[Expr]:
        """Where an update writes, x first."""
        return [Expr(a) for a in reversed(self._definition(idx + 1).args)]

    def rvars(self, idx: int = 0) -> list[RVar]:
        """The reduction variables of an update, the innermost first."""
        domain = self._definition(idx + 1).domain
        return [] if domain is None else list(domain.vars)

    def is_extern(self) -> bool:
        """Whether a foreign function computes it: no."""
        return False

    def _values(self, n: int) -> tuple[Expr, ...]:
        return tuple(Expr(v) for v in self._definition(n).values)

    def _definition(self, n: int) -> Definition:
        if not 0 <= n < len(self.definitions):
            raise InputError(
                f"there is no definition {n}",
                hint=f"it has {len(self.definitions)}: the pure one, then the updates",
            )
        return self.definitions[n]
