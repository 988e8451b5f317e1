"""ONNX's own test runner over this compiler: node, simple, pytorch-* and the light real models.

Tests that do not pass are in failing.txt, those that need a host fallback in reference.txt. A
listed test that does better fails, and so does an unlisted one that does worse.
`pytest tests/conformance --update-conformance` writes both lists and the row of docs/status.md.
"""

from __future__ import annotations

import re
import unittest
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.backend.test import BackendTest
from onnx.backend.test.loader import load_model_tests

from tests.conformance import lists, node_cases
from tests.conformance.lists import Outcome
from tilewright.base.errors import TilewrightError, TilewrightWarning
from tilewright.onnx_backend import TilewrightBackend, TilewrightRep

BY_REFERENCE = re.compile(r"falls? back to the host: .*?\((?:[\w.]+::)?(\w+)\)")
RANDOM = {
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}
# Dropout of training draws too; of a ratio of 0 everything is kept.
DROPPING = re.compile(r"test_training_dropout(?!.*zero_ratio)")


class Uncached(TilewrightBackend):
    """Does not use the kernel cache: every test compiles its model."""

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> TilewrightRep:
        drawn = any(node.op_type in RANDOM for node in model.graph.node)
        Suite.random = drawn or DROPPING.match(model.graph.name) is not None
        return super().prepare(model, device, threads=1, cache=False)


class Suite(BackendTest):
    """ONNX's runner; of random numbers it compares shape and dtype only.

    ONNX's own compares the tensors of a sequence element by element, which fails for scalars.
    """

    random = False

    @classmethod
    def assert_similar_outputs(
        cls,
        ref_outputs: Any,
        outputs: Any,
        rtol: float,
        atol: float,
        model_dir: Any = None,
    ) -> None:
        if cls.random:
            assert _types(outputs) == _types(ref_outputs)
            return
        assert len(outputs) == len(ref_outputs)
        for got, want in zip(outputs, ref_outputs):
            if isinstance(got, list | tuple):
                assert isinstance(want, list | tuple), (
                    f"a sequence, expected {type(want)}"
                )
                cls.assert_similar_outputs(want, got, rtol, atol, model_dir)
            else:
                super().assert_similar_outputs([want], [got], rtol, atol, model_dir)


def _types(outputs: Any) -> list[Any]:
    return [(x.shape, x.dtype) for x in outputs]


def _tests() -> dict[tuple[str, str], Callable[..., None]]:
    node_cases.keep()
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        items = Suite(Uncached, __name__)._test_items
    return {
        (category, name.removesuffix("_cpu")): item.func
        for category, tests in items.items()
        for name, item in sorted(tests.items())
        if name.endswith("_cpu")
    }


TESTS = _tests()
# The lists hold for this version of ONNX's tests; another one has others.
LISTED = onnx.__version__.startswith("1.23.")


@pytest.fixture(scope="session", autouse=True)
def models_folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Where the runner writes the data of the light models, instead of the home folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONNX_MODELS", str(tmp_path_factory.mktemp("onnx_models")))
        yield


def outcome(category: str, name: str) -> tuple[Outcome, Exception | None]:
    """Run one of ONNX's tests. Returns the outcome and the error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            TESTS[category, name](unittest.TestCase())
        except Exception as error:
            return Outcome(category, name, "failing", _word(error)), error
    ours = [str(w.message) for w in caught if issubclass(w.category, TilewrightWarning)]
    found = [m[1] for m in map(BY_REFERENCE.search, ours) if m]
    return Outcome(
        category, name, *(("reference", found[0]) if found else ("native",))
    ), None


def _word(error: Exception) -> str:
    if isinstance(error, AssertionError):
        return "values"
    return error.code if isinstance(error, TilewrightError) else type(error).__name__


EVERY = 20  # of tests of one family, every so many is a fast one, the first among them


def _slow() -> set[str]:
    """All but one in `EVERY` tests of a family, and real models: tests/networks has smaller ones.

    A family: node tests of the same operators; expanded ones; other tests of a category.
    """
    operators = {
        case.name: frozenset(node.op_type for node in case.model.graph.node)
        for case in load_model_tests(kind="node")
        if "_expanded" not in case.name  # into operators that others are about
    }
    met: Counter[object] = Counter()
    rest = set()
    for category, name in TESTS:
        family = operators.get(name, (category, "_expanded" in name))
        if category == "RealModel" or met[family] % EVERY:
            rest.add(name)
        met[family] += 1
    return rest


SLOW = _slow()


@pytest.mark.parametrize(
    ("category", "name"),
    [
        pytest.param(*test, marks=[pytest.mark.slow] * (test[1] in SLOW))
        for test in TESTS
    ],
    ids=lambda word: word,
)
def test_onnx(category: str, name: str, request: pytest.FixtureRequest) -> None:
    found, error = outcome(category, name)
    request.node.user_properties.append(("conformance", list(vars(found).values())))
    if request.config.getoption("--update-conformance"):
        return
    expected = next((s for s in lists.HEADS if name in LISTS[s]), "native")
    if found.state == expected:
        return
    if not LISTED and expected != "failing" and error is None:
        return
    message = f"expected {expected}, found {found.state}; --update-conformance if that is right"
    raise AssertionError(message) from error


LISTS = {name: lists.read(name) for name in lists.HEADS}


@pytest.mark.skipif(not LISTED, reason="the lists are for the tests of onnx 1.23")
def test_the_lists_name_tests_and_the_status_row_is_true(
    request: pytest.FixtureRequest,
) -> None:
    names = {name for _, name in TESTS}
    for name, tests in LISTS.items():
        assert not tests.keys() - names, f"{name}.txt lists tests that do not exist"
    assert not LISTS["failing"].keys() & LISTS["reference"].keys()
    if not request.config.getoption("--update-conformance"):
        assert lists.status_row() == lists.counts(TESTS)
