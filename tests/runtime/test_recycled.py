"""Large outputs: memory is used again once nobody holds it, and never before."""

import threading

import numpy as np
import pytest

import tilewright as tw
from tilewright.base.dtypes import float32
from tilewright.base.errors import MemoryLimitError
from tilewright.loops.lower import lower
from tilewright.operators import Buffer, map_
from tilewright.runtime import buffer
from tilewright.runtime.buffer import address

SHAPE = (300, 1000)


@pytest.fixture(scope="module")
def double():
    x, y = (Buffer(name, SHAPE, float32) for name in "xy")
    twice = map_("twice", y, lambda i, j: x[i, j] * 2.0)
    return tw.compile(lower("twice", [twice], params=[x, y], outputs=[y]), threads=1)


def test_memory_that_nobody_holds_is_used_again():
    new = buffer.fresh(2 << 20)
    one, two = new(), new()
    places = {address(one), address(two)}
    assert len(places) == 2
    del one, two
    assert {address(a) for a in (new(), new())} <= places


def test_memory_that_somebody_holds_is_not():
    new = buffer.fresh(2 << 20)
    held = [new()[5:9] for _ in range(6)]
    assert len({address(a) for a in held}) == 6
    assert address(new()) not in {address(a) - 5 for a in held}


def test_small_memory_is_left_to_the_allocator():
    assert not isinstance(buffer.fresh(1000), buffer.RecycledMemory)


def test_results_keep_their_values(double):
    inputs = [np.full(SHAPE, n, np.float32) for n in range(6)]
    results = [double(x) for x in inputs]
    view = double(np.full(SHAPE, 50, np.float32))[2:3].T
    for _ in range(4):
        double(np.full(SHAPE, -1, np.float32))
    assert [float(y.min()) for y in results] == [2.0 * n for n in range(6)]
    assert view.min() == view.max() == 100.0


def torch_of(y):
    return pytest.importorskip("torch").from_numpy(y)[3:5]


HOLDERS = {
    "memoryview": memoryview,
    "iterator": iter,
    "bytes": lambda y: memoryview(y).cast("B")[4000:8000].cast("f"),
    "dlpack": np.from_dlpack,
    "torch": torch_of,
    "another dtype": lambda y: y.view(np.int32).view(np.float32)[::7],
    "record": lambda y: y.view([("field", np.float32)])["field"],
    "memory around": lambda y: np.frombuffer(
        y.base, np.float32, 10, y.ctypes.data - y.base.ctypes.data
    ),
    "strides": lambda y: np.lib.stride_tricks.as_strided(y, (4, 4), (4, 4)),
    "ctypes": np.ctypeslib.as_ctypes,
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_whatever_holds_a_result_keeps_its_values(double, holder):
    held = HOLDERS[holder](double(np.full(SHAPE, 3, np.float32)))
    for value in (-1, -2, -3, -4):
        double(np.full(SHAPE, value, np.float32))
    found = np.asarray(next(held) if holder == "iterator" else held, np.float32)
    assert found.min() == found.max() == 6.0


def test_a_result_as_the_next_input(double):
    x = np.ones(SHAPE, np.float32)
    for _ in range(8):
        x = double(x)
    assert x.min() == x.max() == 256.0


def test_many_threads_never_share_a_result(double):
    wrong = []

    def work(seed):
        for n in range(40):
            value = np.float32(seed * 1000 + n)
            kept = [double(np.full(SHAPE, value, np.float32)) for _ in range(3)]
            wrong.extend(
                1 for y in kept if y.min() != 2 * value or y.max() != 2 * value
            )

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_memory_that_the_system_does_not_have_is_an_error_of_ours():
    with pytest.raises(MemoryLimitError, match="the system cannot provide"):
        buffer.RecycledMemory(1 << 62)()
