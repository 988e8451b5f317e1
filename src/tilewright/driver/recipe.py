"""A graph that is made of files: by them it is known before it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.graph.nodes import Graph


@dataclass(frozen=True, slots=True)
class ModelRecipe:
    """What `compile` takes in place of a Graph, to find the whole model in the cache.

    make: gives the graph. files: all that it reads. settings: what else the graph depends on, as
    text that is the same in every process.
    """

    make: Callable[[], Graph]
    files: tuple[Path, ...]
    settings: str
