"""Computation: the only form in which arithmetic enters the compiler.

    Computation = out_view . md_hom(f, (op1..opD)) . inp_view

It is stored as dimensions (variable, extent, combine operator), one value expression per output
with `Load`s of the input tensors in it, and one index map per output. `inp_view` (the accesses) and
`f` (the scalar function of the accesses) are the two halves of the value expression; they are read
off it by the properties of those names. A guard (padding) is a `Select` around a `Load`; a checked
read is an index with a `Load` in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from tilewright.base.dataclass import dataclass
from tilewright.compute.reducer import Reducer
from tilewright.expr.nodes import Buffer, Expr, Extent, Load, Var, fixed
from tilewright.ir.node import Node, postorder, substitute, unseen

CC, PW, PS = "cc", "pw", "ps"


@dataclass(frozen=True, eq=False, slots=True)
class Dim:
    """Iterates `0 .. size-1`; `combine` is cc (parallel), pw (reduce) or ps (scan).

    size: a number, or an expression of sizes if it is known only at run time.
    """

    var: Var
    size: Extent
    combine: str = CC

    @property
    def extent(self) -> int:
        """The size as a number. Raises UnsupportedError where a call decides it."""
        return fixed(self.size, f"dimension {self.var.name}")

    @property
    def static(self) -> bool:
        """Whether the size is a number."""
        return isinstance(self.size, int)


def sizes_of(extents: Iterable[Extent]) -> tuple[Var, ...]:
    """The sizes that occur in extents, in order of first use."""
    found: dict[Var, None] = {}
    for e in extents:
        if not isinstance(e, int):
            found |= {n: None for n in postorder(e) if isinstance(n, Var)}
    return tuple(found)


@dataclass(frozen=True, eq=False, slots=True)
class Output:
    """One result: `tensor[index] = value`; `index` is over the cc and ps dimensions."""

    tensor: Buffer
    index: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Computation:
    """`for all dims: outputs[index] (op)= value`. Raises VerifyError in `check()` if ill formed.

    dims: in iteration order. outputs: one per component of the reducer where there is one.
    reducer: the operator of all `pw` and `ps` dimensions; its dtypes are the accumulators'.
    """

    name: str
    dims: tuple[Dim, ...]
    outputs: tuple[Output, ...]
    reducer: Reducer | None = None
    tags: dict[str, object] = field(default_factory=dict)
    _accesses: list[tuple[Load, ...]] = field(
        default_factory=list, init=False, repr=False
    )

    @property
    def parallel_dims(self) -> tuple[Dim, ...]:
        """The dimensions that are cc."""
        return tuple(d for d in self.dims if d.combine == CC)

    @property
    def combined_dims(self) -> tuple[Dim, ...]:
        """The dimensions along which values are combined: those that are not cc."""
        return tuple(d for d in self.dims if d.combine != CC)

    @property
    def kept_dims(self) -> tuple[Dim, ...]:
        """The dimensions that results have: those that are not reduced (pw)."""
        return tuple(d for d in self.dims if d.combine != PW)

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        """The tensors read, each once, in order of first use."""
        return tuple(dict.fromkeys(load.buffer for load in self.accesses))

    @property
    def accesses(self) -> tuple[Load, ...]:
        """inp_view: the distinct accesses, in order of first use (indices' own reads included)."""
        if not self._accesses:
            seen: set[Node] = set()
            found: list[Load] = []
            for output in self.outputs:
                for root in (output.value, *output.index):
                    if root not in seen:  # most indices are those of the output before
                        loads = (n for n in unseen(root, seen) if isinstance(n, Load))
                        found += loads
            self._accesses.append(tuple(found))
        return self._accesses[0]

    @property
    def function(self) -> tuple[tuple[Var, ...], tuple[Expr, ...]]:
        """f: one argument per access, and the value of each output over those arguments."""
        accesses = self.accesses
        args = tuple(Var(f"x{n}", a.dtype) for n, a in enumerate(accesses))
        env: dict[object, object] = dict(zip(accesses, args, strict=True))
        values = tuple(substitute(o.value, env) for o in self.outputs)
        return args, values

    @property
    def is_map(self) -> bool:
        """Whether every dimension is cc."""
        return all(d.combine == CC for d in self.dims)

    @property
    def sizes(self) -> tuple[Var, ...]:
        """The sizes of dimensions and tensors known only at run time, in order of first use."""
        tensors = (*(o.tensor for o in self.outputs), *self.inputs)
        extents = [d.size for d in self.dims] + [e for b in tensors for e in b.extents]
        return sizes_of(extents)

    @property
    def free(self) -> tuple[Var, ...]:
        """Variables in values and indices that are not dimensions, such as a size used as a
        divisor."""
        dims = {d.var for d in self.dims}
        found: list[Var] = []
        for o in self.outputs:
            used = sizes_of((*o.index, o.value))
            found += [v for v in used if v not in dims]
        return tuple(dict.fromkeys(found))

    def __repr__(self) -> str:
        from tilewright.compute.printer import show

        return show(self)
