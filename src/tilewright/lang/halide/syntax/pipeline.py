"""Pipeline: the Funcs that an output needs, in order, and the required region of each.

Bounds inference goes from outputs to inputs: the required region of a Func covers all reads by its
consumers, over all their coordinates (as intervals; the condition of a select is used in its arms).
Sizes are numbers, or symbolic sizes of a call: then the ends of regions are expressions of them
(`ends.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.base.names import fresh
from tilewright.expr import nodes
from tilewright.expr.bounds import bounds, refine
from tilewright.expr.nodes import INDEX, Extent, fixed
from tilewright.expr.reads import reads
from tilewright.ir.node import postorder
from tilewright.lang.halide.syntax.definition import Definition
from tilewright.lang.halide.syntax.domain import domain_of
from tilewright.lang.halide.syntax.ends import ends, known, least, most, same, tidy
from tilewright.lang.halide.syntax.expr import (
    constant,
)
from tilewright.lang.halide.syntax.func import Func
from tilewright.lang.halide.syntax.image import Image, Symbol, last_coordinate
from tilewright.lang.halide.syntax.ranges import with_values

# (min, extent) per dimension, in NumPy's order.
Box = tuple[tuple[Extent, Extent], ...]
Region = list[list[Extent]]
Ranges = dict[Any, Any]

# A region larger than this is known by its dtype only (a UInt(16) as an index is still a bound).
_FARTHEST = (1 << 31) - 1


@dataclass(frozen=True, eq=False, slots=True)
class Pipeline:
    """funcs: producers first; boxes: the region of each Func and image; names: unique ones.

    images: the inputs, which may be Funcs that are computed before.
    """

    outputs: tuple[Func, ...]
    funcs: tuple[Func, ...]
    images: tuple[Any, ...]
    boxes: dict[Any, Box]
    names: dict[Any, str]


def pipeline(outputs: Sequence[Func], sizes: Sequence[Sequence[Any]]) -> Pipeline:
    """What computes `outputs`, each of a size: x first, an extent or a (min, extent) each.

    Raises InputError where a region has no bounds, or leaves an image or a promise.
    """
    funcs, images = ordered(outputs)
    asked = {f: _asked(f, size) for f, size in zip(outputs, sizes, strict=True)}
    needed: dict[Any, Region] = {f: [list(r) for r in asked[f]] for f in asked}
    for f in reversed(funcs):
        if f in needed:
            _infer(f, needed)
    for f, region in asked.items():
        pairs = zip(chain(*needed[f]), chain(*region), strict=True)
        if not all(same(a, b) for a, b in pairs):
            raise InputError(
                f"it is needed over {_shown(needed[f])}, but only {_shown(region)} is realized",
                where=f"Func {f.name()}",
                hint="realize that size, keep its RDoms inside, or bound it",
            )
    boxes: dict[Any, Box] = {f: _box(needed[f]) for f in funcs}
    boxes |= {image: _image_box(image, needed.get(image, [])) for image in images}
    return Pipeline(tuple(outputs), funcs, images, boxes, _names([*images, *funcs]))


def _asked(f: Func, size: Sequence[Any]) -> Region:
    """The (first, last) of each dimension to realize, in NumPy's order."""
    if len(size) != f.dimensions():
        raise InputError(
            f"it has {f.dimensions()} dimensions, and {len(size)} sizes are given",
            where=f"Func {f.name()}",
        )
    pairs = [n if isinstance(n, tuple | list) and len(n) == 2 else (0, n) for n in size]
    box = [(constant(low), _extent(extent)) for low, extent in reversed(pairs)]
    if any(isinstance(extent, int) and extent < 0 for _, extent in box):
        raise InputError(f"a size of {list(size)}", hint="extents are not negative")
    for n, promised in f.output_promises.items():
        found = box[-1 - n]
        if any(p not in (None, b) for p, b in zip(promised, found, strict=True)):
            raise InputError(
                f"dimension {n} is realized over (min, extent) {found}, not as promised",
                where=f"Func {f.name()}",
                hint=f"output_buffer().dim({n}) was set to {promised}",
            )
    return [[low, tidy(low + extent - 1)] for low, extent in box]


def _extent(given: Any) -> Extent:
    return given if isinstance(given, nodes.Var) else constant(given)


def open_size(f: Func) -> list[nodes.Var]:
    """Extents of a Func that are known at the call, x first."""
    name = f.name()
    return [nodes.Var(f"{name}.extent.{n}", INDEX) for n in range(f.dimensions())]


def _box(region: Region) -> Box:
    return tuple((lo, tidy(hi - lo + 1)) for lo, hi in region)


def _names(owners: Sequence[Any]) -> dict[Any, str]:
    taken: set[str] = set()
    return {owner: fresh(taken, owner.name()) for owner in owners}


def ordered(
    outputs: Sequence[Func], given: Collection[Func] = ()
) -> tuple[tuple[Func, ...], tuple[Any, ...]]:
    """All Funcs, producers first, and all images, in order of first use.

    given: Funcs that are inputs, as images are; nothing after them counts.
    """
    done: dict[Any, None] = {}
    stack: list[tuple[Any, bool]] = [(f, False) for f in reversed(outputs)]
    while stack:
        owner, ready = stack.pop()
        if owner in done:
            continue
        if ready or isinstance(owner, Image) or owner in given:
            done[owner] = None
            continue
        if not owner.defined():
            raise InputError("it is not defined", where=f"Func {owner.name()}")
        stack.append((owner, True))
        read = [s for d in owner.definitions for s in d.symbols()]
        read += (s for c in owner.conditions() for s in _params(c.node))
        used = dict.fromkeys(s.owner for s in read)
        stack += [
            (o, False) for o in reversed(used) if o is not owner and o not in done
        ]
    funcs = tuple(o for o in done if isinstance(o, Func) and o not in given)
    return funcs, tuple(o for o in done if isinstance(o, Image) or o in given)


def _params(condition: nodes.Expr) -> Iterator[Symbol]:
    """The Params that a condition depends on; sizes, which belong to Funcs, are known."""
    for node in postorder(condition):
        if isinstance(node, nodes.Load) and isinstance(node.buffer, Symbol):
            if isinstance(node.buffer.owner, Image):
                yield node.buffer


def _infer(f: Func, needed: dict[Any, Region]) -> None:
    """Complete the region of `f`, then add what it reads to the regions of others."""
    region = needed[f]
    for _ in range(len(f.definitions) + 1):
        before = [list(r) for r in region]
        for definition in f.definitions[1:]:
            for load, env in _touched(f, definition, region):
                if load.buffer in f.symbols:
                    _extend(region, load, env, f)
        if region == before:
            break
    for d, (var, r) in enumerate(zip(reversed(f.args), region, strict=True)):
        if var.name() in f.aligned:
            region[d] = _blocks(f, r, *f.aligned[var.name()])
        if var.name() in f.promised:
            first, extent = f.promised[var.name()]
            if first is None and not f.is_whole:
                continue  # a promise about each part: see `placing`
            low = r[0] if first is None else first
            outside = (tidy(low - r[0]), tidy(r[1] - (low + extent - 1)))
            if any((past := known(n)[1]) is None or past > 0 for n in outside):
                raise InputError(
                    f"{var.name()} is needed over {r[0]}..{r[1]}, which leaves the bound "
                    f"{low}..{low + extent - 1}",
                    where=f"Func {f.name()}",
                )
            region[d] = [low, low + extent - 1]
    for definition in f.definitions:
        for load, env in _touched(f, definition, region):
            owner = load.buffer.owner if isinstance(load.buffer, Symbol) else None
            if owner is not None and owner is not f:
                _extend(needed.setdefault(owner, []), load, env, f)


def _blocks(
    f: Func, region: Sequence[Extent], size: int, remainder: int | None
) -> list[Extent]:
    """Whole blocks around a (first, last): they begin at `remainder` modulo `size`, or at first."""
    first, last = (fixed(end, f"align_bounds of {f.name()}") for end in region)
    if remainder is not None:
        first -= (first - remainder) % size
    return [first, first + -(-(last + 1 - first) // size) * size - 1]


def environment(
    f: Func, definition: Definition, region: Sequence[Sequence[Extent]]
) -> Ranges:
    """The range of each coordinate of a definition, `region` having (first, last) each."""
    env: Ranges = {}
    for v in dict.fromkeys(n for root in definition.roots for n in postorder(root)):
        end = last_coordinate(v) if isinstance(v, nodes.Var) else None
        if end is not None:
            env[v] = (tidy(end), tidy(end))
    for arg, var, (lo, hi) in zip(
        definition.args, reversed(f.args), region, strict=True
    ):
        if arg is var.node:
            env[arg] = (lo, hi)
    if definition.domain is not None:
        for r in definition.domain.vars:
            env[r.node] = (r.min, r.min + r.extent - 1)
        for condition in definition.domain.conditions:
            env = _refined(env, condition.node)
    return env


def _refined(env: Ranges, condition: nodes.Expr, holds: bool = True) -> Ranges:
    """What a condition says as well; nothing where ends are expressions of sizes."""
    return env if _is_open(env) else refine(env, condition, holds)


def _is_open(env: Ranges) -> bool:
    """Whether an end is an expression of sizes."""
    return any(isinstance(end, nodes.Expr) for pair in env.values() for end in pair)


def _touched(
    f: Func, definition: Definition, region: Sequence[Sequence[Extent]]
) -> Iterator[tuple[nodes.Load, Ranges]]:
    """Every element that a definition reads or writes, with the known ranges of coordinates
    there."""
    env = environment(f, definition, region)
    for root in definition.roots:
        for node in postorder(root):
            if isinstance(node, nodes.Var) and node not in env:
                kind = (
                    "of an RDom"
                    if domain_of(node) is not None
                    else "no argument on the left"
                )
                raise InputError(
                    f"{node.name} is {kind} here", where=f"Func {f.name()}"
                )
        if _is_open(env):
            loads = (n for n in postorder(root) if isinstance(n, nodes.Load))
            yield from ((load, env) for load in loads)
            continue
        for read in reads((root,), env):
            yield read.load, read.ranges
    if definition is not f.definitions[0]:
        for args, _ in definition.stores:
            yield nodes.Load(f.symbols[0], args), env


def _extend(
    region: Region,
    load: nodes.Load,
    env: Ranges,
    f: Func,
) -> None:
    is_open = _is_open(env)
    found: Region = []
    for d, i in enumerate(load.index):
        lo, hi = ends(i, env) if is_open else bounds(i, with_values(i, env))
        far = isinstance(lo, int) and isinstance(hi, int) and hi - lo > _FARTHEST
        if lo is None or hi is None or far:
            raise InputError(
                f"{load.buffer.name} is read at {i!r} in dimension {len(load.index) - 1 - d}, "
                "which has no bounds",
                where=f"Func {f.name()}",
                hint="clamp the index",
            )
        found.append([lo, hi])
    if any(isinstance(n := tidy(lo - hi), int) and n > 0 for lo, hi in found):
        return  # a place that is never reached
    if not region:
        region += found
        return
    for r, (lo, hi) in zip(region, found, strict=True):
        r[0], r[1] = least(r[0], lo), most(r[1], hi)


def _shown(region: Region) -> str:
    return "[" + ", ".join(f"{lo}..{hi}" for lo, hi in reversed(region)) + "]"


def _image_box(image: Image, region: Region) -> Box:
    """The bounds of an image: its own, or else the region that is read."""
    rank = image.dimensions()
    promised = [image.bounds[rank - 1 - d] for d in range(rank)]
    box: list[tuple[Extent, Extent]] = []
    for d, (bound, (lo, hi)) in enumerate(zip(promised, region, strict=True)):
        last_here = image.opened(rank - 1 - d)
        if bound is None and last_here is not None:
            low_end = known(lo)[0]
            beyond = known(tidy(hi - last_here))[1]
            if low_end is None or beyond is None or low_end < 0 or beyond > 0:
                raise InputError(
                    f"dimension {rank - 1 - d} is read at {lo}..{hi}, but has 0..{last_here!r}",
                    where=f"image {image.name()}",
                    hint="use BoundaryConditions, or clamp the index",
                )
            box.append((0, tidy(last_here + 1)))
            continue
        if bound is None:
            box.append((lo, tidy(hi - lo + 1)))
            continue
        low, extent = bound
        first = known(lo)[0]
        last = known(hi)[1]
        if first is None or last is None or first < low or last >= low + extent:
            has = f"{low}..{low + extent - 1}"
            raise InputError(
                f"dimension {rank - 1 - d} is read at {lo}..{hi}, but has {has}",
                where=f"image {image.name()}",
                hint="use BoundaryConditions, clamp the index, or set_min",
            )
        box.append((low, extent))
    return tuple(box)
