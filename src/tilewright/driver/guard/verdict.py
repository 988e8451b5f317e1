"""The result of validating one kernel."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tilewright.base.errors import ExecutionError


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong.

    what: value, unwritten, untouched, input, repeat, status, fault or error. run: how the kernel
    was run. tensor, index, expected, found: where that is known.
    """

    what: str
    run: str
    text: str
    tensor: str | None = None
    index: tuple[int, ...] | None = None
    expected: str | None = None
    found: str | None = None

    def __str__(self) -> str:
        return f"{self.text} ({self.run})"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A kernel, what it was run on, and what was found.

    kind: of its Computations, as the sketches have it ("kernel": a loop program of its own).
    extents: types of its results. compared: elements whose values were judged, of `total`. error,
    bound: the largest difference, by its share of what rounding explains there. note: what was
    not checked, and why.
    """

    kernel: str
    kind: str
    extents: str
    compared: int = 0
    total: int = 0
    error: float = 0.0
    bound: float = 0.0
    faults: tuple[Fault, ...] = ()
    note: str = ""

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return not self.faults

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        return {**asdict(self), "ok": self.ok}

    def __str__(self) -> str:
        said = "; ".join(map(str, self.faults[:3])) or "ok"
        return f"kernel {self.kernel} ({self.kind}, {self.extents}): {said}"

    def require(self) -> None:
        """Raise ExecutionError (TW-CHECK) if something is wrong."""
        if self.faults:
            raise ExecutionError(
                str(self.faults[0]),
                code="TW-CHECK",
                where=f"kernel {self.kernel}",
                hint="The compiler generated wrong code: report it, with the model; until then "
                "compile with another --math or --threads",
            )
