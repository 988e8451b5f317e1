"""Generators, targets, requirements and Buffers' views."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from tilewright import halide as hl
from tilewright.base.errors import (
    ArtifactError,
    ExecutionError,
    InputError,
)
from tilewright.runtime.loader import link

x, y = hl.vars("x y")
IMAGE = np.arange(12, dtype=np.uint8).reshape(3, 4)


@hl.generator(name="scale")
@hl.alias(scale_by_five={"factor": 5})
class Scale(hl.Generator):
    factor = hl.GeneratorParam(2)
    kind = hl.GeneratorParam(hl.UInt(8))
    image = hl.InputBuffer(hl.UInt(8), 2)
    gain = hl.InputScalar(int)
    result = hl.OutputBuffer(None, 2)

    def configure(self):
        if self.factor > 100:
            self.add_output("mark", hl.OutputScalar(hl.Int(32)))

    def generate(self):
        self.result[x, y] = hl.cast(
            self.kind, self.image[x, y] * self.factor + self.gain
        )
        self.result.vectorize(
            x, self.natural_vector_size(hl.UInt(8)), hl.TailStrategy.GuardWithIf
        )
        if self.factor > 100:
            self.mark = hl.i32(7)
        self.add_requirement(self.gain < 50, "gain is", self.gain)


U8 = {"result.type": "uint8"}


def test_call_gives_the_func():
    f = Scale.call(hl.Buffer(IMAGE), 3, generator_params=U8)
    np.testing.assert_array_equal(f.realize([4, 3]), IMAGE * 2 + 3)
    doubled = hl.Func("doubled")
    doubled[x, y] = f[x, y] * 2
    np.testing.assert_array_equal(doubled.realize([4, 3]), (IMAGE * 2 + 3) * 2)


def test_parameters_change_types_and_values():
    wide = {"kind": "int32", "factor": "30", "result.type": hl.Int(32)}
    f = Scale.call(gain=3, image=hl.Buffer(IMAGE), generator_params=wide)
    found = np.asarray(f.realize([4, 3]))
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, (IMAGE * np.uint8(30)).astype(np.int32) + 3)


def test_a_func_as_an_input_and_more_outputs():
    source = hl.Func("source")
    source[x, y] = hl.u8(x + y)
    f, mark = Scale.call(source, 1, generator_params=U8 | {"factor": 101})
    assert np.asarray(f.realize([2, 1])).tolist() == [[1, 102]]
    assert np.asarray(mark.realize()).item() == 7


def test_by_name_with_arguments_later():
    made = hl.create_callable_from_generator(hl.get_host_target(), "scale_by_five", U8)
    out = np.empty((3, 4), np.uint8)
    made([4, 3])(IMAGE, np.array(2, np.int32), out)
    np.testing.assert_array_equal(out, IMAGE * 5 + 2)


def test_a_requirement():
    with hl.GeneratorContext(hl.get_host_target()):
        made = Scale(U8)
    made.image.set(IMAGE)
    made.gain.set(60)
    with pytest.raises(ExecutionError, match="gain is 60"):
        made.pipeline().realize([4, 3])
    made.gain.set(4)
    np.testing.assert_array_equal(made.pipeline().realize([4, 3]), IMAGE * 2 + 4)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Scale.call(IMAGE, 3), "its type is not known"),
        (lambda: Scale(U8 | {"facto": 3}), "there is no 'facto' among"),
        (lambda: Scale(U8 | {"factor": "two"}), "'two' is not of type int"),
        (lambda: Scale.call(IMAGE, generator_params=U8), "1 input given, 2 expected"),
        (lambda: Scale.call(IMAGE[0], 3, generator_params=U8), "found uint8 of 1"),
        (lambda: hl.create_callable_from_generator(hl.Target(), "s"), "is called 's'"),
        (lambda: hl.Target("x86-64-linux-avx9"), "'avx9' of the target"),
        (
            lambda: Scale.call(
                IMAGE, 3, generator_params={"result.type": "int8"}
            ).name(),
            "types uint8",
        ),
    ],
)
def test_what_does_not_fit(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_targets():
    host = hl.get_host_target()
    assert hl.Target("host") == host and host.supported()
    wide = hl.Target("x86-64-linux-avx512_skylake-avx512-no_asserts")
    avx2 = hl.Target("x86-64-linux").with_feature(hl.TargetFeature.AVX2)
    lanes = [t.natural_vector_size(hl.Float(32)) for t in (wide, avx2, hl.Target())]
    assert lanes == [16, 4, 4]
    assert avx2.with_feature(hl.TargetFeature.AVX).natural_vector_size(hl.UInt(8)) == 32
    assert wide.has_feature(hl.TargetFeature.NoAsserts) and wide.bits == 64
    assert (wide.arch, wide.os) == (hl.TargetArch.X86, hl.TargetOS.Linux)
    assert not hl.Target.validate_target_string("a-b")
    f = hl.Func("f")
    f[x] = x
    np.testing.assert_array_equal(f.realize([3], host), [0, 1, 2])
    if not Path("/proc/driver/nvidia").exists():
        with pytest.raises(ArtifactError, match="device 'cuda'"):
            f.realize([3], host.with_feature(hl.TargetFeature.CUDA))


def test_sizes_of_inputs_are_inferred():
    image, f = hl.ImageParam(hl.Int(32), 1, "image"), hl.Func("f")
    f[x] = image[x - 1] + image[x + 2]
    f.infer_input_bounds([8])
    assert (image.left(), image.width()) == (-1, 11)
    image.get().fill(3)
    assert np.asarray(f.realize([8])).tolist() == [6] * 8
    image.reset()
    with pytest.raises(InputError, match="it has no data"):
        image.get()


def test_texts(tmp_path):
    f = hl.Func("f")
    f[x] = x * 2
    f.set_estimate(x, 0, 8)
    for verb, text in {
        "compile_to_lowered_stmt": "kernel f",
        "compile_to_conceptual_stmt": "produce f",
        "compile_to_llvm_assembly": "define",
        "compile_to_assembly": "ret",
    }.items():
        path = tmp_path / verb
        getattr(f, verb)(str(path), [])
        assert text in path.read_text()


def test_c_functions(tmp_path):
    f = hl.Func("f")
    f[x] = x * 2
    f.set_estimate(x, 0, 8)
    f.compile_to_file(str(tmp_path / "doubled"), [], "twice")
    f.compile_to_header(str(tmp_path / "own.h"), [], "twice")
    f.compile_to_object(str(tmp_path / "twice.o"), [])
    for name, other in (("doubled.h", "own.h"), ("doubled.o", "twice.o")):
        assert (tmp_path / name).read_bytes() == (tmp_path / other).read_bytes()
    out = np.zeros(8, np.int32)
    call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    image = link([(tmp_path / "twice.o").read_bytes()])
    assert call(image.address("twice"))(out.ctypes.data) == 0
    assert out.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    assert "int twice(" in (tmp_path / "own.h").read_text()


def test_params_with_a_range():
    p = hl.Param(hl.Int(32), "p", 3, 0, 9)
    assert (p.get(), p.min_value(), p.max_value()) == (3, 0, 9)
    with pytest.raises(InputError, match=r"10 is not in 0\.\.9"):
        p.set(10)
    assert hl.evaluate(p * 2) == 6


theirs = pytest.importorskip("halide")
VIEWS = {
    "crop": lambda b: b.crop(0, 1, 2),
    "crop all": lambda b: b.crop([(1, 2), (0, 2)]),
    "slice": lambda b: b.slice(1, 2),
    "slice first": lambda b: b.slice(0),
    "embed": lambda b: b.embed(1, 5),
    "add_dimension": lambda b: b.add_dimension(),
    "transpose": lambda b: b.transpose(0, 1),
    "transpose all": lambda b: b.transpose([1, 0]),
    "translate": lambda b: b.translate([2, -3]),
    "sliced": lambda b: b.sliced(0, 3),
    "embedded": lambda b: b.embedded(0),
    "translated": lambda b: b.translated([1, 1]),
    "transposed": lambda b: b.transposed(1, 0),
}


@pytest.mark.parametrize("view", VIEWS)
def test_views(view):
    told = []
    for m in (hl, theirs):
        b = m.Buffer(IMAGE.copy())
        b.translate([0, 1] if view == "crop" else [0, 0])
        made = VIEWS[view](b) or b
        dims = [made.dim(n) for n in range(made.dimensions())]
        values: list[object] = []
        made.for_each_element(
            lambda at, made=made, values=values: values.append((at, made[at]))
        )
        told.append(([(d.min(), d.extent()) for d in dims], sorted(map(str, values))))
    ours, want = told
    assert ours == want


def test_copies_and_questions():
    b = hl.Buffer(IMAGE.copy())
    part = hl.Buffer(hl.UInt(8), [2, 2])
    part.fill(9)
    part.translate([3, 2])
    b.copy_from(part)
    assert b[3, 2] == 9 and b[2, 2] == 10
    assert b.contains([3, 2]) and not b.contains([4, 2]) and part.all_equal(9)
    assert (
        b.size_in_bytes() == 12 and hl.Buffer.make_scalar(hl.Int(16)).dimensions() == 0
    )
    wide = hl.Buffer.make_interleaved(hl.UInt(8), 5, 4, 3)
    assert [wide.dim(n).stride() for n in range(3)] == [3, 15, 1]
    assert hl.Buffer.make_with_shape_of(part).left() == 3
    with pytest.raises(InputError, match="no dimension 2"):
        b.sliced(2)
