"""The correct results of one kernel, to compare with those of tuned programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from tilewright.base.errors import ExecutionError
from tilewright.driver.guard.feeds import KINDS, Feeds, index_limit
from tilewright.driver.guard.judges import (
    STEPS,
    ComputationJudge,
    ExpectedElements,
    Judge,
    KernelJudge,
    longest,
    rounding,
    steps,
)
from tilewright.expr.nodes import Buffer
from tilewright.plan.normalize import KernelSignature
from tilewright.runtime.executable import Executable
from tilewright.runtime.model import CompiledModel
from tilewright.tune.measure.reference import ReferenceCase, ReferenceResult, pack

Array = np.ndarray[Any, Any]
EFFORT: Final = 1_000_000  # expression nodes evaluated per case: a tenth of a second
_BLOCK: Final = 65_521  # the period of random data, in elements


def reference(
    signature: KernelSignature,
    known: Mapping[Buffer, Array],
    model: CompiledModel,
    effort: int = EFFORT,
    seed: int = 0,
) -> bytes:
    """Inputs and results of a kernel, in the form of `tune.measure.reference`.

    known: contents of its constants. model: the kernel alone, with a trusted schedule. Its results
    are the expected ones, once they agree with the Computations or, for a kernel without
    Computations, with the loop interpreter. effort: as for `guard.validate`: of a large kernel,
    only some results are judged. The others may differ from the default schedule's by twice the
    largest error bound of a judged result, since both may be off by that bound. A kernel without
    Computations that would take too long is not judged. Data with an index out of range are left
    out. Raises ExecutionError (TW-CHECK) if the model's own results are wrong.
    """
    kinds = KINDS if any(b.dtype.is_float for b in _inputs(signature)) else KINDS[:1]
    judge: Judge | None = None
    cases = []
    for kind in kinds:
        arrays = _arrays(signature, known, kind, seed)
        judge = _judge(signature, arrays, effort, seed, judge)
        if judge is None or not judge.refused:
            cases.append(_case(signature, known, model, arrays, judge))
    return pack(cases)


def _inputs(signature: KernelSignature) -> tuple[Buffer, ...]:
    return signature.values[: len(signature.values) - len(signature.outputs)]


def _outputs(signature: KernelSignature) -> tuple[Buffer, ...]:
    return signature.values[len(signature.values) - len(signature.outputs) :]


def _arrays(
    signature: KernelSignature, known: Mapping[Buffer, Array], kind: str, seed: int
) -> dict[Buffer, Array]:
    """Contents of all tensors before a call, constants and outputs included."""
    inputs = _inputs(signature)
    if signature.source:
        limit = index_limit(signature.source)
    else:
        limit = min((n for b in inputs for n in b.shape if n > 1), default=1)
    feeds = Feeds(seed, limit, {})
    return {
        b: known[b].reshape(b.shape) if b in known else feeds.array(n, b, kind)
        for n, b in enumerate(signature.values)
    }


def _judge(
    signature: KernelSignature,
    arrays: Mapping[Buffer, Array],
    effort: int,
    seed: int,
    before: Judge | None,
) -> Judge | None:
    outputs = _outputs(signature)
    if signature.source:
        other = before if isinstance(before, ComputationJudge) else None
        return ComputationJudge(signature.source, arrays, outputs, effort, seed, other)
    assert signature.kernel is not None
    if steps(signature.kernel.body) > STEPS:
        return None
    return KernelJudge(signature.on_values, arrays, outputs)


def _case(
    signature: KernelSignature,
    known: Mapping[Buffer, Array],
    model: CompiledModel,
    arrays: Mapping[Buffer, Array],
    judge: Judge | None,
) -> ReferenceCase:
    free = [b for b in _inputs(signature) if b not in known]
    outputs = _outputs(signature)
    run = Executable(model, threads=1)
    made = [np.array(arrays[b]) for b in outputs]
    run(*(arrays[b] for b in free), out=made)
    results = []
    for b, array in zip(outputs, made, strict=True):
        result = _result(signature, b, arrays[b], array.reshape(-1), judge)
        if (off := result.misjudged(result.whole)) is not None:
            place = [int(i) for i in np.unravel_index(off.place, b.shape)]
            raise ExecutionError(
                f"the kernel is wrong before it is tuned: {b.name}{place} {off}",
                where=f"kernel {signature.group or signature.name}",
                code="TW-CHECK",
                hint="tilewright verify --kernels has details; please report it",
            )
        results.append(result)
    return ReferenceCase(tuple(_block(arrays[b]) for b in free), tuple(results))


def _result(
    signature: KernelSignature,
    b: Buffer,
    before: Array,
    whole: Array,
    judge: Judge | None,
) -> ReferenceResult:
    """The expected contents of one output."""
    floating = b.dtype.is_float
    want = _NOTHING if judge is None else judge.expected(b)
    value = np.asarray(want.value).astype(np.float64 if floating else whole.dtype)
    finite = want.error[np.isfinite(want.error)]
    # A program and the default schedule may both be off, in opposite directions.
    bound = 2 * float(finite.max(initial=0.0)) if floating else 0.0
    if floating and not len(want.places):
        bound = rounding(b, whole, longest(signature.params))
    return ReferenceResult(_block(before), whole, bound, want.places, value, want.error)


_NOTHING: Final = ExpectedElements(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))


def _block(array: Array) -> Array:
    """The block that an array of random data repeats; the whole array if it is not one."""
    flat = array.reshape(-1)
    block = flat[:_BLOCK]
    if np.array_equal(np.resize(block, flat.size).view(np.uint8), flat.view(np.uint8)):
        return block
    return flat
