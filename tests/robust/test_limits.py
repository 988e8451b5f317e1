"""Memory limits, options, symbolic shapes: what a caller may ask for, and what is refused."""

import threading

import numpy as np
import pytest

import tilewright as tw
from tests.robust.models import FLOAT, model, node
from tilewright.base.errors import InputError, MemoryLimitError
from tilewright.driver.dynamic import KEPT

WEIGHT = {"w": np.full((64, 64), 1 / 64, np.float32)}


def products(batch, count=3):
    """x[batch, 64] through `count` products with the same weight, a softmax after each."""
    nodes = []
    for n in range(count):
        nodes.append(node("MatMul", [f"s{n}" if n else "x", "w"], [f"m{n}"], f"m{n}"))
        nodes.append(node("Softmax", [f"m{n}"], [f"s{n + 1}"], f"s{n}"))
    return model(nodes, {"x": (FLOAT, [batch, 64])}, [f"s{count}"], WEIGHT)


def rows(n):
    return np.ones((n, 64), np.float32)


def test_the_plan_of_a_call_is_held_against_the_limit():
    """Each tensor fits; what is alive together does not."""
    source = products(1024)
    assert tw.compile(source, cache=False).peak_bytes > 10**6
    with pytest.raises(
        MemoryLimitError, match=r"a call needs .* between kernels, .* limit of 6"
    ):
        tw.compile(source, cache=False, memory_limit=600_000)


def test_the_limit_of_the_environment_holds_for_every_stage(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_MEMORY_LIMIT", "100K")
    exe = tw.compile(products("n"), cache=False)
    assert exe(rows(4)).shape == (4, 64)
    with pytest.raises(MemoryLimitError, match=r"limit of 102,400"):
        exe(rows(1000))
    with pytest.raises(MemoryLimitError, match=r"limit of 102,400"):
        tw.compile(products("n"), cache=False, dims={"n": 10**12})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cachee": False}, "no option 'cachee'; did you mean 'cache'? "),
        ({"threads": 0}, "threads=0"),
        ({"threads": "2"}, "threads='2'"),
        ({"threads": 10**9}, "1000000000 threads"),
        ({"memory_limit": -1}, "memory_limit=-1"),
        ({"memory_limit": "1G"}, "memory_limit='1G'"),
        ({"math": "sloppy"}, "math='sloppy'; choose one of exact, default, fast"),
        ({"math": "strict"}, "math='strict'; use math=\"default\""),
        ({"fallback": "quietly"}, "fallback='quietly'; choose one of warn, error"),
        ({"strict": True}, "there is no option 'strict'; use fallback=\"error\""),
        ({"strict": False}, "there is no option 'strict'; use fallback=\"warn\""),
        ({"dims": {"m": 3}}, "no dimension is called 'm'"),
        ({"dims": {"n": -3}}, "dimension 'n' is -3"),
        ({"dims": {"n": 2.5}}, "dimension 'n' is 2.5"),
        ({"dims": {"n": "3"}}, "dimension 'n' is '3'"),
    ],
    ids=str,
)
def test_options_that_make_no_sense(options, text):
    with pytest.raises(InputError) as caught:
        tw.compile(products("n"), **options)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        np.ones((2, 3, 64), np.float32),
        rows(1)[0],
        rows(2)[:, 1:],
        rows(2).astype(float),
        "abc",
    ],
    ids=["rank 3", "rank 1", "63 columns", "float64", "text"],
)
def test_inputs_that_do_not_fit_symbolic_shapes(value):
    exe = tw.compile(products("n"), cache=False)
    with pytest.raises(InputError, match="input 'x': expected"):
        exe(value)


def test_an_input_given_twice():
    exe = tw.compile(products("n"), cache=False)
    with pytest.raises(InputError, match="'x' is given by position and by name"):
        exe(rows(2), x=rows(2))


def test_an_empty_batch():
    exe = tw.compile(products("n"), cache=False)
    assert exe(rows(0)).shape == (0, 64)
    np.testing.assert_allclose(exe(rows(3)), 1 / 64, rtol=1e-5)


@pytest.mark.slow
def test_many_shapes_keep_a_bounded_number_of_programs():
    exe = tw.compile(products("n", 1), cache=False)
    for n in range(1, 2 * KEPT):
        assert exe(rows(n)).shape == (n, 64)
    assert len(exe._kept.values()) == KEPT


def test_many_shapes_keep_bounded_memory():
    one = tw.compile(products(256, 1), cache=False).peak_bytes
    exe = tw.compile(products("n", 1), cache=False, memory_limit=5 * one)
    for n in range(253, 257):
        exe(rows(n))
    assert 1 <= len(exe._kept.values()) <= 2


@pytest.mark.slow
def test_new_shapes_from_many_threads():
    exe = tw.compile(products("n", 1), cache=False)
    wrong = []

    def work(seed):
        try:
            for i in range(8):
                n = 1 + (5 * i + 3 * seed) % 25
                np.testing.assert_allclose(
                    exe(rows(n)), np.full((n, 64), 1 / 64), rtol=1e-5
                )
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
