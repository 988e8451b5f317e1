"""The loop IR: a Kernel is a loop program over buffers in named memory scopes.

    Kernel = Kernel(name, params, outputs, body, notes)      body: in the loops of the sizes
    Stmt   = For(var, extent, kind, body)        kind: one of KINDS
           | Block(stmts)
           | Store(buffer, index, value)
           | Update(buffers, indices, values, reducer)  buffers[indices] (op)= values
           | If(condition, then, otherwise)
           | While(condition, body)
           | Alloc(buffer, body)
           | Unit(name, intrinsic, operands, body)      body, done as one piece

Meaning: the statements run in order, as the interpreter in `loops/interp.py` runs them. A loop's
`kind` never changes the result. The iterations of an unrolled loop are written out, in order; other
kinds promise that they may run together (on threads, in vector lanes; on an axis of a GPU's grid or
block; as virtual threads, interleaved).

A size known only at run time is an outermost loop of the kind `size`, of which a call runs one
iteration, the one that the shapes of its arrays say. Extents of loops and buffers are expressions
of these variables, and what is proven of all iterations is proven of every size.

Invariants (checked by `loops/verify.py`): every loop variable's name is unique in its kernel, so a
name is a stable reference to a loop through every rewrite; every variable used is bound; indices
are int64 and, where they are affine, inside the buffer; an `Overlap` is a start of a tile
(`loops/analysis/overlap.py`); a buffer is a parameter or allocated around its uses; loops whose
kind is not one of IN_ORDER carry no dependence except through `Update`; no axis of a GPU is bound
again inside a loop bound to it; sizes are around all else, and extents of buffers depend on nothing
but sizes; notes name loops.

Statements have no identity of their own and are not interned: a place in a program is named by its
loops and buffers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field

from tilewright.base.dataclass import dataclass
from tilewright.compute.reducer import Reducer
from tilewright.expr.nodes import INDEX, MAX_SIZE, Buffer, Const, Expr, Extent, Var
from tilewright.ir.node import Node
from tilewright.loops.intrinsic import Instance

# The axes of a GPU's grid and of a block of it.
GPU_AXES = tuple(
    f"{level}.{axis}" for level in ("blockIdx", "threadIdx") for axis in "xyz"
)
# What a loop can be bound to.
AXES = (*GPU_AXES, "vthread")
# The kind of a loop over the values of a size.
SIZE = "size"
# The kind of a loop of a launch that copies into shared memory, where its elements arrive later.
# Noted at a vector loop of a kernel: it may be one (`loops/passes/async_copies.py`).
ASYNC = "async"
# The same, of a nest that one instruction copies (`loops/passes/bulk_copies.py`).
BULK = "bulk"
# The same, of what all blocks of a cluster copy: each a part, into the memory of all of them.
MULTICAST = "multicast"
COPY_KINDS = (ASYNC, BULK, MULTICAST)  # of what arrives later
KINDS = ("serial", "parallel", "vector", "unroll", *AXES, SIZE, *COPY_KINDS)
# The kinds whose iterations do not run together.
IN_ORDER = ("serial", "unroll", SIZE)

# By the name of a loop: its annotations (key to number or text).
Notes = Mapping[str, Mapping[str, object]]
# Noted at a vector loop: how many bytes ahead of its loads memory is prefetched into the cache.
PREFETCH = "prefetch"
# Noted at a loop: it stays in one part, whatever is decided in most of its iterations.
WHOLE = "whole"
# Noted at a loop: which results, by name and separated by commas, are stored past the caches in it.
STREAM = "stream"
# Noted at a loop over blocks: so many neighbors on its axis run together, as a cluster
# (`loops/passes/clusters.py`).
CLUSTER = "cluster"
# Noted at a loop over blocks: their updates of one element of the device's memory are atomic
# (`loops/passes/atomics.py`).
ATOMICS = "atomics"
# Noted at a loop that may run on several threads, by who gives a kernel unchanged: the steps of all
# its iterations together, or the multiply-adds of a product that is too deep in loops to be tiled.
STEPS, PRODUCTS = "steps", "products"


class Stmt(Node, intern=False):
    """A statement of the loop IR."""

    def __repr__(self) -> str:
        from tilewright.loops.printer import show

        return show(self)


class For(Stmt):
    """`for var in range(extent): body`; `kind` says how the iterations may be run."""

    var: Var
    extent: Expr
    kind: str
    body: Stmt

    def _derive(self) -> int | None:
        extent = self.extent
        return int(extent.value.real) if isinstance(extent, Const) else None

    @property
    def trips(self) -> int | None:
        """The number of iterations where it is a constant."""
        found: int | None = self.derived  # type: ignore[attr-defined]
        return found

    @property
    def count(self) -> Extent:
        """The number of iterations as it would be the extent of a buffer."""
        return self.extent if self.trips is None else self.trips

    @property
    def together(self) -> bool:
        """Whether its iterations may run concurrently, in the way that the kind specifies."""
        return self.kind not in IN_ORDER


class Block(Stmt):
    """Statements in order; an empty block does nothing."""

    stmts: tuple[Stmt, ...]


class Store(Stmt):
    """`buffer[index] = value`."""

    buffer: Buffer
    index: tuple[Expr, ...]
    value: Expr


class Update(Stmt):
    """`buffers[indices] = reducer(buffers[indices], values)`: one step of a declared reduction.

    One buffer, one index into it and one value per component of the reducer (two for argmax).
    Because the reducer is associative (and says whether it commutes), iterations that conflict
    only here may be reordered.
    """

    buffers: tuple[Buffer, ...]
    indices: tuple[tuple[Expr, ...], ...]
    values: tuple[Expr, ...]
    reducer: Reducer

    def _derive(self) -> object:
        if not all(isinstance(i, tuple) for i in self.indices):
            raise TypeError("an Update has one index, a tuple, for each of its buffers")
        return None

    @property
    def targets(self) -> Iterator[tuple[Buffer, tuple[Expr, ...]]]:
        """Each buffer with the index of the element that is changed."""
        return zip(self.buffers, self.indices, strict=True)


class If(Stmt):
    """`if condition: then else: otherwise`."""

    condition: Expr
    then: Stmt
    otherwise: Stmt | None


class While(Stmt):
    """`while condition: body`; for kernels that are not a homomorphism."""

    condition: Expr
    body: Stmt


class Alloc(Stmt):
    """`buffer` exists, with undefined contents, during `body`."""

    buffer: Buffer
    body: Stmt


class Operand(Node):
    """A tensor of a Unit: where its first element is, and the distances of neighbors.

    strides: in elements of the buffer, one per axis of the tensor as the intrinsic describes it.
    """

    buffer: Buffer
    index: tuple[Expr, ...]
    strides: tuple[int, ...]


class Unit(Stmt):
    """`body`, executed as one unit: no schedule primitive reaches into it.

    `body` defines the meaning. intrinsic: the part of a tensor intrinsic that implements it (None:
    a block that is only kept together). operands: its tensors that take part, inputs first, as
    matched by `loops/match.py`.
    """

    name: str
    intrinsic: Instance | None
    operands: tuple[Operand, ...]
    body: Stmt

    @property
    def threads(self) -> int:
        """How many threads of a warp do it together; 1: each for itself."""
        return 1 if self.intrinsic is None else self.intrinsic.intrinsic.threads

    def operand(self, tensor: int) -> Operand:
        """The operand of a tensor of the intrinsic, by its number there."""
        assert self.intrinsic is not None
        return self.operands[self.intrinsic.tensors.index(tensor)]


@dataclass(frozen=True, eq=False, slots=True)
class Kernel:
    """A loop program.

    params: every buffer of the caller, inputs first, then outputs; outputs: the ones written.
    body: the program. name: a C identifier, unique in a model. notes: annotations of loops, for
    what reads the kernel later (a target, a tuner); they mean nothing to the program.
    """

    name: str
    params: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    body: Stmt
    notes: Notes = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        """The parameters that are only read."""
        return tuple(b for b in self.params if b not in self.outputs)

    @property
    def sizes(self) -> tuple[Var, ...]:
        """The sizes known only at run time: the variables of the loops over sizes."""
        found: list[Var] = []
        s = self.body
        while isinstance(s, For) and s.kind == SIZE:
            found.append(s.var)
            s = s.body
        return tuple(found)

    def with_body(self, body: Stmt) -> Kernel:
        """The same interface and notes around another program."""
        return Kernel(self.name, self.params, self.outputs, body, self.notes)

    def __repr__(self) -> str:
        from tilewright.loops.printer import show_kernel

        return show_kernel(self)


def loop(
    var: Var,
    extent: int | Expr,
    body: Stmt,
    kind: str = "serial",
) -> For:
    """A loop over `0 .. extent-1`."""
    return For(
        var, Const(extent, INDEX) if isinstance(extent, int) else extent, kind, body
    )


def for_sizes(sizes: Iterable[Var], body: Stmt) -> Stmt:
    """`body` for any values that a call passes for `sizes`; they are below MAX_SIZE."""
    for var in reversed(tuple(sizes)):
        body = loop(var, MAX_SIZE, body, SIZE)
    return body


def block(*stmts: Stmt) -> Stmt:
    """The statements in order, flattened; a single one stays itself."""
    flat: list[Stmt] = []
    for s in stmts:
        flat.extend(s.stmts if isinstance(s, Block) else (s,))
    if len(flat) == 1:
        return flat[0]
    return Block(tuple(flat))
