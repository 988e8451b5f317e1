"""The result of validating one kernel."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ExecutionError


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a kernel.

    what: value, unwritten, untouched, input, repeat, status, fault or error. run: how the kernel
    was run. tensor, index, expected, found: None if unknown.
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
    """A kernel and the result of its validation.

    kind: the sketch or the kernel pattern of its Computations ("kernel" for a given loop program).
    extents: the types of its results. compared: the elements whose values were judged, of `total`.
    error, bound: the difference that is largest relative to its rounding bound, and that bound.
    note: what was not checked, and why.
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
        """Whether no fault was found."""
        return not self.faults

    def to_dict(self) -> dict[str, Any]:
        """As a dictionary, for JSON."""
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
                hint="The compiler generated wrong code: report it, with the model; until it "
                "is fixed, compile with another --math or --threads",
            )
