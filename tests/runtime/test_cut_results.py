"""Results that are cut to their counts behind one native call: on the quick way, where it may."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.runtime import native
from tilewright.base.errors import ExecutionError, InputError
from tilewright.runtime import host
from tilewright.runtime.executable import Executable
from tilewright.runtime.model import (
    CopyStep,
    HostFallbackStep,
    NativeStep,
    Step,
    Tensor,
    ValueSlot,
)

X = np.linspace(-1, 1, 100).astype(np.float32)
WHOLE = Tensor("v", "float32", (100,))
CUT = Tensor("some", "float32", (None,))
COUNT = ValueSlot("constant", 400, Tensor("n", "int64", ()))
DOUBLED = ValueSlot("arena", 0, WHOLE)  # where the native code has 2 x
SUM = ValueSlot("output", 1, WHOLE)


def segment(result: ValueSlot = SUM) -> NativeStep:
    """The native code, which leaves its result there."""
    return NativeStep(
        "segment", (ValueSlot("input", 0, WHOLE), result), native.records()
    )


def cut(
    source: ValueSlot = DOUBLED,
    target: ValueSlot = ValueSlot("output", 0, CUT),
    count: ValueSlot = COUNT,
) -> HostFallbackStep:
    return HostFallbackStep(
        "trim", "Trim", {"axes": [0]}, (source, count), (target,), "it"
    )


def executable(
    steps: Sequence[Step], count: int = 3, outputs: Sequence[Tensor] = (CUT, WHOLE)
) -> Executable:
    """Of a model with these steps."""
    constants = np.concatenate(
        [native.bias(100).view(np.uint8), np.array([count]).view(np.uint8)]
    )
    whole = replace(
        native.model(),
        steps=tuple(steps),
        outputs=tuple(outputs),
        constants=constants,
        arena_bytes=800,
        object_slots=sum(s.kind == "object" for t in steps for s in slots(t)),
    )
    return Executable(whole, threads=1)


def slots(step: Step) -> list[ValueSlot]:
    """Those that a step writes on the host."""
    if isinstance(step, HostFallbackStep):
        return [s for s in step.outputs if s is not None]
    return []


@pytest.mark.parametrize("count", [0, 3, 100])
def test_they_are_cut_on_the_quick_way(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    exe = executable([segment(), cut()], count)
    monkeypatch.setattr(Executable, "_general", None)
    some, whole = exe(X)
    again = exe(-X)
    for x, (first, second) in ((X, (some, whole)), (-X, again)):
        np.testing.assert_array_equal(first, 2 * x[:count])
        np.testing.assert_array_equal(second, native.expected(x))
    assert some.flags.owndata and some.flags.writeable


def test_results_are_in_order_whichever_are_cut_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bias = ValueSlot("constant", 0, WHOLE)
    steps = [
        segment(),
        cut(target=ValueSlot("output", 3, CUT)),
        cut(bias, ValueSlot("output", 2, CUT)),
        cut(),
    ]
    exe = executable(steps, 3, [CUT, WHOLE, CUT, CUT])
    monkeypatch.setattr(Executable, "_general", None)
    wanted = (2 * X[:3], native.expected(X), native.bias(3), 2 * X[:3])
    for found, want in zip(exe(x=X), wanted, strict=True):
        np.testing.assert_array_equal(found, want)


def test_the_only_result_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    there = ValueSlot("arena", 400, WHOLE)
    exe = executable([segment(there), cut(there)], 3, [CUT])
    monkeypatch.setattr(Executable, "_general", None)
    np.testing.assert_array_equal(exe(X), native.expected(X)[:3])


@pytest.mark.parametrize("count", [-1, 101])
def test_a_count_beyond_the_bound_is_an_error_that_names_the_node(count: int) -> None:
    with pytest.raises(ExecutionError, match="of at most 100") as caught:
        executable([segment(), cut()], count)(X)
    assert caught.value.where == "node 'it'"


def test_arrays_for_results_and_lists_as_inputs_go_the_general_way() -> None:
    exe = executable([segment(), cut()])
    out = np.empty(100, np.float32)
    some, whole = exe(X, out=(None, out))
    assert whole is out
    np.testing.assert_array_equal(out, native.expected(X))
    np.testing.assert_array_equal(some, 2 * X[:3])
    assert exe.in_place is None and exe.bound([X, some, out]) is None
    np.testing.assert_array_equal(exe(X.tolist())[0], 2 * X[:3])
    with pytest.raises(InputError, match="known only at run time"):
        exe(X, out=(np.empty(3, np.float32), out))


OBJECT = ValueSlot("object", 0, CUT)
SINK = ValueSlot("output", 0, CUT)
OTHERS = {
    "an input is cut": [segment(), cut(ValueSlot("input", 0, WHOLE))],
    "what is cut is read again": [
        segment(),
        cut(target=OBJECT),
        CopyStep(OBJECT, SINK),
    ],
    "what is cut is no result": [segment(), cut(target=OBJECT), cut()],
    "another operator comes behind": [segment(), replace(cut(), provider="first")],
    "the cut comes first": [cut(ValueSlot("constant", 0, WHOLE)), segment()],
    "a copy comes behind": [
        segment(),
        CopyStep(DOUBLED, ValueSlot("output", 0, WHOLE)),
    ],
    "a copy is between": [
        segment(),
        CopyStep(DOUBLED, ValueSlot("arena", 400, WHOLE)),
        cut(ValueSlot("arena", 400, WHOLE)),
    ],
}
WANTED = {
    "an input is cut": X[:3],
    "what is cut is read again": 2 * X[:3],
    "what is cut is no result": 2 * X[:3],
    "another operator comes behind": 2 * X[:3],
    "the cut comes first": native.bias(100)[:3],
    "a copy comes behind": 2 * X,
    "a copy is between": 2 * X[:3],
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_steps_go_the_general_way(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_of = {"first": lambda op, attributes: lambda xs: [xs[0][: int(xs[1])]]}
    monkeypatch.setattr(host, "_factories", host._factories | first_of)
    exe = executable(OTHERS[name])
    assert exe._direct is None
    first, whole = exe(X)
    np.testing.assert_array_equal(first, WANTED[name])
    np.testing.assert_array_equal(whole, native.expected(X))
