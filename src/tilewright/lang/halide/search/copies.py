"""A pipeline as the search sees it, and its Funcs again, without directives.

The search schedules these and not the user's.
"""

from __future__ import annotations

from typing import Any

from tilewright.lang.halide.levels import Scheduled
from tilewright.lang.halide.syntax.definition import Definition
from tilewright.lang.halide.syntax.func import Func
from tilewright.lang.halide.syntax.image import Symbol
from tilewright.lang.halide.syntax.pipeline import Pipeline, pipeline
from tilewright.tune.stages import program as search


def copied(stages: Pipeline) -> Pipeline:
    """The pipeline over the same regions, of new Funcs with the same definitions and promises."""
    copies: dict[Any, Scheduled] = {}
    symbols: dict[Symbol, Symbol] = {}

    def instead(symbol: Symbol) -> Symbol:
        return symbols.get(symbol, symbol)

    for f in stages.funcs:
        name = f.name()
        made = Scheduled(name)
        copies[f] = made
        made.args = f.args
        made.promised = dict(f.promised)
        made.output_promises = dict(f.output_promises)
        made.strides = dict(f.strides)
        made.aligned = dict(f.aligned)
        for old in f.symbols:
            rank = len(old.shape)
            symbols[old] = Symbol(old.name, rank, old.dtype, made)
        made.symbols = tuple(map(instead, f.symbols))
        # `keep` would tell the images of readers that only the search knows.
        for old_one in f.definitions:
            definition = old_one.reading(instead)
            made.definitions.append(definition)
    outputs = []
    sizes = []
    for f in stages.outputs:
        box = stages.boxes[f]
        size = box[::-1]
        outputs.append(copies[f])
        sizes.append(size)
    return pipeline(outputs, sizes)


def program(stages: Pipeline) -> search.StageGraph:
    """The stages of a pipeline of known sizes."""
    made = {}
    for f in stages.funcs:
        made[f] = _stage(f, stages)
    inputs = []
    for image in stages.images:
        pairs = stages.boxes[image]
        box = search.box_of(pairs)
        several = isinstance(image, Func)
        symbols = image.symbols if several else (image.symbol,)
        given = search.Input(symbols, box)
        inputs.append(given)
    outputs = frozenset(made[f] for f in stages.outputs)
    every = tuple(made.values())
    return search.StageGraph(every, tuple(inputs), outputs)


def _stage(f: Func, stages: Pipeline) -> search.ProgramStage:
    name = f.name()
    pairs = stages.boxes[f]
    box = search.box_of(pairs)
    args: Any = tuple(v.node for v in f.args)
    definitions = tuple(map(_definition, f.definitions))
    return search.ProgramStage(name, args, f.symbols, box, definitions)


def _definition(d: Definition) -> search.StageNest:
    if d.domain is None:
        return search.StageNest(d.args, d.stores)
    reduced = d.domain.vars
    pairs = [(r.min, r.extent) for r in reduced]
    box = search.box_of(pairs)
    domain = {}
    for r, ends in zip(reduced, box, strict=True):
        domain[r.node] = ends
    return search.StageNest(d.args, d.stores, domain)
