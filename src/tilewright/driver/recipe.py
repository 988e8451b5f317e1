"""A graph that is built from files, which identify it before it is built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.base.dataclass import dataclass

if TYPE_CHECKING:
    from tilewright.graph.nodes import Graph


@dataclass(frozen=True, slots=True)
class ModelRecipe:
    """`compile` accepts it instead of a Graph, to find the whole model in the cache.

    make: builds the graph. files: all files that it reads. settings: everything else that the graph
    depends on, as a text that is the same in every process.
    """

    make: Callable[[], Graph]
    files: tuple[Path, ...]
    settings: str
