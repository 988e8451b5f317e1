"""The table of limits: each has a default, a variable, a clear refusal, and holds."""

import mmap
import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

import tilewright as tw
from tests.robust.models import FLOAT, calling, info, model, node
from tilewright.base import limits
from tilewright.base.errors import LimitError, MemoryLimitError, ModelError
from tilewright.driver.compilation import optimize
from tilewright.driver.options import Options
from tilewright.driver.sources import import_model
from tilewright.expr.nodes import INDEX, Buffer, Var
from tilewright.loops.nodes import Kernel, Store, loop
from tilewright.targets.registry import target as find_target

VECTOR = {"x": (FLOAT, [4])}
RELU = model([node("Relu", ["x"], ["y"], "n")], VECTOR)
X = np.array([-1, 2, -3, 4], np.float32)


def test_the_page_has_the_table():
    page = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()
    rows = re.findall(
        r"^\| ([^|]+) \| `(TILEWRIGHT_\w+)`[^|]* \| ([^|]+) \|", page, re.MULTILINE
    )
    assert [row[:2] for row in rows] == [(x.what, x.flag.name) for x in limits.TABLE]
    for (*_, default), limit in zip(rows, limits.TABLE, strict=True):
        value = limit.flag.default
        numbers = default.replace(",", "").replace("4 GiB", str(4 << 30))
        assert value is None or numbers.startswith(str(value))


@pytest.mark.parametrize("as_path", [False, True])
def test_bytes_of_a_file(as_path, monkeypatch, tmp_path):
    source = RELU.SerializeToString()
    monkeypatch.setenv("TILEWRIGHT_FILE_LIMIT", str(len(source)))
    if as_path:
        (tmp_path / "m.onnx").write_bytes(source)
    given = tmp_path / "m.onnx" if as_path else source
    assert tw.compile(given)(X).tolist() == [0, 2, 0, 4]
    monkeypatch.setenv("TILEWRIGHT_FILE_LIMIT", str(len(source) - 1))
    with pytest.raises(
        MemoryLimitError, match=r"limit for files of .*TILEWRIGHT_FILE_LIMIT"
    ):
        tw.compile(given)  # even where the cache has it


def test_nodes(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_NODE_LIMIT", "3")
    chain = [node("Relu", ["y" if n == 3 else f"{n}"], [f"{n + 1}"]) for n in range(4)]
    with pytest.raises(
        ModelError, match=r"more than 3 nodes.*TILEWRIGHT_NODE_LIMIT"
    ) as caught:
        tw.compile(model(chain, VECTOR), cache=False)
    assert caught.value.code == "TW-NODES"


def test_depth(monkeypatch):
    bodies = [[node(f"F{n + 1}", ["x"], ["y"], domain="f")] for n in range(5)]
    source = calling([*bodies, [node("Relu", ["x"], ["y"])]])
    monkeypatch.setenv("TILEWRIGHT_DEPTH_LIMIT", "6")
    assert tw.compile(source, cache=False)(X[:2]).tolist() == [0, 2]
    monkeypatch.setenv("TILEWRIGHT_DEPTH_LIMIT", "5")
    with pytest.raises(
        ModelError, match=r"more than 5 deep.*TILEWRIGHT_DEPTH_LIMIT"
    ) as caught:
        tw.compile(source, cache=False)
    assert caught.value.code == "TW-DEPTH"


def test_depth_of_subgraphs(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_DEPTH_LIMIT", "3")

    def nested(depth):
        if not depth:
            return [node("Relu", ["x"], ["y"])]
        graph = helper.make_graph(nested(depth - 1), "g", [], [info("y")])
        return [node("If", ["c"], ["y"], then_branch=graph, else_branch=graph)]

    inputs = {**VECTOR, "c": (9, [])}
    with pytest.raises(ModelError, match="more than 3 deep"):
        tw.compile(model(nested(4), inputs), cache=False)


def graph_of(source):
    options = Options(cache=False)
    with limits.compilation():
        return optimize(import_model(source, (), options), options, find_target("cpu"))


def folded(source):
    """Whether nothing is left to compute."""
    return not graph_of(source).operations


def test_bytes_of_folded_constants(monkeypatch):
    weight = np.linspace(0, 1, 2**14, dtype=np.float32).reshape(128, 128)
    source = model([node("Transpose", ["w"], ["y"])], {}, constants={"w": weight})
    assert folded(source)
    monkeypatch.setenv("TILEWRIGHT_FOLD_LIMIT", "100000")  # the copy has 65,536
    assert folded(source)
    twice = [node("Transpose", ["w"], ["t"]), node("Exp", ["t"], ["y"])]
    source = model(twice, {}, constants={"w": weight})
    assert not folded(
        source
    )  # both together have more; what is left is computed at run time
    np.testing.assert_allclose(
        tw.compile(source, cache=False)(), np.exp(weight.T), 1e-5
    )


def test_bytes_of_tables(monkeypatch):
    sizes = {"s": np.array([1, 1, 1, 1000])}
    resize = node("Resize", ["x", "", "", "s"], ["y"], "n", mode="cubic")
    source = model([resize], {"x": (FLOAT, [1, 1, 1, 10])}, constants=sizes)
    tw.compile(source, cache=False)
    monkeypatch.setenv("TILEWRIGHT_FOLD_LIMIT", "64K")
    with pytest.raises(
        MemoryLimitError, match=r"'n'.*tables of axis 3.*TILEWRIGHT_FOLD_LIMIT"
    ):
        tw.compile(source, cache=False)


WORK = {
    "a product": (
        node("MatMul", ["a", "a"], ["y"]),
        {"a": np.eye(64, dtype=np.float32)},
        2 * 64**3,
    ),
    "samples": (
        node("RoiAlign", ["x", "r", "b"], ["y"], output_height=8, output_width=8,
             sampling_ratio=50),
        {"x": np.ones((1, 1, 4, 4), np.float32), "r": np.array([[0, 0, 3, 3]], np.float32),
         "b": np.array([0])},
        64 * 2500 * 1000,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WORK)
def test_work_of_folding(case, monkeypatch):
    made, constants, operations = WORK[case]
    source = model([made], {}, constants=constants)
    monkeypatch.setenv("TILEWRIGHT_FOLD_WORK", str(operations // 2))
    assert not folded(source)
    expected = tw.compile(source, cache=False)()
    if operations < 10**7:  # the reference of the other one takes a second
        monkeypatch.setenv("TILEWRIGHT_FOLD_WORK", str(operations))
        assert folded(source)
        np.testing.assert_array_equal(tw.compile(source, cache=False)(), expected)


def test_work_that_nothing_bounds_is_left_to_run_time():
    """The number of samples of a region is its size, which is data."""
    constants = {"r": np.array([[0, 0, 1e9, 1e9]], np.float32), "b": np.array([0]),
                 "x": np.ones((1, 1, 4, 4), np.float32)}  # fmt: skip
    made = node("RoiAlign", ["x", "r", "b"], ["y"], output_height=1, output_width=1)
    before = time.process_time()
    assert not folded(model([made], {}, constants=constants))
    assert time.process_time() - before < 60  # it would take days


def test_instructions_of_a_kernel(monkeypatch):
    x, y = (Buffer(n, (512,), tw.dtype_of("float32")) for n in "xy")
    i = Var("i", INDEX)
    kernel = Kernel("k", (x, y), (y,), loop(i, 512, Store(y, (i,), x[i] + 1), "unroll"))
    data = np.ones(512, np.float32)
    assert tw.compile(kernel, cache=False)(data)[7] == 2
    monkeypatch.setenv("TILEWRIGHT_CODE_LIMIT", "600")
    with pytest.raises(
        LimitError, match=r"over 600 instructions.*unroll less"
    ) as caught:
        tw.compile(kernel, cache=False)
    assert caught.value.code == "TW-CODE"
    assert "TILEWRIGHT_CODE_LIMIT" in str(caught.value)


def test_seconds_of_a_compilation(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_COMPILE_SECONDS", "5")
    tw.compile(RELU, cache=False)
    now = time.monotonic()
    monkeypatch.setattr(limits, "time", _Clock(now))
    with pytest.raises(
        LimitError, match=r"over 5 seconds.*TILEWRIGHT_COMPILE_SECONDS"
    ) as caught:
        tw.compile(RELU, cache=False)
    assert caught.value.code == "TW-TIME"


class _Clock:
    """A second goes by at each look."""

    def __init__(self, now):
        self.now = now

    def monotonic(self):
        self.now += 1
        return self.now


def test_memory_of_a_compilation(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_COMPILE_MEMORY", "1G")
    monkeypatch.setattr(limits, "_MEMORY_PERIOD", -1)
    tw.compile(RELU, cache=False)
    grown = iter(range(0, 10**12, 10**8))
    monkeypatch.setattr(limits, "_resident", lambda: next(grown))
    with pytest.raises(MemoryLimitError, match=r"grow by .*TILEWRIGHT_COMPILE_MEMORY"):
        tw.compile(RELU, cache=False)


def test_the_process_is_measured():
    before = limits._resident()
    with mmap.mmap(-1, 1 << 28) as held:  # pages that nothing held before
        held.write(bytes(1 << 28))
        assert limits._resident() - before > 1 << 27


def test_memory_of_a_run():
    with pytest.raises(MemoryLimitError, match=r"a call needs .*limit of 20 "):
        tw.compile(model([node("Relu", ["x"], ["y"])], {"x": (FLOAT, [4])}), cache=False,
                   memory_limit=20)  # fmt: skip


def test_limits_hold_once_for_a_compilation_and_end_with_it():
    with limits.compilation():
        assert limits.fold(3 << 30)
        with limits.compilation():  # a part of the same one
            assert not limits.fold(3 << 30)
        assert not limits.fold(3 << 30)
    with limits.compilation():
        assert limits.fold(3 << 30)
    assert limits.fold(3 << 30) and limits.fold(3 << 30)  # outside, each stands alone
    limits.check()


def test_constants_for_one_of_several_sizes_are_limited_for_themselves():
    with limits.compilation():
        assert limits.fold(3 << 30)
        for _ in range(3):
            with limits.separate_constants():
                assert limits.fold(3 << 30)
                assert not limits.fold(3 << 30)
        assert not limits.fold(3 << 30)  # what was made before them counts again
        with pytest.raises(ZeroDivisionError), limits.separate_constants():
            assert limits.fold(3 << 30) and 1 // 0
        assert limits.fold(1 << 30) and not limits.fold(1)
    with limits.separate_constants():  # outside of a compilation, each stands alone
        assert limits.fold(3 << 30) and limits.fold(3 << 30)


def test_a_model_read_by_another_thread_leaves_the_limits_of_a_compilation_alone():
    def read():
        with limits.compilation():
            assert limits.fold(3 << 30)

    with limits.compilation():
        assert limits.fold(3 << 30)
        other = threading.Thread(target=read)
        other.start()
        other.join()
        assert not limits.fold(3 << 30)


def test_what_python_raises_at_its_own_limits():
    with (
        pytest.raises(MemoryLimitError, match="more memory than is available"),
        limits.compilation(),
    ):
        raise MemoryError
    with (
        pytest.raises(tw.TilewrightError, match="nested too deeply"),
        limits.compilation(),
    ):
        raise RecursionError
    limits.check()


def test_external_weights_count_as_what_a_model_needs(tmp_path):
    tensor = numpy_helper.from_array(np.ones(1000, np.float32), "w")
    source = model([node("Add", ["x", "w"], ["y"])], {"x": (FLOAT, [1000])})
    source.graph.initializer.append(tensor)
    with pytest.raises(MemoryLimitError):
        tw.compile(source, cache=False, memory_limit=3000)
