"""The origin of a function that can be scheduled in other ways, and its tuning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.base.dataclass import dataclass
from tilewright.driver.schedulable import Schedulable

if TYPE_CHECKING:
    from tilewright.lang.function import Function
    from tilewright.runtime.executable import Executable


@dataclass(frozen=True, eq=False)
class ProgramOrigin:
    """A program, and what builds it again: with the records of a file, or (False) without any."""

    program: Schedulable
    build: Callable[[Any], Function]

    def tuned(self, inputs: Sequence[Any], settings: Mapping[str, Any]) -> Function:
        """The function with the best schedule; see `Program.tune`."""
        from tilewright.driver.program_tuning import tune_program

        found = tune_program(self.program, self._executable, inputs, **settings)
        return self.build(found.records).having(found)

    def _executable(self, records: Path | None) -> Executable:
        return self.build(False if records is None else records).executable  # type: ignore[return-value]
