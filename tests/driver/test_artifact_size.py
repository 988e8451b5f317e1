"""What an artifact has of weights: each once, and the same model comes back."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

import tilewright as tw
from tilewright.driver import constants
from tilewright.driver.constants import ConstantPool, PackedWeight
from tilewright.runtime import packed
from tilewright.runtime.executable import Executable
from tilewright.runtime.model import CompiledModel, NativeStep, Tensor, ValueSlot
from tilewright.runtime.own_constants import with_own_constants
from tilewright.runtime.packing import Packing, PackingPart
from tilewright.runtime.ranged import RangedExecutable

RESIDUAL = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[{batch}, 64, 12, 12] x) => (float[{batch}, 64, 12, 12] y) {{
  a = Conv<pads=[1,1,1,1]>(x, v)
  b = Relu(a)
  c = Conv<pads=[1,1,1,1]>(b, w)
  d = Add(c, x)
  y = Relu(d)
}}
"""
TIED = """
<ir_version: 10, opset_import: ["" : 21]>
g (int64[4] tokens) => (float[4, 270] y) {
  x = Gather(table, tokens)
  h = Tanh(x)
  y = Gemm<transB=1>(h, table)
}
"""
APART = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[48, 96] x, float[2, 48] z) => (float[48, 96] y, float[2, 96] u) {
  y = MatMul(x, w)
  t = Tanh(z)
  u = MatMul(t, v)
}
"""

DENSE = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[n, 96] x) => (float[n, 48] y) {
  h = MatMul(x, w)
  t = Tanh(h)
  y = MatMul(t, v)
}
"""


def model(text: str, **weights: tuple[int, ...]) -> tuple[Any, int]:
    """A model with random weights, and their bytes."""
    rng = np.random.default_rng(len(text))
    made = onnx.parser.parse_model(text)
    data = {n: rng.standard_normal(s).astype(np.float32) for n, s in weights.items()}
    made.graph.initializer.extend(
        numpy_helper.from_array(a, n) for n, a in data.items()
    )
    return made, sum(a.nbytes for a in data.values())


def in_two(length: int) -> Packing:
    """The first elements, and those again with what follows."""
    parts = (
        PackingPart((n,), (0,), (1,), (), ((0, at),), (1,))
        for at, n in ((0, length), (length, (1 << 13) - length))
    )
    return Packing(tuple(parts))


def residual(batch: int | str = 1) -> tuple[Any, int]:
    shape = (64, 64, 3, 3)
    return model(RESIDUAL.format(batch=batch), v=shape, w=shape)


def stored(path: Path) -> int:
    with zipfile.ZipFile(path) as archive:
        return archive.getinfo("constants.bin").file_size


def same(made: Any, path: Path, *inputs: Any) -> None:
    """The file is loaded as what was saved, and writes the same file."""
    loaded = tw.load(path)
    np.testing.assert_array_equal(loaded(*inputs), made(*inputs))
    again = path.with_suffix(".again.tw")
    loaded.save(again)
    assert again.read_bytes() == path.read_bytes()


def test_filters_of_winograd_are_stored_as_they_were(tmp_path: Path) -> None:
    source, weights = residual()
    made = tw.compile(source, cache=False)
    path = tmp_path / "m.tw"
    made.save(path)
    # In memory they are transformed, and the file is no larger for it.
    assert len(made.model.constants) == 16 * weights // 9
    assert len(made.model.packed) == 2
    assert stored(path) == made.model.held.stored_bytes() == weights
    loaded = tw.load(path)
    assert isinstance(loaded, Executable)
    np.testing.assert_array_equal(loaded.model.constants, made.model.constants)
    same(
        made,
        path,
        np.random.default_rng(1).standard_normal((1, 64, 12, 12), np.float32),
    )


def test_models_for_a_range_of_shapes_too(tmp_path: Path) -> None:
    source, weights = residual("n")
    made = tw.compile(source, dims={"n": (1, 2)}, jit=False, cache=False)
    assert isinstance(made, RangedExecutable)
    path = tmp_path / "m.tw"
    made.save(path)
    assert all(m.packed for m in made.model.models)
    assert stored(path) <= weights + 4096
    same(
        made,
        path,
        np.random.default_rng(1).standard_normal((2, 64, 12, 12), np.float32),
    )


def test_a_weight_that_is_read_as_it_is_and_packed_is_stored_once(
    tmp_path: Path,
) -> None:
    source, weights = model(TIED, table=(270, 64))
    made = tw.compile(source, cache=False)
    path = tmp_path / "m.tw"
    made.save(path)
    assert len(made.model.constants) >= 2 * weights
    assert not made.model.weights  # it is among the constants
    assert weights <= stored(path) < weights + 4096
    same(made, path, np.array([3, 0, 269, 7]))


def test_what_is_packed_to_about_its_size_is_stored_packed(tmp_path: Path) -> None:
    """So it is mapped."""
    source, weights = model(APART, w=(96, 96), v=(48, 96))
    made = tw.compile(source, cache=False)
    path = tmp_path / "m.tw"
    made.save(path)
    assert not made.model.packed
    assert weights <= stored(path) == len(made.model.constants) < 1.1 * weights


@pytest.mark.parametrize(
    ("copies", "plain", "packed", "kept"),
    [
        (1, False, 0, 0),  # as large as the weight
        (2, False, 2, 1),  # two kernels read it in different orders
        (1, True, 1, 0),  # another one as it is
        (8, False, 8, 1),
        (9, False, 0, 0),  # a file that asks for so much memory would look damaged
    ],
)
def test_packing_again_has_to_be_worth_it(
    copies: int, plain: bool, packed: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = np.arange(1 << 13, dtype=np.float32)

    def pool() -> ConstantPool:
        made = ConstantPool()
        if plain:
            made.place_array(weight)
        for n in range(copies):
            made.place_packed(PackedWeight(weight, in_two(n + 1), "float32"))
        return made

    held = pool().held()
    assert (len(held.packed), len(held.weights)) == (packed, kept)
    monkeypatch.setattr(constants, "WORTH", 8.0)
    assert not pool().held().packed
    monkeypatch.undo()
    monkeypatch.setattr(constants, "LEAST", 8 * weight.nbytes)
    assert not pool().held().packed


def test_a_library_has_constants_as_its_kernels_read_them(tmp_path: Path) -> None:
    source, weights = residual()
    made = tw.compile_library(source, tmp_path / "libm.o")
    assert made.described.constants == 16 * weights // 9


def test_a_cached_model_is_mapped_and_saved_as_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    source, _ = residual()
    path, first, second = (tmp_path / n for n in ("m.onnx", "first.tw", "second.tw"))
    onnx.save(source, path)
    made = tw.compile(path, mcpu="x86-64-v3", threads=1)
    made.save(first)
    monkeypatch.delattr(packed, "_pack")
    found = tw.compile(path, mcpu="x86-64-v3", threads=1)
    assert len(found.model.packed) == 2
    found.save(second)
    assert second.read_bytes() == first.read_bytes()


@pytest.mark.parametrize("dims", [{"n": (1, 20)}, {"n": [1, 9]}], ids=repr)
def test_one_shape_of_a_range_is_stored_with_its_own_constants(
    tmp_path: Path, dims: Any
) -> None:
    """Shared code, and code for one shape; saved from what was compiled and from what was
    loaded."""
    source, weights = model(DENSE, w=(96, 96), v=(96, 48))
    made = tw.compile(source, dims=dims, jit=False, cache=False, mcpu="x86-64-v3")
    assert isinstance(made, RangedExecutable)
    made.save(tmp_path / "range.tw")
    loaded = tw.load(tmp_path / "range.tw")
    assert isinstance(loaded, RangedExecutable)
    assert len(made.model.held.block) > 1.5 * weights
    for n in (1, 9):
        x = np.random.default_rng(n).standard_normal((n, 96), np.float32)
        for number, of in enumerate((made, loaded)):
            one, path = of.at({"n": n}), tmp_path / f"{n}_{number}.tw"
            one.save(path)
            assert weights <= stored(path) <= 1.3 * weights
            same(one, path, x)


def test_what_other_codes_of_a_range_read_is_left_out() -> None:
    """Constants move together; a packed one whose weight another code reads has it apart."""
    rng = np.random.default_rng(0)
    weights = [
        rng.standard_normal(length).astype(np.float32) for length in (1 << 13, 40, 6)
    ]
    pool = ConstantPool()
    places = [pool.place_array(w) for w in weights]
    first, second = (
        pool.place_packed(PackedWeight(weights[0], in_two(n), "float32"))
        for n in (1, 2)
    )

    def of(*slots: tuple[int, int]) -> CompiledModel:
        values = tuple(
            ValueSlot("constant", at, Tensor("c", "float32", (length,)))
            for at, length in slots
        )
        made = CompiledModel((), (), (NativeStep("f", values, ()),))
        held = pool.held()
        return replace(made.with_constants(held), shares_constants=True)

    size = in_two(2).size
    whole = of((places[2], 6), (second, size), (places[1], 40), (places[2], 6))
    own = with_own_constants(whole)
    block = own.constants
    assert len(block) == 192 + 64 + 4 * size
    (step,) = own.steps
    assert isinstance(step, NativeStep)
    for before, after in zip(whole.slots, own.slots, strict=True):
        n = before.tensor.nbytes
        np.testing.assert_array_equal(
            whole.constants[before.at : before.at + n], block[after.at : after.at + n]
        )
    (one,) = own.packed
    assert (one.at, one.weight) == (256, -1)
    np.testing.assert_array_equal(own.weights[0].view(np.float32), weights[0])
    both = with_own_constants(of((first, in_two(1).size), (places[0], 1 << 13)))
    assert [(p.at, p.weight) for p in both.packed] == [(1 << 15, 0)]
    assert not both.weights
    assert with_own_constants(own) is own
