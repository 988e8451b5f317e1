"""A pipeline's Funcs again, without directives: a search schedules these and not the user's."""

from __future__ import annotations

from typing import Any

from tilewright.lang.halide.levels import Scheduled
from tilewright.lang.halide.syntax.image import Symbol
from tilewright.lang.halide.syntax.pipeline import Pipeline, pipeline


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
