"""Features of the configuration only: the values chosen for a kernel, and nothing of the kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tilewright.loops.nodes import Kernel
from tilewright.tune.base import Candidate
from tilewright.tune.models.programs import Rows


class Values(Protocol):
    """Converts candidates to numbers, such as `features.Flattened`."""

    @property
    def version(self) -> int: ...
    def extract(self, candidates: Sequence[Candidate]) -> Rows:
        """float32 [candidates, columns]."""
        ...


class Configuration:
    """A baseline FeatureSet: the flattened values of a kernel's candidate.

    candidate: maps a kernel to its candidate; provided by the maker of the kernels.
    """

    name = "configuration"

    def __init__(
        self, values: Values, candidate: Callable[[Kernel], Candidate]
    ) -> None:
        self._values = values
        self._candidate = candidate

    @property
    def version(self) -> int:
        """The version of the values' columns."""
        return self._values.version

    def extract(self, kernel: Kernel) -> Rows:
        """float32 [1, columns]."""
        return self._values.extract([self._candidate(kernel)])
