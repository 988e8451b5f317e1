"""`tw.compile_training_step`: loss, derivatives and the optimizer's update as one compiled model.

The step reads parameters and the optimizer's states from one set of buffers and writes the new ones
to another. The two sets are swapped after each step, so nothing is copied.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack
from zipfile import BadZipFile

import numpy as np

from tilewright.base.arguments import expect
from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import float32
from tilewright.base.errors import InputError, ModelError
from tilewright.base.text import listing, plural
from tilewright.driver import compilation
from tilewright.driver.compilation import onnx_fallback
from tilewright.driver.compile import compile
from tilewright.driver.compile_lock import exclusive
from tilewright.driver.options import Options
from tilewright.graph.loss_scale import LossScale, all_finite, scaled_loss, unscaled
from tilewright.graph.losses import LOSSES, Loss, check_classes, classes_of, target_of
from tilewright.graph.nodes import Graph, Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.optimizers import SGD, Optimizer, ParameterUpdate
from tilewright.graph.passes.differentiate import (
    as_ready,
    differentiate,
    extended,
    free_constants,
    inputs_of,
    loss_of,
    trainable,
    without_loops,
)
from tilewright.graph.passes.rematerialize import rematerialize
from tilewright.graph.renaming import name_outputs
from tilewright.graph.rules.conv_product import CONV_PRODUCT
from tilewright.graph.rules.driver import rewrite
from tilewright.graph.rules.mixed_precision import (
    TRAINED,
    check_precision,
    with_rounded_products,
)
from tilewright.runtime.inputs import convert
from tilewright.runtime.model import Tensor

if TYPE_CHECKING:
    from tilewright.driver.keywords import CompileOptions

Array = np.ndarray[Any, Any]
# In a saved file: the number of steps taken, the scale, and the steps since that changed.
_STEP = "step"
_SCALE = "loss_scale"
_GOOD = "loss_scale.steps"


def compile_training_step(
    model: Any,
    loss: str | Loss,
    optimizer: Optimizer | None = None,
    example_inputs: Sequence[Any] = (),
    *,
    parameters: Sequence[str] | str | None = None,
    dims: Mapping[str, int] | None = None,
    remat: bool | int = False,
    loss_scale: LossScale | None = None,
    **options: Unpack[CompileOptions],
) -> TrainingStep:
    """Compile a step that trains a model on one batch.

    model: an ONNX model (a path, bytes or ModelProto), a torch.nn.Module with example inputs of the
    batch's shape, or a Graph; example_inputs, dims, options: as for `tw.compile`. loss:
    "cross_entropy" or "mean_squared_error" of the model's only output, which adds an input
    `target`; or the name of an output that is the loss. optimizer: of `tw.optim`; by default
    SGD(0.01). parameters: the names of those to train; by default all weights. remat: recompute
    cheap results for the derivatives instead of keeping them: True, if it saves memory; a number,
    until at most so many bytes of results are live at once. The losses are the same. precision:
    "bfloat16" or "float16" rounds the operands of products to it and sums in float32; everything
    else, such as parameters and states, stays in float32. loss_scale: how the scale of the loss
    changes, `tw.optim.LossScale`, by default with "float16"; a step whose gradients are not finite
    then changes nothing but the scale.

    Raises InputError for a loss that is not a scalar, and for a parameter that does not exist or
    that the loss does not depend on; UnsupportedError for an operator without a derivative. As in
    inference, batch normalizations use the statistics in the model.
    """
    expect(loss=loss, parameters=parameters, dims=dims, remat=remat)
    chosen = Options.of(dict(options))
    rule = SGD() if optimizer is None else optimizer
    if not isinstance(rule, Optimizer):
        raise InputError(
            f"the optimizer is {rule!r}",
            hint="give one of tw.optim: tw.optim.Adam(0.001)",
        )
    scaling = _scaling(loss_scale, chosen)
    if parameters is not None:
        names = [parameters] if isinstance(parameters, str) else parameters
        parameters = list(dict.fromkeys(names))
    with exclusive():
        source = _Source.of(model, example_inputs, parameters, chosen)
        graph = source.graph
        if dims:
            from tilewright.driver import sources

            graph = sources.with_dims(graph, dims, chosen)
        graph = without_loops(graph, onnx_fallback())
        if chosen.math != "exact":
            graph = rewrite(graph, [CONV_PRODUCT])
        if chosen.precision is not None:
            check_precision(graph, chosen.precision)
        scaled = scaling is not None
        graph, layout = _with_update(graph, loss, rule, [*source.arrays], remat, scaled)
        if chosen.precision is not None:
            graph = _with_precision(graph, chosen, chosen.precision)
    run = compile(graph, **options)
    return TrainingStep(run, source, rule, layout, scaling)


def _with_precision(graph: Graph, options: Options, precision: str) -> Graph:
    """The step with rounded products, in the form that the target multiplies best."""
    dtype = TRAINED[precision]
    found = compilation.target_of(options).products(dtype, dtype, float32)
    return with_rounded_products(graph, precision, bool(found))


def _scaling(loss_scale: LossScale | None, options: Options) -> LossScale | None:
    """How the loss is scaled: as asked, or as PyTorch does it for float16."""
    if loss_scale is None:
        return LossScale() if options.precision == "float16" else None
    if not isinstance(loss_scale, LossScale):
        raise InputError(
            f"loss_scale is {loss_scale!r}",
            hint="give a tw.optim.LossScale: tw.optim.LossScale(initial=1024)",
        )
    return loss_scale


@dataclass(frozen=True)
class _Source:
    """A model whose parameters are inputs. arrays: their initial values. proto: the source."""

    graph: Graph
    arrays: dict[str, Array]
    proto: Any = None
    original: Graph | None = None

    @staticmethod
    def of(
        model: Any,
        example_inputs: Sequence[Any],
        names: Sequence[str] | None,
        options: Options,
    ) -> _Source:
        from tilewright.driver import sources
        from tilewright.frontends import torch
        from tilewright.frontends.load import of_torch
        from tilewright.frontends.onnx import parameters

        if torch.is_module(model):
            wanted = torch.parameters(model) if names is None else names
            model = of_torch(
                model,
                example_inputs,
                dynamic_shapes=options.dynamic_shapes,
                limit=options.limit,
                inputs=options.inputs,
                trained=wanted,
            )
            if names is None:
                used = {v.name for v in model.constants}
                names = [n for n in wanted if n in used]
        if isinstance(model, Graph):
            chosen = trainable(model) if names is None else names
            graph, arrays = free_constants(model, chosen)
            return _Source(graph, arrays, original=model)
        proto = parameters.read(model)
        chosen = parameters.weights(proto) if names is None else list(names)
        free, arrays = parameters.free(proto, chosen)
        graph = sources.import_model(free, (), options)
        return _Source(graph, arrays, proto)


@dataclass(frozen=True)
class _Layout:
    """The inputs of a step.

    states: the number per parameter. classes: the number of classes of the target, which is the
    last of the data; None if the loss has none.
    """

    data: tuple[Value, ...]
    parameters: tuple[Value, ...]
    states: int
    classes: int | None


def _with_update(
    graph: Graph,
    loss: str | Loss,
    rule: Optimizer,
    names: Sequence[str],
    remat: bool | int = False,
    scaled: bool = False,
) -> tuple[Graph, _Layout]:
    """The graph of a whole step.

    Its inputs are data, parameters, states and factors; its outputs are the loss and the new
    parameters and states. scaled: the last factor is the loss's scale, and the last output says
    whether all gradients are finite.
    """
    f = Fragment("training", graph.constants)
    data = [v for v in graph.inputs if v.name not in names]
    graph, y, classes = _with_loss(graph, loss, f, data)
    wanted = inputs_of(graph, names)
    if not wanted:
        raise InputError(
            "the model has no parameters to train",
            hint="its weights must be initializers, or name some: parameters=[...]",
        )
    scale = Value("training.scale", float32, ())
    derived_from = scaled_loss(f, y, scale) if scaled else y
    loss_steps = extended(graph, f, (*graph.outputs, y, derived_from))
    back = Fragment("gradient", loss_steps.constants)
    flows = differentiate(loss_steps, derived_from, wanted, back)
    rate = Value("training.rate", float32, ())
    factors = [
        Value(f"training.factor{n}", float32, ()) for n in range(len(rule.factors(1)))
    ]
    update = Fragment("update", loss_steps.constants)
    checks = []
    if scaled:
        flows = unscaled(update, flows, scale)
        checks = [all_finite(update, flows)]
    pairs = zip(wanted, flows, strict=True)
    states, new = _updates(update, rule, pairs, [rate, *factors])
    inputs = (*data, *wanted, *states, rate, *factors, *([scale] if scaled else []))
    whole = replace(loss_steps, inputs=inputs)
    back.operations = as_ready(back.operations, update.operations)
    back.constants |= update.constants
    whole = extended(whole, back, (y, *new, *checks))
    if remat:
        derived = set(back.operations)
        forward = sum(op not in derived for op in whole.operations)
        whole = rematerialize(whole, forward, None if remat is True else remat)
    labels = ["loss", *(f"new.{v.name}" for v in (*wanted, *states))]
    labels += ["training.finite"] * scaled
    whole = name_outputs(whole, labels)
    return whole, _Layout(tuple(data), tuple(wanted), rule.states, classes)


def _updates(
    f: Fragment,
    rule: Optimizer,
    pairs: Iterable[tuple[Value, Value]],
    factors: Sequence[Value],
) -> tuple[list[Value], list[Value]]:
    """The optimizer's states before a step, and all parameters after it, then all states.

    pairs: each parameter and its gradient. factors: the rate first.
    """
    states: list[Value] = []
    new: list[Value] = []
    kept: list[Value] = []
    for p, g in pairs:
        own = [
            Value(f"training.{p.name}.state{n}", p.dtype, p.shape)
            for n in range(rule.states)
        ]
        scalars = factors
        if p.dtype is not float32:
            scalars = [f.op("CastLike", s, p) for s in factors]
        terms = [[f.term(v) for v in values] for values in ((p, g), own, scalars)]
        (value, gradient), before, (by, *corrections) = terms
        step = ParameterUpdate(value, gradient, before, by, corrections)
        found = [term.value for term in rule.update(step)]
        states += own
        new.append(found[0])
        kept += found[1:]
    return states, [*new, *kept]


def _with_loss(
    graph: Graph,
    loss: str | Loss,
    f: Fragment,
    data: list[Value],
) -> tuple[Graph, Value, int | None]:
    """The graph, its loss and its `classes_of`; appends the input for the target to `data`."""
    formula = LOSSES.get(loss) if isinstance(loss, str) else loss
    if formula is None:
        assert isinstance(loss, str)
        if loss not in {v.name for v in graph.outputs}:
            raise InputError(
                f"{loss!r} is neither a loss nor an output of the model",
                hint=f"losses: {listing(sorted(LOSSES))}; outputs: "
                f"{listing([v.name for v in graph.outputs])}",
            )
        return graph, loss_of(graph, loss), None
    if len(graph.outputs) != 1 or not graph.outputs[0].static:
        shown = ", ".join(map(str, graph.outputs))
        raise InputError(
            f"the loss needs a single output of known shape; the model has {shown}",
            hint="give dims={...}, or let the model compute its loss and name that output",
        )
    y = graph.outputs[0]
    target = target_of(formula, y)
    if target.name in {v.name for v in (*graph.inputs, *graph.constants)}:
        raise InputError(
            f"the model already has an input {target.name!r}",
            hint="rename it: the step adds an input of this name for the loss",
        )
    data.append(target)
    graph = replace(graph, inputs=(*graph.inputs, target))
    return graph, formula(f, y, target), classes_of(formula, y)


class TrainingStep:
    """A model in training: `step(x, target)` takes one step and returns the loss before it.

    learning_rate: may be changed between steps. steps: the number of steps taken. loss_scale: the
    present scale of the loss; None if it has none.
    """

    def __init__(
        self,
        run: Any,
        source: _Source,
        rule: Optimizer,
        layout: _Layout,
        scaling: LossScale | None = None,
    ) -> None:
        self._run = run
        self._source = source
        self._rule = rule
        self._layout = layout
        self.learning_rate = rule.learning_rate
        self.steps = 0
        self._scaling = scaling
        self.loss_scale = None if scaling is None else scaling.initial
        self._good = 0  # steps with finite gradients since the scale changed
        first = [_own(source.arrays[v.name]) for v in layout.parameters]
        zeros = [np.zeros_like(a) for a in first for _ in range(layout.states)]
        self._now = [*first, *zeros]
        self._next = [np.empty_like(a) for a in self._now]
        self._tensors = [
            Tensor(v.name, str(v.dtype), v.extents if v.static else None)
            for v in layout.data
        ]

    def step(self, *batch: Any, **named: Any) -> float:
        """Train on one batch, given in the order of `inputs` or by name, and return its loss.

        With a `loss_scale`, infinite or NaN gradients change the scale and nothing else. Raises
        InputError, without taking a step, for a batch of another shape or type, and for a target of
        cross entropy that is not a class; ExecutionError if gradients are not finite at any scale.
        """
        data = self._in_order(batch, named)
        if self._layout.classes is not None:
            data = [convert(a, t) for a, t in zip(data, self._tensors, strict=True)]
            check_classes(data[-1], self._layout.classes)
        factors = [self.learning_rate, *self._rule.factors(self.steps + 1)]
        if self.loss_scale is not None:
            factors.append(self.loss_scale)
        scalars = [np.float32(x) for x in factors]
        into = [None, *self._next, *([None] if self._scaling else [])]
        loss, *found = self._run(*data, *self._now, *scalars, out=into)
        if self._scaling is None or self._rescaled(self._scaling, bool(found[-1])):
            self._now, self._next = self._next, self._now
            self.steps += 1
        return float(loss.item())

    def _rescaled(self, scaling: LossScale, finite: bool) -> bool:
        """Note whether the gradients of a step were finite, and return it."""
        assert self.loss_scale is not None
        now = scaling.after(self.loss_scale, self._good, finite)
        self.loss_scale, self._good = now
        return finite

    def _in_order(self, batch: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        names = self.inputs
        rest = names[len(batch) :]
        if len(batch) > len(names) or set(named) != set(rest):
            raise InputError(
                f"the batch has {plural(len(batch), 'array')} and {listing(sorted(named))} by name",
                hint=f"a step takes {listing(list(names))}",
            )
        return [*batch, *(named[n] for n in rest)]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of a batch's arrays, in order."""
        return tuple(v.name for v in self._layout.data)

    @property
    def parameters(self) -> dict[str, Array]:
        """Copies of the current parameters, by name."""
        pairs = zip(self._layout.parameters, self._now, strict=False)
        return {v.name: a.copy() for v, a in pairs}

    def model(self) -> Any:
        """The model with the current parameters: a ModelProto of ONNX, otherwise a Graph."""
        now = self.parameters
        if self._source.original is not None:
            graph = self._source.original
            constants = {v: now.get(v.name, a) for v, a in graph.constants.items()}
            return replace(graph, constants=constants)
        from tilewright.frontends.onnx.parameters import with_values

        return with_values(self._source.proto, now)

    def save(self, path: str | Path) -> None:
        """Write the parameters and the optimizer's states to an .npz file, for `restore`."""
        arrays = dict(zip(self._names(), self._now, strict=True))
        target = Path(path)
        part = target.with_name(f".{target.name}.part")
        with part.open("wb") as file:
            np.savez(file, **self._counts(), **arrays)  # type: ignore[arg-type]
        os.replace(part, target)

    def restore(self, path: str | Path) -> None:
        """Continue from a file of `save`. Raises ModelError for a file of another model."""
        saved = _read_arrays(path)
        counts = self._counts()
        wanted = {**counts, **dict(zip(self._names(), self._now, strict=True))}
        for name, a in wanted.items():
            b = saved.get(name)
            if b is None or (b.shape, b.dtype) != (a.shape, a.dtype):
                raise ModelError(
                    f"the file has no array {name!r}: {a.dtype}{list(a.shape)}",
                    where=str(path),
                    hint="it was saved from another model, or with another optimizer or loss scale",
                )
        for name, a in wanted.items():
            a[...] = saved[name]
        self.steps = int(counts[_STEP])
        if self._scaling is not None:
            self.loss_scale, self._good = float(counts[_SCALE]), int(counts[_GOOD])

    def _counts(self) -> dict[str, Array]:
        """What a file holds beside parameters and states."""
        found = {_STEP: np.array(self.steps, np.int64)}
        if self.loss_scale is not None:
            found[_SCALE] = np.array(self.loss_scale, np.float64)
            found[_GOOD] = np.array(self._good, np.int64)
        return found

    def _names(self) -> list[str]:
        own = [v.name for v in self._layout.parameters]
        states = [f"{n}.state{i}" for n in own for i in range(self._layout.states)]
        return [f"parameter.{n}" for n in own] + states


def _read_arrays(path: str | Path) -> dict[str, Array]:
    """The arrays of an .npz file. Raises ModelError for any other file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise ModelError(
            "no such file", where=str(path), hint="Check the path"
        ) from None
    except (OSError, ValueError, TypeError, EOFError, BadZipFile, zlib.error):
        raise ModelError(
            "not a file of saved arrays, or a damaged one",
            where=str(path),
            hint="give a file that TrainingStep.save wrote",
        ) from None


def _own(a: Array) -> Array:
    return np.array(a, order="C")
