"""Random uses of single operators against ONNX Runtime and ONNX's reference."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from tilewright.base.errors import ModelError
from tilewright.testing import random_operators
from tilewright.testing.operator_trials import trial
from tilewright.testing.random_operators import difference, judged, run

COUNT = 300
FOURTH = 4  # every so many is compiled
SLOW = range(1000, 6600)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("third", range(3))
def test_300_operators_agree(third: int) -> None:
    seen: Counter[str] = Counter()
    seeds = range(third, COUNT, 3)
    found = [run(seed, seed % FOURTH == 0, seen) for seed in seeds]
    assert not [str(f) for f in found if f is not None]
    assert seen["both"] > len(seeds) / 2, seen
    assert seen["nobody"] + seen["no trial"] < len(seeds) / 5, seen


@pytest.mark.slow
@pytest.mark.parametrize("start", range(SLOW.start, SLOW.stop, 200))
def test_many_operators_agree(start: int) -> None:
    found = [run(seed) for seed in range(start, start + 200)]
    assert not [str(f) for f in found if f is not None]


def test_trials_are_of_all_kinds() -> None:
    """Most operators that are defined, old versions, many types, edges."""
    seen: Counter[str] = Counter()
    for seed in range(2000):
        t = trial(seed)
        if t is None:
            continue
        node = t.model.graph.node[0]
        seen[f"operator {node.op_type}"] += 1
        seen[f"version {t.op}"] += 1
        seen["left out"] += "" in node.input
        seen["special"] += t.special
        arrays = list(t.inputs.values())
        seen["empty"] += any(a.size == 0 for a in arrays)
        for a in arrays:
            seen[f"type {a.dtype}"] += 1
    kinds = Counter(name.split()[0] for name in seen)
    assert kinds["operator"] > 140 and kinds["version"] > 350 and kinds["type"] >= 13, (
        kinds
    )
    assert seen["left out"] > 15 and seen["special"] > 200 and seen["empty"] > 40, seen


def test_a_trial_is_the_same_again() -> None:
    for seed in range(20):
        a, b = trial(seed), trial(seed)
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert a.model == b.model and a.inputs.keys() == b.inputs.keys()


# ------------------------------------------------------------- what is found if it is wrong


def a_trial(op_type: str) -> Any:
    found = (
        t for seed in range(5000) if (t := trial(seed)) is not None and not t.special
    )
    return next(
        t
        for t in found
        if t.model.graph.node[0].op_type == op_type
        and all(a.size for a in t.inputs.values())
        and judged(t, native=False)[0] == "both"
    )


@pytest.mark.parametrize("native", [True, False])
def test_a_wrong_value_is_found(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    t = a_trial("Transpose")
    name = "_compiled" if native else "_interpreted"
    real = getattr(random_operators, name)
    monkeypatch.setattr(
        random_operators, name, lambda t: [a + a.dtype.type(1) for a in real(t)]
    )
    how, failure = judged(t, native)
    assert how == "wrong" and failure is not None and "expected" in str(failure)


def test_a_refusal_and_an_exception_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    t = a_trial("Add")

    def raising(error: Exception) -> Any:
        def run_it(t: Any) -> Any:
            raise error

        return run_it

    monkeypatch.setattr(random_operators, "_compiled", raising(ModelError("not this")))
    how, failure = judged(t)
    assert (
        how == "refused"
        and failure is not None
        and "ModelError: not this" in failure.message
    )
    unfit = ModelError("a window of 3 does not fit the extent 2")
    monkeypatch.setattr(random_operators, "_compiled", raising(unfit))
    assert judged(t) == ("nobody", None)
    monkeypatch.setattr(random_operators, "_compiled", raising(KeyError("x")))
    how, failure = judged(t)
    assert how == "raised" and failure is not None and failure.kind == "raised"


def test_where_the_judges_differ_or_are_silent_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    t = a_trial("Add")
    wrong = [np.zeros(3, np.int8)]
    monkeypatch.setattr(random_operators, "_runtime", lambda t: wrong)
    assert judged(t, native=False) == ("open", None)
    monkeypatch.setattr(random_operators, "_reference", lambda t: None)
    assert judged(t, native=False) == (
        "open",
        None,
    )  # ours in float64 is of another opinion
    monkeypatch.setattr(random_operators, "_runtime", lambda t: None)
    assert judged(t, native=False) == ("nobody", None)


def test_one_judge_and_ours_in_float64_are_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    t = a_trial("Add")
    monkeypatch.setattr(random_operators, "_runtime", lambda t: None)
    assert judged(t, native=False) == ("one", None)
    monkeypatch.setattr(
        random_operators, "_interpreted", lambda t: [np.zeros(3, np.int8)]
    )
    how, failure = judged(t, native=False)
    assert how == "wrong" and failure is not None


@pytest.mark.parametrize(
    ("theirs", "wide", "how"),
    [
        ([np.nan, 2, 3], [7, 2, 3], "open"),
        ([np.nan, 2, 3], [np.nan, 2, 3], "wrong"),
        ([np.nan, 2, 3], [np.inf, 2, 3], "wrong"),
        ([np.inf, 2, 3], [7, 2, 3], "wrong"),
        ([np.nan, 9, 3], [7, 2, 3], "wrong"),
        ([np.nan, 2], [7, 2], "wrong"),
    ],
    ids=["overflown", "NaN", "infinite", "not NaN", "another", "shape"],
)
def test_nan_of_an_overflow_is_no_judgment(
    theirs: list[float], wide: list[float], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variance as a difference of means is inf - inf, where float64 has a number."""
    t = a_trial("Relu")
    results = {"_interpreted": [5, 2, 3], "_runtime": theirs, "_reference": theirs}
    for name, result in results.items():
        found = [np.array(result, np.float32)]
        monkeypatch.setattr(random_operators, name, lambda t, found=found: found)
    monkeypatch.setattr(random_operators, "_wide", lambda t: [np.array(wide)])
    assert judged(t, native=False)[0] == how


def test_what_a_difference_is() -> None:
    t = a_trial("Relu")
    a = np.array([1.0, np.nan, np.inf, 50.0], np.float32)
    assert difference(t, [a], [a]) == ""
    assert difference(t, [a], [a + np.float32(1e-6)]) == ""
    assert "first 51.0 at (3,), expected 50.0" in difference(
        t, [a], [a + np.float32([0, 0, 0, 1])]
    )
    assert "shape" in difference(t, [a], [a[:3]])
    assert difference(t, [a], [a, a]) == "2 outputs, expected 1"
    assert difference(t, [a], None) == "no result"
    nan = a.copy()
    nan[0] = np.nan
    assert "first nan at (0,)" in difference(t, [a], [nan])
    whole = np.array([1, 2], np.int64)
    assert "first 3 at (1,), expected 2" in difference(t, [whole], [whole + [0, 1]])
