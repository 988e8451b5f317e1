"""Building a task graph: nodes by name, edges in any order, checked at the end."""

from __future__ import annotations

from tilewright.base.errors import InputError
from tilewright.base.names import untaken
from tilewright.base.numbers import whole
from tilewright.dataflow.graph import Edge, Node, Role, TaskGraph, Volume


class TaskGraphBuilder:
    """Collects nodes and edges; `build(volume)` checks them and returns the TaskGraph."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._nodes: list[Node] = []
        self._edges: list[Edge] = []
        self._index: dict[str, int] = {}

    def add(
        self, name: str, role: Role = Role.COMPUTE, origin: str = "", *, count: int = 1
    ) -> str:
        """Add a node of `count` equal tasks; returns its name, for `connect`.

        Raises InputError for a duplicate name.
        """
        if name in self._index:
            raise InputError(
                f"two nodes are named {name}", where=f"task graph {self.name}"
            )
        self._index[name] = len(self._nodes)
        self._nodes.append(Node(name, role, origin, _plain(count)))
        return name

    def fresh(self, name: str) -> str:
        """`name`, with a number appended if it is taken."""
        return untaken(self._index, name, ":")

    def source(self, name: str) -> str:
        """Add outside memory that is read."""
        return self.add(name, Role.SOURCE)

    def sink(self, name: str) -> str:
        """Add outside memory that is written."""
        return self.add(name, Role.SINK)

    def buffer(self, name: str, origin: str = "") -> str:
        """Add a store between two phases: no processing element, no time, no output stream."""
        return self.add(name, Role.BUFFER, origin)

    def connect(
        self,
        source: str,
        target: str,
        part: int,
        *,
        array: int | None = None,
        unique: int | None = None,
    ) -> None:
        """Add an edge that moves `part` elements, `unique` different ones (default: all), of an
        array of `array` elements (default: the part). Raises InputError for an unknown node;
        `build` checks the numbers."""
        for name in (source, target):
            if name not in self._index:
                raise InputError(
                    f"the edge {source} -> {target} names the unknown node {name}",
                    where=f"task graph {self.name}",
                    hint="add the node first",
                )
        numbers = (
            part,
            part if array is None else array,
            part if unique is None else unique,
        )
        self._edges.append(
            Edge(self._index[source], self._index[target], *map(_plain, numbers))
        )

    def build(self, volume: Volume | str) -> TaskGraph:
        """Build and check the graph under a reading of its volumes. Raises as TaskGraph does."""
        return TaskGraph(self.name, self._nodes, self._edges, volume)


def _plain(number: int) -> int:
    """Convert integers of NumPy to Python's; other values are left for TaskGraph to reject."""
    found = whole(number)
    return number if found is None else found
