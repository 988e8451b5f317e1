"""Quantized networks: products on the machine, bit for bit the CPU's, and near the float model."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import numpy_helper

import tilewright as tw
from tests.targets.loaded import compiler_rooms
from tests.targets.vta.configurations import CONFIGURATIONS
from tests.targets.vta.networks import Network, bound_to
from tilewright.base.errors import ArtifactError, InputError
from tilewright.cli import resnet
from tilewright.frontends.onnx import load
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph.interp import evaluate
from tilewright.graph.nodes import Graph
from tilewright.graph.quantize.affine import power_of_two, whole_byte
from tilewright.runtime import devices
from tilewright.runtime.model import HostFallbackStep, LaunchStep, NativeStep
from tilewright.targets import vta
from tilewright.targets.vta.device import CLOCK, DeviceCode
from tilewright.targets.vta.partition import partition
from tilewright.targets.vta.scales import dequantize, quantize

SMALL = """
<ir_version: 10, opset_import: ["" : 21]>
small (float[1, 3, 12, 12] image) => (float[1, 10] y)
<int64[2] shape = {1, 288}> {
  a = Conv<pads=[1,1,1,1]>(image, w1, b1)
  ar = Relu(a)
  p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(ar)
  b = Conv<pads=[1,1,1,1]>(p, w2, b2)
  s = Add(b, p)
  sr = Relu(s)
  c = Conv<strides=[2,2]>(sr, w3)
  m = Conv<pads=[1,1,1,1], group=32>(c, w6)
  d = Conv<pads=[1,1,1,1], group=4>(m, w4)
  f = Reshape(d, shape)
  y = Gemm<transB=1>(f, w5, b5)
}
"""
WEIGHTS = {
    "w1": (20, 3, 3, 3),
    "b1": (20,),
    "w2": (20, 20, 3, 3),
    "b2": (20,),
    "w3": (32, 20, 1, 1),
    "w4": (32, 8, 3, 3),
    "w6": (32, 1, 3, 3),
    "w5": (10, 288),
    "b5": (10,),
}


@pytest.fixture(scope="module")
def graph() -> Graph:
    model = onnx.parser.parse_model(SMALL)
    rng = np.random.default_rng(0)
    for name, shape in WEIGHTS.items():
        scale = 1 / np.sqrt(max(1, np.prod(shape[1:])))
        array = (rng.standard_normal(shape) * scale).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return load(model)


def images(count: int) -> list[dict[str, NDArray]]:
    rng = np.random.default_rng(1)
    return [
        {"image": rng.standard_normal((1, 3, 12, 12), np.float32)} for _ in range(count)
    ]


def test_the_machine_computes_what_the_cpu_does(graph: Graph) -> None:
    *samples, image = images(3)
    network = Network(graph, samples)
    (y,) = network(image)
    (same,) = network.on_cpu(image)
    (alone,) = Network(graph, samples, threads=1)(image)
    np.testing.assert_array_equal(y, same)
    np.testing.assert_array_equal(y, alone)
    (real,) = evaluate(graph, image).values()
    assert np.corrcoef(y.ravel(), real.ravel())[0, 1] > 0.98
    kinds = [launch.name.split("_")[0] for launch in network.exe.model.launches]
    assert kinds == ["Conv", "MaxPool", "Conv", "Conv", "Conv", "Gemm"]


def test_it_is_one_executable(graph: Graph, tmp_path: Path) -> None:
    """Compiled, saved, loaded and profiled like any other; the rest of it is native code."""
    *samples, image = images(3)
    exe = tw.compile(graph, target="vta", samples=samples)
    assert not any(isinstance(s, HostFallbackStep) for s in exe.model.steps)
    np.testing.assert_array_equal(exe(image), Network(graph, samples)(image)[0])
    exe.save(tmp_path / "m.tw")
    again = tw.load(tmp_path / "m.tw")
    np.testing.assert_array_equal(again(image), exe(image))
    profile = again.profile(image, repeat=2)
    assert [r.name for r in profile.simulated] == [s.name for s in exe.model.launches]
    assert all(r.cycles and r.clock == CLOCK for r in profile.simulated)
    assert any(r.kind == "native" for r in profile.rows)
    again = tw.compile(graph, target="vta", scales=Network(graph, samples).saved)
    np.testing.assert_array_equal(again(image), exe(image))


def test_layers_pass_tiles_to_one_another(graph: Graph) -> None:
    """From the first layer to the fifth nothing is copied but the image and the result."""
    network = Network(graph, images(1))
    steps = [s for s in network.exe.model.steps if not isinstance(s, NativeStep)]
    kinds = "".join("L" if isinstance(s, LaunchStep) else "c" for s in steps)
    assert kinds == "cLLLLLccLc"


def test_loading_needs_no_compiler(graph: Graph, tmp_path: Path) -> None:
    tw.compile(graph, target="vta", samples=images(1)).save(tmp_path / "m.tw")
    assert compiler_rooms(tmp_path / "m.tw") == []


def test_the_package_keeps_its_names() -> None:
    """No module that is imported later hides a function of the package."""
    assert all(not isinstance(getattr(vta, name), ModuleType) for name in vta.__all__)


def test_code_that_is_no_program_is_refused(graph: Graph) -> None:
    code = Network(graph, images(1)).exe.model.programs[0]
    assert DeviceCode.from_bytes(code).to_bytes() == code
    for wrong in (
        b"",
        b"{}\n",
        code[:-1],
        code.replace(b'"LOG_BLOCK": 4', b'"LOG_BLOCK": 99'),
        code.replace(b'"dram": ', b'"dram": 9999999999999'),
        code.replace(b'"dram": ', b'"dram": 1, "dram_": '),
    ):
        with pytest.raises(ArtifactError, match="program is"):
            devices.find("vta").load(wrong)


@pytest.mark.slow
def test_a_resnet_50() -> None:
    """All of its convolutions and pooling; batch normalization is folded into the weights."""
    graph = load(resnet.build())
    image = {graph.inputs[0].name: resnet.image()}
    network = Network(graph, [image])
    (y,) = network(image)
    (same,) = network.on_cpu(image)
    np.testing.assert_array_equal(y, same)
    names = [launch.name.split("_")[0] for launch in network.exe.model.launches]
    assert (names.count("Conv"), names.count("MaxPool")) == (53, 1)
    (real,) = evaluate(graph, image).values()
    assert np.corrcoef(y.ravel(), real.ravel())[0, 1] > 0.95


def test_the_report_says_what_runs_where(graph: Graph) -> None:
    found = Network(graph, images(1)).placements
    assert [(p.device, p.operators) for p in found] == [
        ("vta", "Conv+Relu"),
        ("vta", "MaxPool"),
        ("vta", "Conv+Add+Relu"),
        ("vta", "Conv"),
        ("vta", "Conv"),
        ("host", "Conv"),
        ("host", "Reshape"),
        ("vta", "Gemm"),
    ]
    assert found[5].note == "it has 4 groups"
    assert found[0].note.startswith("16->32 3x3, shift")


REFUSED = {
    "Conv(x, v)": "its weights are not constant",
    "Conv<pads=[0,16,0,0]>(x, w)": "it has more than 15 columns of padding",
    "Conv<pads=[0,-1,0,0]>(x, w)": "its padding is negative",
    "Sigmoid(x)": "Sigmoid is neither a product nor a pooling",
    "Relu(x)": "it follows no product",
}


@pytest.mark.parametrize("call", REFUSED)
def test_what_stays_on_the_cpu(call: str) -> None:
    model = onnx.parser.parse_model(f"""
    <ir_version: 10, opset_import: ["" : 21]>
    one (float[1, 2, 6, 6] x, float[2, 2, 3, 3] v) => (float[1, 2, ?, ?] y) {{ y = {call} }}
    """)
    w = np.ones((2, 2, 3, 3), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    (part,) = partition(load(model))
    assert (part.main, part.why) == (None, REFUSED[call])


WINDOWS = (
    "Conv<dilations=[2,2], pads=[2,2,2,2]>(x, w)",
    "Conv<pads=[1,2,0,1], strides=[2,1]>(x, w)",
    "Conv<pads=[4,3,5,6]>(x, w)",
    'Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x, w)',
    'Conv<auto_pad="SAME_LOWER">(x, w)',
    'Conv<auto_pad="VALID", strides=[3,3]>(x, w)',
    "Conv<group=2, pads=[1,0,1,2]>(x, u)",
    "MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(x)",
    "MaxPool<kernel_shape=[2,2], strides=[3,2], ceil_mode=1>(x)",
    'MaxPool<kernel_shape=[3,2], auto_pad="SAME_UPPER", dilations=[1,2]>(x)',
)


@pytest.mark.sampled(6)  # a convolution in groups and one that is dilated
@pytest.mark.parametrize("call", WINDOWS)
def test_any_window(call: str) -> None:
    rng = np.random.default_rng(0)
    shapes = {"w": (2, 2, 3, 3), "u": (2, 1, 3, 3)}
    weights = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    graph = bound_to(
        f"one (float[1, 2, 7, 6] x) => (float[1, 2, ?, ?] y) {{ y = {call} }}",
        **weights,
    )
    inputs = {"x": rng.standard_normal((1, 2, 7, 6)).astype(np.float32) - 1}
    network = near(graph, inputs)
    assert network.why == [""]
    (y,), (same,) = network(inputs), network.on_cpu(inputs)
    np.testing.assert_array_equal(y, same)


LARGEST = {  # -> rows of 31 columns, and what one more needs
    "MaxPool<kernel_shape=[{rows}, 31]>(x)": (66, "2078 elements of vta.acc"),
    "Conv(x, w)": (33, "1054 elements of vta.wgt"),
    "Conv<group=2>(x, u)": (32, "2051 elements of vta.acc"),
}


@pytest.mark.parametrize(
    ("call", "more"),
    [
        # What fits of the last of them is simulated for seconds.
        pytest.param(
            call, more, marks=[pytest.mark.slow] * (not more and "group" in call)
        )
        for call in LARGEST
        for more in (0, 1)
    ],
)
def test_the_largest_window(call: str, more: int) -> None:
    """One more row of the window does not fit the chip, and the layer stays on the CPU."""
    rng = np.random.default_rng(0)
    most, needed = LARGEST[call]
    rows = most + more
    text = f"y = {call.format(rows=rows)}"
    graph = bound_to(
        f"one (float[1, 2, {rows + 1}, 33] x) => (float[1, 2, 2, 3] y) {{ {text} }}",
        w=rng.standard_normal((2, 2, rows, 31)).astype(np.float32),
        u=rng.standard_normal((2, 1, rows, 31)).astype(np.float32),
    )
    image = rng.standard_normal((1, 2, rows + 1, 33)).astype(np.float32)
    (why,) = near(graph, {"x": image}).why
    assert why.startswith(f"one window needs {needed}" if more else "")
    assert bool(why) == bool(more)


def test_what_cannot_be_quantized(graph: Graph) -> None:
    with pytest.raises(InputError, match="no samples"):
        tw.compile(graph, target="vta")
    with pytest.raises(InputError, match="samples, by: target 'cpu' does not quantize"):
        tw.compile(graph, samples=images(1), by="shift")
    scales = Network(graph, images(1)).saved
    with pytest.raises(InputError, match="cannot be combined with scales"):
        tw.compile(graph, target="vta", scales=scales, samples=images(1))
    with pytest.raises(InputError, match=r"scales: KeyError"):
        tw.compile(graph, target="vta", scales={"image": 1.0})


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["1x8", "1x32", "2x16", "4x4", "1x16 small"])
def test_other_machines(name: str) -> None:
    """Three images: tiles of two or four at a time are filled up."""
    rng = np.random.default_rng(0)
    graph = bound_to(
        """o (float[3, 10, 6, 6] x) => (float[3, 5] y) {
          a = Conv<pads=[1,1,1,1]>(x, w)
          b = Relu(a)
          c = MaxPool<kernel_shape=[2,2], strides=[2,2]>(b)
          d = Conv<group=12>(c, u)
          e = Flatten(d)
          y = Gemm(e, v)
        }""",
        w=rng.standard_normal((12, 10, 3, 3)).astype(np.float32) / 9,
        u=rng.standard_normal((12, 1, 2, 2)).astype(np.float32),
        v=rng.standard_normal((48, 5)).astype(np.float32),
    )
    x = {"x": rng.standard_normal((3, 10, 6, 6)).astype(np.float32)}
    network = Network(graph, [x], config=CONFIGURATIONS[name])
    assert [p.device for p in network.placements] == 3 * ["vta"] + ["host", "vta"]
    (y,), (same,) = network(x), network.on_cpu(x)
    np.testing.assert_array_equal(y, same)
    (real,) = evaluate(graph, x).values()
    np.testing.assert_allclose(y, real, atol=0.05 * np.abs(real).max())


def test_batches() -> None:
    """Rows of a matrix are points of an image; a convolution does one image after the other."""
    model = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 21]>
    two (float[2, 1, 4, 4] x, float[2, 3, 40] m) => (float[2, 1, 4, 4] y, float[2, 3, 20] n) {
      y = Conv(x, w)
      n = MatMul(m, v)
    }
    """)
    rng = np.random.default_rng(0)
    for name, shape in {"w": (1, 1, 1, 1), "v": (40, 20)}.items():
        array = rng.standard_normal(shape, dtype=np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    graph = load(model)
    inputs = {
        "x": np.ones((2, 1, 4, 4), np.float32),
        "m": rng.random((2, 3, 40), np.float32),
    }
    network = Network(graph, [inputs])
    model = network.exe.model
    assert (len(model.launches), len(model.programs)) == (3, 2)
    for mine, real in zip(
        network(inputs), evaluate(graph, inputs).values(), strict=True
    ):
        np.testing.assert_allclose(mine, real, atol=0.05 * np.abs(real).max())


def test_bytes_round_halves_up_and_come_back() -> None:
    exact = np.arange(-128, 128) / 16
    np.testing.assert_array_equal(dequantize(quantize(exact, 1 / 16), 1 / 16), exact)
    np.testing.assert_array_equal(
        quantize(np.array([0.5, -0.5, 1.5, 1e9]), 1), [1, 0, 2, 127]
    )
    assert [power_of_two(x) for x in (127.0, 128.0, 1.0, 0.0)] == [1, 2, 1 / 64, 1]
    assert [whole_byte(x) for x in (127.0, 1.0, 0.0)] == [1, 1 / 127, 1]


@given(st.floats(1e-20, 1e20))
def test_bytes_come_back_from_any_unit(largest: float) -> None:
    all_of_them = np.arange(-128, 128).astype(np.int8)
    for unit in (power_of_two(largest), whole_byte(largest)):
        np.testing.assert_array_equal(
            quantize(dequantize(all_of_them, unit), unit), all_of_them
        )


def near(graph: Graph, inputs: dict[str, NDArray], by: str = "shift") -> Network:
    """The network, whose outputs are near to those of the graph."""
    network = Network(graph, [inputs], by=by)
    expected = evaluate(graph, inputs, fallback=OnnxFallback())
    for mine, real in zip(network(inputs), expected.values(), strict=True):
        assert np.shape(mine) == np.shape(real)
        np.testing.assert_allclose(mine, real, atol=0.05 * np.abs(real).max())
    return network


BIASES = {
    (): True,
    (1,): True,
    (16,): True,
    (1, 16): True,
    (16, 1): False,
    (16, 16): False,
}


@pytest.mark.parametrize(
    "shape", BIASES, ids=lambda s: "x".join(map(str, s)) or "scalar"
)
def test_a_bias_is_a_number_per_column(shape: tuple[int, ...]) -> None:
    """As many rows as columns: [16, 1] would fit both."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((8, 16)).astype(np.float32)
    b = np.asarray(3 * rng.standard_normal(shape), np.float32)
    graph = bound_to(
        "g (float[16, 8] x) => (float[16, 16] y) { y = Gemm(x, w, b) }", w=w, b=b
    )
    network = near(graph, {"x": rng.standard_normal((16, 8)).astype(np.float32)})
    assert network.why == ["" if BIASES[shape] else f"its bias is {list(shape)}"]


@pytest.mark.parametrize("shape", [(1, 4, 1, 1), (4, 1, 1), (1, 4, 5, 5)])
def test_what_is_added_has_the_shape_of_the_product(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    text = f"""r (float[1, 3, 5, 5] x, float{list(shape)} z) => (float[1, 4, 5, 5] y) {{
      a = Conv<pads=[1,1,1,1]>(x, w)
      y = Add(a, z)
    }}"""
    graph = bound_to(text, w=rng.standard_normal((4, 3, 3, 3)).astype(np.float32))
    shapes = {"x": (1, 3, 5, 5), "z": shape}
    given = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    network = near(graph, given)
    names = (p.operators for p in network.placements)
    parts = list(zip(names, network.why, strict=True))
    why = "it adds neither a constant per channel nor a tensor of the same shape to a product"
    alone = [("Conv", ""), ("Add", why)]
    assert parts == ([("Conv+Add", "")] if shape == (1, 4, 5, 5) else alone)


@pytest.mark.parametrize(
    ("call", "shape", "taken"),
    [
        ("MatMul(m, w)", (6,), True),
        ("MatMul(m, w)", (1, 1, 1), True),
        ("MatMul(m, w)", (6, 1), False),
        ("MatMul(m, w)", (1, 1, 1, 6), False),
        ("Gemm(n, w, c)", (6,), True),
        ("Conv(x, u)", (6, 1, 1), True),
        ("Conv(x, u)", (1, 6, 1, 1), True),
        ("Conv(x, u)", (6,), False),
        ("Conv(x, u)", (1, 6), False),
    ],
)
def test_a_constant_per_channel_is_a_bias(
    call: str, shape: tuple[int, ...], taken: bool
) -> None:
    """Extents are all the same, so that any axis would do."""
    rng = np.random.default_rng(0)
    shapes = {"w": (6, 6), "u": (6, 6, 1, 1), "c": (6,), "b": shape}
    weights = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    inputs = {"m": (6, 6, 6), "n": (6, 6), "x": (1, 6, 6, 6)}
    name = next(n for n in inputs if f"({n}," in call)
    rank = max(len(inputs[name]), len(shape))
    dims = ", ".join("?" * rank)
    graph = bound_to(
        f"""a (float{list(inputs[name])} {name}) => (float[{dims}] y) {{
          p = {call}
          s = Add(b, p)
          y = Relu(s)
        }}""",
        **weights,
    )
    given = {name: rng.standard_normal(inputs[name]).astype(np.float32)}
    found = near(graph, given).placements
    assert len(found) == (1 if taken else 3)
    assert found[0].device == "vta"


CLIPS = {
    "zero, six": 6.0,
    "zero": None,
    "zero, tiny": 0.01,
    "one, six": "cpu",
    ", six": "cpu",
    "zero, less": "cpu",
}


@pytest.mark.sampled(7)  # each way to requantize
@pytest.mark.parametrize("by", ["shift", "multiplier", "channel"])
@pytest.mark.parametrize("bounds", CLIPS)
def test_a_bounded_relu_is_taken_along(bounds: str, by: str) -> None:
    rng = np.random.default_rng(0)
    scalars = {"zero": 0, "one": 1, "six": 6, "tiny": 0.01, "less": -1}
    graph = bound_to(
        f"""b (float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y) {{
          a = Conv<pads=[1,1,1,1]>(x, w)
          y = Clip(a, {bounds})
        }}""",
        w=rng.standard_normal((4, 4, 3, 3)).astype(np.float32),
        **{name: np.array(v, np.float32) for name, v in scalars.items()},
    )
    inputs = {"x": rng.standard_normal((1, 4, 6, 6)).astype(np.float32)}
    network = near(graph, inputs, by)
    assert len(network.placements) == (2 if CLIPS[bounds] == "cpu" else 1)
    (y,), (same,) = network(inputs), network.on_cpu(inputs)
    np.testing.assert_array_equal(y, same)
    if isinstance(CLIPS[bounds], float):
        assert y.max() == pytest.approx(CLIPS[bounds], rel=0.03)


def test_channels_of_different_sizes_have_units_of_their_own() -> None:
    """In one unit, a channel of a twentieth of the largest weights keeps three bits of each."""
    rng = np.random.default_rng(0)
    sizes = np.array([1, 0.05, 0.05, 1e-9, 0], np.float32)
    graph = bound_to(
        """b (float[1, 16, 6, 6] x) => (float[1, 5, 6, 6] y) {
          a = Conv<pads=[1,1,1,1]>(x, w, b)
          y = Relu(a)
        }""",
        w=rng.standard_normal((5, 16, 3, 3)).astype(np.float32)
        * sizes[:, None, None, None],
        b=rng.standard_normal(5).astype(np.float32) * 0.1,
    )
    inputs = {"x": rng.standard_normal((1, 16, 6, 6)).astype(np.float32)}
    real = evaluate(graph, inputs)["y"]
    errors = {}
    for by in ("multiplier", "channel"):
        network = Network(graph, [inputs], by=by)
        (y,), (same,) = network(inputs), network.on_cpu(inputs)
        np.testing.assert_array_equal(y, same)
        assert network.placements[0].device == "vta"
        errors[by] = np.abs(y - real)[0].max((1, 2)) / network.scales["y"]
    assert (
        errors["channel"][1:] <= 0.6
    ).all()  # what rounding the result to bytes leaves
    assert (errors["multiplier"][1:3] > 0.7).all()


@pytest.mark.filterwarnings("ignore::tilewright.base.errors.TilewrightWarning")
def test_the_cpu_runs_what_it_runs_elsewhere() -> None:
    """Control flow with what it captures, sequences, and operators without a NumPy reference."""
    rng = np.random.default_rng(0)
    graph = bound_to(
        """c (float[2, 4] x, bool k) => (float[2, 4] y) {
          a = Gemm(x, w)
          b = If (k) <
            then_branch = yes () => (t) { t = Neg(a) },
            else_branch = no () => (e) { e = Softmax(a) }
          >
          s = SplitToSequence(b)
          c = ConcatFromSequence<axis = 0>(s)
          d = Gelu(c)
          y = Gemm(d, w)
        }""",
        w=rng.standard_normal((4, 4)).astype(np.float32),
    )
    x = rng.standard_normal((2, 4)).astype(np.float32)
    for k in (True, False):
        network = near(graph, {"x": x, "k": np.array(k)})
        where = {p.operators: p.device for p in network.placements}
        assert where.pop("Gemm") == "vta"
        assert set(where.values()) == {"host"}


def test_other_numbers_stay_as_they_are() -> None:
    w = np.arange(12, dtype=np.int32).reshape(4, 3)
    network = near(
        bound_to("i (int32[2, 4] x) => (int32[2, 3] y) { y = MatMul(x, w) }", w=w),
        {"x": np.full((2, 4), 1000, np.int32)},
    )
    assert network.why == ["its data is int32[2, 4]"]


def test_symbolic_extents_are_those_of_the_call() -> None:
    w = np.ones((8, 4), np.float32)
    graph = bound_to("n (float[N, 8] x) => (float[N, 4] y) { y = MatMul(x, w) }", w=w)
    sample = {"x": np.ones((3, 8), np.float32)}
    assert near(graph, sample).placements[0].device == "vta"
    exe = tw.compile(graph, target="vta", samples=[sample])
    for rows in (3, 2):
        y = exe(np.ones((rows, 8), np.float32))
        np.testing.assert_allclose(y, np.full((rows, 4), 8.0), rtol=0.01)
