"""The names of a model while it is imported, and what all its graphs share and count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from tilewright.base import flags, limits
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import (
    MemoryLimitError,
    ModelError,
)
from tilewright.base.names import fresh
from tilewright.frontends.onnx.external import ExternalData
from tilewright.frontends.onnx.initializers import Data
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.frontends.onnx.unsupported import Unsupported
from tilewright.graph.infer import Typer
from tilewright.graph.nodes import Value

FunctionKey = tuple[str, str, str]  # domain, name, overload


@dataclass
class ModelContext:
    """Data shared by a whole model.

    opsets: domain -> version. local: the model's functions. limit: bytes of memory. standard:
    whether operators stay unchanged. data: what the main graph's initializers lack. mapped: whether
    weights stay in their files. shapes: said of results that are declared otherwise.
    """

    opsets: Mapping[str, int]
    local: Mapping[FunctionKey, Any]
    external: ExternalData
    limit: int
    standard: bool = False
    mapped: bool = field(default=False, kw_only=True)
    data: Data = field(default_factory=dict)
    unsupported: Unsupported = field(default_factory=Unsupported)
    fallback: OnnxFallback = field(default_factory=OnnxFallback)
    names: set[str] = field(default_factory=set)
    shapes: list[str] = field(default_factory=list)
    node_limit: int = field(default_factory=flags.NODE_LIMIT.get)
    depth_limit: int = field(default_factory=flags.DEPTH_LIMIT.get)
    nodes: int = 0
    constant_bytes: int = 0

    def count_constant(self, array: Any, where: str) -> None:
        """Raise MemoryLimitError if all initializers together exceed the limit.

        Each may be small in the file, if it is sparse or shares its bytes with others.
        """
        self.constant_bytes += array.nbytes
        if self.constant_bytes > self.limit:
            raise MemoryLimitError(
                f"the initializers up to here take {self.constant_bytes:,} bytes, over the memory "
                f"limit of {self.limit:,} bytes",
                where=where,
                hint=limits.MORE_MEMORY,
            )

    def count_nodes(self, more: int) -> None:
        """Raise ModelError if the nodes, including those of inlined functions, exceed the limit.

        Without it a file of a kilobyte could expand to 2^40 nodes, by functions that call one
        another twice.
        """
        self.nodes += more
        if self.nodes > self.node_limit:
            raise ModelError(
                f"more than {self.node_limit:,} nodes, with functions inlined",
                code="TW-NODES",
                hint=f"Raise {flags.NODE_LIMIT.name} if the model is intended to be that large",
            )

    def fresh(self, name: str) -> str:
        """`name`, with a number appended if it is already in use."""
        return fresh(self.names, name)


class NameScope:
    """The names visible at one place: in a graph, a subgraph, or a function body.

    prefix: of the names of values and nodes made here. opsets: of this function or model.
    attributes: of the call that is replaced by a function body. inlined: the functions that contain
    this place. subgraph: reads fall through to `outer`.
    """

    def __init__(
        self,
        context: ModelContext,
        typer: Typer,
        *,
        prefix: str = "",
        opsets: Mapping[str, int] | None = None,
        attributes: Mapping[str, Any] | None = None,
        outer: NameScope | None = None,
        depth: int = 0,
        inlined: frozenset[FunctionKey] = frozenset(),
    ) -> None:
        self.context = context
        self.typer = typer
        self.prefix = prefix
        self.opsets = context.opsets if opsets is None else opsets
        self.attributes = attributes
        self.outer = outer
        self.depth = depth
        self.inlined = inlined
        self.values: dict[str, Value | None] = {}
        if depth > context.depth_limit:
            raise ModelError(
                f"functions and subgraphs are nested more than {context.depth_limit} deep",
                code="TW-DEPTH",
                where=f"{prefix[:40]}...",
                hint="A recursive function cannot be inlined; if the nesting is intended, "
                f"raise {flags.DEPTH_LIMIT.name}",
            )

    def sees(self, name: str) -> bool:
        """Whether the name is defined here or in an enclosing scope."""
        return name in self.values or (self.outer is not None and self.outer.sees(name))

    def get(self, name: str, where: str) -> Value | None:
        """The value of that name; None for the empty name. Raises ModelError if it is undefined."""
        if not name:
            return None
        if name in self.values:
            return self.values[name]
        if self.outer is not None:
            return self.outer.get(name, where)
        raise ModelError(f"reads {name!r}, which nothing defines", where=where)

    def define(self, name: str, value: Value | None, where: str) -> None:
        """Bind a name. Raises ModelError if it is already defined."""
        if name in self.values:
            raise ModelError(f"defines {name!r}, which is already defined", where=where)
        self.values[name] = value

    def fresh(self, name: str) -> str:
        """A name that is unique in the whole model."""
        return self.context.fresh(f"{self.prefix}{name}")
