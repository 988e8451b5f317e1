"""The state of type inference, and the errors it raises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Literal

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.base.errors import InputError
from tilewright.expr.printer import show
from tilewright.lift import nodes as n
from tilewright.lift.lengths import Condition, decide
from tilewright.lift.types import Array, Length, Type, Vector

Types = tuple[Type, ...]


@dataclass(slots=True)
class Scope:
    """The types of the parameters in sight; conditions are gathered for the whole program.

    known: the types of terms; functions: the scopes in functions; peaks: the memory used by parts
    (`memory.resident`). They are valid for every program over these parameters, so that after a
    small change of a program only the changes are analyzed.
    """

    env: Mapping[n.Param, Type]
    conditions: dict[Condition, None] = field(default_factory=dict)
    known: dict[n.Term, Type] = field(default_factory=dict)
    functions: dict[tuple[Sequence[n.Param], Types], Scope] = field(
        default_factory=dict
    )
    peaks: dict[tuple[n.Part, Types | None, str], tuple[int, int]] = field(
        default_factory=dict
    )

    def inner(self, params: Sequence[n.Param], types: Types) -> Scope:
        """With the parameters of a function bound."""
        key = tuple(params), types
        if key not in self.functions:
            env = {**self.env, **dict(zip(params, types, strict=True))}
            self.functions[key] = Scope(env, self.conditions)
        return self.functions[key]

    def require(
        self,
        kind: Literal["divides", "at most"],
        left: Length,
        right: Length,
        pattern: str,
    ) -> None:
        """Record a condition. Raises InputError where it never holds."""
        c = Condition(kind, left, right, pattern)
        holds = decide(c)
        if holds is False:
            sign = "does not divide" if kind == "divides" else "is more than"
            raise error(pattern, f"{show(left)} {sign} {show(right)}")
        if holds is None:
            self.conditions[c] = None


def array_of(
    f: n.Fun, t: Type, expected: str = "an array", whole: Type | None = None
) -> Array:
    if not isinstance(t, Array):
        raise error(brief(f), f"expected {expected}, found {whole or t!r}")
    return t


def arrays_of(f: n.Fun, args: Types) -> list[Array]:
    if not args:
        raise error(brief(f), "expected arrays, found no argument")
    return [array_of(f, a) for a in args]


def vector_of(f: n.Fun, t: Type, width: int) -> DType:
    if not isinstance(t, Vector) or t.width != width:
        raise error(brief(f), f"expected a vector of {width}, found {t!r}")
    return t.dtype


@lru_cache(maxsize=4096)
def brief(part: n.Part) -> str:
    text = repr(part)
    return text if len(text) <= 80 else f"{text[:77]}..."


def error(pattern: str, message: str, hint: str | None = None) -> InputError:
    return InputError(message, code="TW-LIFT-TYPE", where=pattern, hint=hint)
