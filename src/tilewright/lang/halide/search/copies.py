"""A pipeline as the search sees it, and its Funcs again, without directives.

The search schedules these and not the user's.
"""

from __future__ import annotations

from typing import Any

from tilewright.expr.nodes import Var, fixed
from tilewright.lang.halide.levels import Scheduled
from tilewright.lang.halide.syntax.definition import Definition
from tilewright.lang.halide.syntax.func import Func
from tilewright.lang.halide.syntax.image import Image, Symbol
from tilewright.lang.halide.syntax.pipeline import Pipeline, pipeline
from tilewright.tune.stages import program as search


def copied(stages: Pipeline) -> Pipeline:
    """The pipeline over the same regions, of new Funcs with the same definitions and promises."""
    copies: dict[Any, Scheduled] = {}
    symbols: dict[Symbol, Symbol] = {}

    def instead(symbol: Symbol) -> Symbol:
        return symbols.get(symbol, symbol)

    for f in stages.funcs:
        made = Scheduled(f.name())
        made.args = f.args
        made.promised = dict(f.promised)
        made.output_promises = dict(f.output_promises)
        made.strides = dict(f.strides)
        made.aligned = dict(f.aligned)
        own = [Symbol(s.name, len(s.shape), s.dtype, made) for s in f.symbols]
        made.symbols = tuple(own)
        symbols |= zip(f.symbols, own, strict=True)
        # `keep` would tell the images of readers that only the search knows.
        made.definitions = [d.reading(instead) for d in f.definitions]
        copies[f] = made
    outputs = [copies[f] for f in stages.outputs]
    return pipeline(outputs, [stages.boxes[f][::-1] for f in stages.outputs])


def program(stages: Pipeline) -> search.Program:
    """The stages of a pipeline of known sizes."""
    made = {f: _stage(f, stages) for f in stages.funcs}
    inputs = [_input(image, stages) for image in stages.images]
    outputs = frozenset(made[f] for f in stages.outputs)
    return search.Program(tuple(made.values()), tuple(inputs), outputs)


def _box(owner: Any, stages: Pipeline) -> search.Box:
    name = stages.names[owner]
    found = []
    for low, extent in stages.boxes[owner]:
        first = fixed(low, name)
        found.append((first, first + fixed(extent, name) - 1))
    return found


def _input(owner: Image | Func, stages: Pipeline) -> search.Input:
    symbols = owner.symbols if isinstance(owner, Func) else (owner.symbol,)
    return search.Input(symbols, _box(owner, stages))


def _stage(f: Func, stages: Pipeline) -> search.Stage:
    args = tuple(v.node for v in f.args)
    definitions = tuple(map(_definition, f.definitions))
    return search.Stage(f.name(), args, f.symbols, _box(f, stages), definitions)


def _definition(d: Definition) -> search.Definition:
    if d.domain is None:
        return search.Definition(d.args, d.stores)
    domain = {}
    for r in d.domain.vars:
        assert isinstance(r.node, Var)
        domain[r.node] = (r.min, r.min + r.extent - 1)
    return search.Definition(d.args, d.stores, domain)
