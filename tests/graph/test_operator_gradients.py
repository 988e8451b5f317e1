"""The gradient of every operator: against central differences in float64, and PyTorch's.

A case is the text of a graph with the result `o`, its inputs, and the shape of `o`. The tests
differentiate the sum of `o` times random weights.
"""

from dataclasses import replace

import numpy as np
import onnx
import pytest

import tilewright as tw
from tilewright.base.errors import UnsupportedError
from tilewright.graph.ops import registry

RNG = np.random.default_rng(7)


def shape_text(shape, dtype="double"):
    return f"{dtype}[{', '.join(map(str, shape))}]" if len(shape) else dtype


def model(body, inputs, out, opset=22):
    """Inputs and v -> y = sum of o * v, and dy by each input."""
    given = ", ".join(f"{shape_text(a.shape)} {n}" for n, a in inputs.items())
    results = ", ".join(f"double[] d{n}" for n in inputs)
    names = ", ".join(f'"{n}"' for n in inputs)
    return onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": {opset}, "ai.onnx.preview.training": 1]>
        g ({given}, {shape_text(out)} v) => (double[] y, {results})
        {{
            {body}
            y = Mul(o, v)
            {", ".join("d" + n for n in inputs)} =
              ai.onnx.preview.training.Gradient<xs=[{names}], y="y">({", ".join(inputs)})
        }}"""
    )


def differences(f, arrays, n, step=1e-6):
    found = np.zeros_like(arrays[n])
    for i in np.ndindex(found.shape):
        low, high = ([np.array(a) for a in arrays] for _ in range(2))
        low[n][i] -= step
        high[n][i] += step
        found[i] = (f(*high).sum() - f(*low).sum()) / (2 * step)
    return found


def U(*shape):
    """Away from 0, where some have kinks."""
    return RNG.uniform(0.3, 1.7, shape) * RNG.choice([-1, 1], shape)


def P(*shape):
    return RNG.uniform(0.3, 1.7, shape)


def I(*shape):  # noqa: E743
    return RNG.uniform(-0.8, 0.8, shape)


CASES = {}
UNARY = (
    "Tan Asin Atan Sinh Cosh Asinh Erf Softplus Softsign LeakyRelu Elu Selu Celu "
    "HardSigmoid HardSwish Mish Gelu"
)
for op in UNARY.split():
    CASES[op] = (f"o = {op}(x)", {"x": I(2, 3)}, (2, 3))
CASES["Acosh"] = ("o = Acosh(x)", {"x": P(2, 3) + 1}, (2, 3))
CASES["Atanh"] = ("o = Atanh(x)", {"x": I(2, 3)}, (2, 3))
CASES["GeluTanh"] = ('o = Gelu<approximate="tanh">(x)', {"x": U(2, 3)}, (2, 3))
CASES["Shrink"] = ("o = Shrink(x)", {"x": U(2, 3)}, (2, 3))
CASES["ThresholdedRelu"] = ("o = ThresholdedRelu(x)", {"x": U(2, 3)}, (2, 3))
CASES["PRelu"] = ("o = PRelu(x, w)", {"x": U(2, 3), "w": U(3)}, (2, 3))
CASES["Max"] = ("o = Max(x, w, x)", {"x": U(2, 3), "w": U(3)}, (2, 3))
CASES["Min"] = ("o = Min(x, w)", {"x": U(2, 3), "w": U(2, 1)}, (2, 3))
CASES["Mean"] = ("o = Mean(x, w)", {"x": U(2, 3), "w": U(2, 1)}, (2, 3))
CASES["Mod"] = ("o = Mod<fmod=1>(x, w)", {"x": U(2, 3), "w": P(2, 3)}, (2, 3))
CASES["Where"] = (
    "c = Greater(x, w)\n o = Where(c, x, w)",
    {"x": U(2, 3), "w": U(3)},
    (2, 3),
)
CASES["Clip"] = (
    "lo = Constant<value=double {-0.5}>()\n "
    "hi = Constant<value=double {1.0}>()\n "
    "o = Clip(x, lo, hi)",
    {"x": U(2, 3)},
    (2, 3),
)
CASES["ClipHi"] = (
    "hi = Constant<value=double {1.0}>()\n o = Clip(x, , hi)",
    {"x": U(2, 3)},
    (2, 3),
)
for r in "ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSumExp".split():
    CASES[r] = (
        f"a = Constant<value_ints=[1]>()\n o = {r}<keepdims=0>(x, a)",
        {"x": U(2, 3, 2)},
        (2, 2),
    )
CASES["ReduceLogSum"] = ("o = ReduceLogSum(x)", {"x": P(2, 3)}, (1, 1))
for c in ("", "exclusive=1,", "reverse=1,", "exclusive=1,reverse=1,"):
    at = "a = Constant<value=int64 {1}>()\n "
    how = f"<{c[:-1]}>(x, a)" if c else "(x, a)"
    CASES["CumSum" + c] = (f"{at}o = CumSum{how}", {"x": U(2, 3, 2)}, (2, 3, 2))
    CASES["CumProd" + c] = (
        f"{at}o = CumProd{how}",
        {"x": U(3, 4) * [[1, 0, 1, 1], [0, 1, 0, 1], [1, 1, 1, 1]]},
        (3, 4),
        26,
    )
CASES["Softmax"] = ("o = Softmax<axis=1>(x)", {"x": U(2, 3, 2)}, (2, 3, 2))
CASES["LogSoftmax"] = ("o = LogSoftmax(x)", {"x": U(2, 3, 2)}, (2, 3, 2))
CASES["LayerNormalization"] = (
    "o = LayerNormalization(x, w, b)",
    {"x": U(2, 3, 4), "w": U(4), "b": U(4)},
    (2, 3, 4),
)
CASES["InstanceNormalization"] = (
    "o = InstanceNormalization(x, w, b)",
    {"x": U(2, 3, 4), "w": U(3), "b": U(3)},
    (2, 3, 4),
)
CASES["MeanVarianceNormalization"] = (
    "o = MeanVarianceNormalization<axes=[1,2]>(x)",
    {"x": U(2, 3, 4)},
    (2, 3, 4),
)
CASES["GroupNormalization"] = (
    "o = GroupNormalization<num_groups=2>(x, w, b)",
    {"x": U(2, 4, 3), "w": U(4), "b": U(4)},
    (2, 4, 3),
)
CASES["BatchNorm"] = (
    "m = Identity(b)\n n = Exp(w)\n o = BatchNormalization(x, w, b, m, n)",
    {"x": U(2, 3, 4), "w": U(3), "b": U(3)},
    (2, 3, 4),
)
CASES["BatchNormTraining"] = (
    "m = Constant<value=double[3] {0.,0.,0.}>()\n "
    "o, r1, r2 = BatchNormalization<training_mode=1>(x, w, b, m, m)",
    {"x": U(2, 3, 4), "w": U(3), "b": U(3)},
    (2, 3, 4),
)
CASES["Conv"] = (
    "o = Conv<pads=[1,0,1,1],strides=[2,1],dilations=[1,2],group=2>(x, w, b)",
    {"x": U(2, 4, 5, 6), "w": U(4, 2, 3, 2), "b": U(4)},
    (2, 4, 3, 5),
)
CASES["Conv1"] = ("o = Conv(x, w)", {"x": U(2, 4, 5), "w": U(3, 4, 3)}, (2, 3, 3))
CASES["ConvTranspose"] = (
    "o = ConvTranspose<pads=[1,0,1,1],strides=[2,1],group=2>(x, w, b)",
    {"x": U(2, 4, 3, 4), "w": U(4, 2, 3, 2), "b": U(4)},
    (2, 4, 5, 4),
)
CASES["MaxPool"] = (
    "o = MaxPool<kernel_shape=[2,3],strides=[1,2],pads=[1,1,0,1]>(x)",
    {"x": U(1, 2, 4, 5)},
    (1, 2, 4, 3),
)
CASES["AveragePool"] = (
    "o = AveragePool<kernel_shape=[2,3],strides=[1,2],pads=[1,1,0,1]>(x)",
    {"x": U(1, 2, 4, 5)},
    (1, 2, 4, 3),
)
CASES["LpPool"] = (
    "o = LpPool<kernel_shape=[2,2],p=3>(x)",
    {"x": U(1, 2, 4, 5)},
    (1, 2, 3, 4),
)
CASES["GlobalAveragePool"] = (
    "o = GlobalAveragePool(x)",
    {"x": U(1, 2, 4, 5)},
    (1, 2, 1, 1),
)
CASES["GlobalMaxPool"] = ("o = GlobalMaxPool(x)", {"x": U(1, 2, 4, 5)}, (1, 2, 1, 1))
CASES["LRN"] = ("o = LRN<size=3,alpha=0.3>(x)", {"x": U(1, 4, 2, 3)}, (1, 4, 2, 3))
CASES["Einsum"] = (
    'o = Einsum<equation="bij,bkj->bik">(x, w)',
    {"x": U(2, 3, 4), "w": U(2, 5, 4)},
    (2, 3, 5),
)
CASES["EinsumDiag"] = ('o = Einsum<equation="ii->i">(x)', {"x": U(3, 3)}, (3,))
CASES["MatMulVec"] = ("o = MatMul(x, w)", {"x": U(3, 4), "w": U(4)}, (3,))
CASES["VecVec"] = ("o = MatMul(x, w)", {"x": U(4), "w": U(4)}, ())
CASES["Gather"] = (
    "i = Constant<value=int64[2,2] {0,-1,2,0}>()\n o = Gather<axis=1>(x, i)",
    {"x": U(2, 3, 2)},
    (2, 2, 2, 2),
)
CASES["GatherElements"] = (
    "i = Constant<value=int64[2,2] {0,-1,2,0}>()\n o = GatherElements<axis=1>(x, i)",
    {"x": U(2, 3)},
    (2, 2),
)
CASES["GatherND"] = (
    "i = Constant<value=int64[2,2] {0,-1,1,0}>()\n o = GatherND(x, i)",
    {"x": U(2, 3, 2)},
    (2, 2),
)
for red in ("none", "add"):
    CASES["ScatterElements" + red] = (
        f"i = Constant<value=int64[2,2] {{0,-1,2,0}}>()\n "
        f'o = ScatterElements<axis=1,reduction="{red}">(x, i, w)',
        {"x": U(2, 3), "w": U(2, 2)},
        (2, 3),
    )
    CASES["ScatterND" + red] = (
        f'i = Constant<value=int64[2,1] {{0,-1}}>()\n o = ScatterND<reduction="{red}">(x, i, w)',
        {"x": U(3, 2), "w": U(2, 2)},
        (3, 2),
    )
CASES["Slice"] = (
    "s = Constant<value_ints=[3,0]>()\n "
    "e = Constant<value_ints=[-10,3]>()\n "
    "a = Constant<value_ints=[0,1]>()\n "
    "t = Constant<value_ints=[-2,1]>()\n "
    "o = Slice(x, s, e, a, t)",
    {"x": U(4, 5)},
    (2, 3),
)
for m in ("constant", "reflect", "edge", "wrap"):
    CASES["Pad" + m] = (
        f'p = Constant<value_ints=[1,0,0,2]>()\n o = Pad<mode="{m}">(x, p)',
        {"x": U(3, 4)},
        (4, 6),
    )
CASES["Concat"] = ("o = Concat<axis=1>(x, w, x)", {"x": U(2, 3), "w": U(2, 1)}, (2, 7))
CASES["Split"] = (
    "p, q, r = Split<axis=1,num_outputs=3>(x)\n t = Mul(p, r)\n o = Add(t, q)",
    {"x": U(2, 6)},
    (2, 2),
)
CASES["SplitUnused"] = (
    "p, q, r = Split<axis=1,num_outputs=3>(x)\n o = Mul(r, r)",
    {"x": U(2, 6)},
    (2, 2),
)
CASES["Tile"] = (
    "r = Constant<value_ints=[2,3]>()\n o = Tile(x, r)",
    {"x": U(2, 3)},
    (4, 9),
)
CASES["Expand"] = (
    "r = Constant<value_ints=[2,2,3]>()\n o = Expand(x, r)",
    {"x": U(2, 1)},
    (2, 2, 3),
)
CASES["Trilu"] = ("o = Trilu(x)", {"x": U(3, 4)}, (3, 4))
CASES["DepthToSpace"] = (
    "o = DepthToSpace<blocksize=2>(x)",
    {"x": U(1, 8, 2, 3)},
    (1, 2, 4, 6),
)
CASES["SpaceToDepth"] = (
    "o = SpaceToDepth<blocksize=2>(x)",
    {"x": U(1, 2, 4, 6)},
    (1, 8, 2, 3),
)
CASES["TopK"] = (
    "k = Constant<value_ints=[2]>()\n o, i = TopK<axis=1>(x, k)",
    {"x": U(3, 5)},
    (3, 2),
)
for m in ("nearest", "linear", "cubic"):
    CASES["Resize" + m] = (
        f's = Constant<value_ints=[1,1,7,6]>()\n o = Resize<mode="{m}">(x, , , s)',
        {"x": U(1, 1, 4, 5)},
        (1, 1, 7, 6),
    )
CASES["GridSample"] = (
    "o = GridSample(x, w)",
    {"x": U(1, 2, 4, 5), "w": I(1, 3, 3, 2)},
    (1, 2, 3, 3),
)
CASES["LpNormalization"] = ("o = LpNormalization(x)", {"x": U(3, 4)}, (3, 4))
CASES["SCE"] = (
    "l = Constant<value=int64[3] {0,-1,2}>()\n "
    "o = SoftmaxCrossEntropyLoss<ignore_index=-1>(x, l, w)",
    {"x": U(3, 4), "w": P(4)},
    (),
)
CASES["NLL"] = (
    "l = Constant<value=int64[3,2] {0,1,2,1,0,3}>()\n "
    'o = NegativeLogLikelihoodLoss<reduction="sum">(x, l)',
    {"x": U(3, 4, 2)},
    (),
)
CASES["Dropout"] = (
    "r = Constant<value=float {0.4}>()\n "
    "t = Constant<value=bool {1}>()\n "
    "o, m = Dropout<seed=3>(x, r, t)",
    {"x": U(4, 5)},
    (4, 5),
)
CASES["Attention23"] = (
    "o = Attention(x, w, b)",
    {"x": U(1, 2, 3, 4), "w": U(1, 2, 5, 4), "b": U(1, 2, 5, 4)},
    (1, 2, 3, 4),
    23,
)
CASES["RMS"] = (
    "o = RMSNormalization(x, w)",
    {"x": U(2, 3, 4), "w": U(4)},
    (2, 3, 4),
    23,
)
CASES["Swish"] = ("o = Swish(x)", {"x": U(2, 3, 4)}, (2, 3, 4), 24)
CASES["ReverseSequence"] = (
    "l = Constant<value=int64[3] {2,4,1}>()\n o = ReverseSequence(x, l)",
    {"x": U(4, 3)},
    (4, 3),
)
CASES["Col2Im"] = (
    "a = Constant<value_ints=[4,4]>()\n k = Constant<value_ints=[2,2]>()\n o = Col2Im(x, a, k)",
    {"x": U(1, 4, 9)},
    (1, 1, 4, 4),
)
CASES["Affine"] = (
    "s = Constant<value_ints=[1,1,2,3]>()\n o = AffineGrid(x, s)",
    {"x": U(1, 2, 3)},
    (1, 2, 3, 2),
)
CASES["OneHot"] = (
    "l = Constant<value=int64[3] {0,1,2}>()\n "
    "d = Constant<value=int64 {3}>()\n "
    "o = OneHot(l, d, x)",
    {"x": U(2)},
    (3, 3),
)
for how in ("mul", "max", "min"):
    CASES["ScatterElements" + how] = (
        "i = Constant<value=int64[2,3] {1, 2, 1, 1, 0, 3}>()\n "
        f'o = ScatterElements<axis=1, reduction="{how}">(x, i, w)',
        {"x": U(2, 4), "w": U(2, 3)},
        (2, 4),
    )
    CASES["ScatterND" + how] = (
        "i = Constant<value=int64[3,1] {2, -1, 0}>()\n "
        f'o = ScatterND<reduction="{how}">(x, i, w)',
        {"x": U(3, 2), "w": U(3, 2)},
        (3, 2),
    )
CASES["TensorScatter"] = (
    "i = Constant<value=int64[2] {1, 2}>()\n o = TensorScatter(x, w, i)",
    {"x": U(2, 3, 4, 2), "w": U(2, 3, 2, 2)},
    (2, 3, 4, 2),
    24,
)
CASES["TensorScatterAround"] = (
    "i = Constant<value=int64[2] {3, 2}>()\n "
    'o = TensorScatter<mode="circular", axis=1>(x, w, i)',
    {"x": U(2, 4, 2), "w": U(2, 3, 2)},
    (2, 4, 2),
    24,
)
CASES["TensorScatterFirst"] = (
    "o = TensorScatter<axis=1>(x, w)",
    {"x": U(2, 4, 2), "w": U(2, 3, 2)},
    (2, 4, 2),
    24,
)
CASES["ZeroSize"] = ("o = Softmax(x)", {"x": U(0, 3)}, (0, 3))
CASES["RankZero"] = ("o = Erf(x)", {"x": np.array(0.3)}, ())
CASES["ConvRemainder"] = (
    "o = Conv<strides=[3,2],pads=[1,0,1,0]>(x, w)",
    {"x": U(2, 2, 6, 6), "w": U(3, 2, 2, 3)},
    (2, 3, 3, 2),
)
CASES["DepthwiseConv"] = (
    'o = Conv<group=3,auto_pad="SAME_UPPER",strides=[2]>(x, w)',
    {"x": U(2, 3, 6), "w": U(6, 1, 3)},
    (2, 6, 3),
)
CASES["ConvTransposePadding"] = (
    "o = ConvTranspose<strides=[3],dilations=[2],output_padding=[1]>(x, w)",
    {"x": U(2, 2, 3), "w": U(2, 3, 2)},
    (2, 3, 10),
)
CASES["Cast"] = (
    "f = Cast<to=1>(x)\n q = Mul(f, f)\n o = Cast<to=11>(q)",
    {"x": U(2, 3)},
    (2, 3),
)
CASES["Strides"] = (
    "o = MaxPool<kernel_shape=[2],strides=[2]>(x)",
    {"x": U(1, 2, 7)},
    (1, 2, 3),
)


def compiled(case):
    body, inputs, out, *opset = case
    weights = RNG.uniform(0.5, 1.5, out)
    exe = tw.compile(model(body, inputs, out, *opset), threads=1, cache=False)
    return exe, list(inputs.values()), weights


def test_differentiable_functions_in_one_graph():
    """Each function adds to `o`, so one wrong gradient makes the gradient of `x` wrong."""
    body = "".join(f"t{op} = {op}(x)\n" for op in UNARY.split())
    body += f"o = Sum({', '.join('t' + op for op in UNARY.split())})"
    exe, (x,), weights = compiled((body, {"x": I(2, 3)}, (2, 3)))
    want = differences(lambda a: exe(a, weights)[0], [x], 0)
    np.testing.assert_allclose(exe(x, weights)[1], want, rtol=1e-6, atol=1e-6)


@pytest.mark.sampled(7)
@pytest.mark.filterwarnings("ignore:1 operator has no native code")
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_differences(name):
    exe, arrays, weights = compiled(CASES[name])
    _, *found = exe(*arrays, weights)
    step, within = (1e-2, 1e-4) if name in IN_FLOAT32 else (1e-6, 1e-6)
    for n, got in enumerate(found):
        want = differences(lambda *a: exe(*a, weights)[0], arrays, n, step)
        assert got.shape == arrays[n].shape
        np.testing.assert_allclose(got, want, rtol=within, atol=within)


# These compute in float32 inside: differences need larger steps.
IN_FLOAT32 = {"GroupNormalization", "Cast"}


def torch_cases():
    import torch
    import torch.nn.functional as F

    return {
        "Gelu": F.gelu,
        "GeluTanh": lambda x: F.gelu(x, approximate="tanh"),
        "Mish": F.mish,
        "Softplus": F.softplus,
        "HardSwish": F.hardswish,
        "Max": lambda x, w: torch.maximum(torch.maximum(x, w), x),
        "ReduceMax": lambda x: torch.amax(x, 1),
        "ReduceProd": lambda x: torch.prod(x, 1),
        "ReduceL2": lambda x: torch.linalg.vector_norm(x, dim=1),
        "Softmax": lambda x: torch.softmax(x, 1),
        "LogSoftmax": lambda x: torch.log_softmax(x, -1),
        "LayerNormalization": lambda x, w, b: F.layer_norm(x, (4,), w, b),
        "GroupNormalization": lambda x, w, b: F.group_norm(x, 2, w, b),
        "BatchNormTraining": lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        "Conv": lambda x, w, b: F.conv2d(
            F.pad(x, (0, 1, 1, 1)), w, b, (2, 1), 0, (1, 2), 2
        ),
        "ConvRemainder": lambda x, w: F.conv2d(x, w, None, (3, 2), (1, 0)),
        "ConvTranspose": lambda x, w, b: F.conv_transpose2d(x, w, b, (2, 1), 0, 0, 2)[
            :, :, 1:-1, :-1
        ],
        "MaxPool": lambda x: F.max_pool2d(
            F.pad(x, (1, 1, 1, 0), value=-torch.inf), (2, 3), (1, 2)
        ),
        "Resizelinear": lambda x: F.interpolate(x, (7, 6), mode="bilinear"),
        "GridSample": lambda x, w: F.grid_sample(x, w, align_corners=False),
        "SCE": lambda x, w: F.cross_entropy(
            x, torch.tensor([0, -1, 2]), w.detach(), ignore_index=-1
        ),
        "Attention23": F.scaled_dot_product_attention,
        "TopK": lambda x: torch.topk(x, 2, dim=1).values,
        "CumSum": lambda x: torch.cumsum(x, 1),
        "CumProd": lambda x: torch.cumprod(x, 1),
    }


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "name",
    (
        "Gelu GeluTanh Mish Softplus HardSwish Max ReduceMax ReduceProd ReduceL2 Softmax "
        "LogSoftmax LayerNormalization GroupNormalization BatchNormTraining Conv ConvRemainder "
        "ConvTranspose MaxPool Resizelinear GridSample SCE Attention23 TopK CumSum "
        "CumProd"
    ).split(),
)
def test_agrees_with_torch(name):
    torch = pytest.importorskip("torch")
    exe, arrays, weights = compiled(CASES[name])
    y, *found = exe(*arrays, weights)
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    want = torch_cases()[name](*tensors) * torch.tensor(weights)
    want.sum().backward()
    within = 1e-5 if name in {*IN_FLOAT32, "Attention23"} else 1e-10
    np.testing.assert_allclose(y, want.detach().numpy(), within, within)
    for t, got in zip(tensors, found):
        if t.grad is None:  # the weights of torch's cross_entropy are constants
            continue
        np.testing.assert_allclose(got, t.grad.numpy(), within, within)


def gradient_at(body, inputs, out):
    exe = tw.compile(model(body, inputs, out), threads=1, cache=False)
    return exe(*inputs.values(), np.ones(out))[1:]


def test_equal_elements_share_what_flows():
    """As in torch.amax and torch.maximum: the shares add up to the incoming gradient."""
    x = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    [dx] = gradient_at("o = ReduceMax(x)", {"x": x}, (1, 1))
    np.testing.assert_array_equal(dx, [[0, 0.5, 0.5], [0, 0, 0]])
    dx, dw = gradient_at("o = Max(x, w)", {"x": x, "w": x}, (2, 3))
    np.testing.assert_array_equal(dx, np.full((2, 3), 0.5))
    np.testing.assert_array_equal(dw, dx)


def test_elements_read_twice_get_both_flows():
    x = np.array([1.0, 2.0, 3.0])
    i = "i = Constant<value=int64[4] {2, 0, -1, 2}>()\n o = Gather(x, i)"
    [dx] = gradient_at(i, {"x": x}, (4,))
    np.testing.assert_array_equal(dx, [1, 0, 3])


def test_an_update_that_is_overwritten_gets_nothing():
    text = "i = Constant<value=int64[3] {1, 1, 0}>()\n o = ScatterElements(x, i, w)"
    x, w = np.ones(3), np.ones(3)
    dx, dw = gradient_at(text, {"x": x, "w": w}, (3,))
    np.testing.assert_array_equal(dx, [0, 0, 1])
    np.testing.assert_array_equal(dw, [0, 1, 1])


@pytest.mark.parametrize(
    ("body", "x", "want"),
    [
        ("o = Celu(x)", [0.0, -0.0, 2.0], [1, 1, 1]),
        ("o = Mish(x)", [1e200, 1e3, 0.0], [1, 1, 0.6]),
        ("o = ReduceL1(x)", [0.0, -0.0, -2.0], [0, 0, -1]),
        ("o = ReduceL2(x)", [0.0, -0.0, 0.0], [0, 0, 0]),
        ("o = ReduceL2(x)", [0.0, 3.0, -4.0], [0, 0.6, -0.8]),
    ],
)
def test_where_a_formula_would_lose_the_slope(body, x, want):
    x = np.array(x)
    [dx] = gradient_at(body, {"x": x}, (1,) if "Reduce" in body else (3,))
    np.testing.assert_allclose(dx, want, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:1 operator has no native code")
def test_dropout_that_may_not_train():
    """Training is an input: without it, nothing is dropped and nothing is scaled."""
    source = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 22]> g (double[3] x, bool[1] t) => (double y)
        {
            s = Constant<value = int64[0] {}>()
            b = Reshape(t, s)
            r = Constant<value = float {0.25}>()
            o, mask = Dropout(x, r, b)
            y = ReduceSum<keepdims=0>(o)
        }""")
    exe = tw.compile(tw.grad(source, ["x"]), threads=1, cache=False)
    for training in (False, True):
        dx = exe(np.ones(3), np.array([training]))
        slopes = {0.0, 1 / 0.75} if training else {1.0}
        assert set(dx) <= slopes


def test_shapes_that_are_not_known_are_said():
    source = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 22]> g (double[] x, double[3] w) => (double[1] y)
        { p = Mul(x, w) s = ReduceSum(p) one = Constant<value = int64[1] {1}>()
          y = Reshape(s, one) }""")
    with pytest.raises(UnsupportedError, match="known"):
        tw.grad(source, ["w"])


def test_products_with_zeros():
    x = np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 5.0], [2.0, 3.0, 4.0]])
    a = "a = Constant<value_ints=[1]>()\n o = ReduceProd<keepdims=0>(x, a)"
    [dx] = gradient_at(a, {"x": x}, (3,))
    np.testing.assert_array_equal(dx, [[0, 6, 0], [0, 0, 0], [12, 8, 6]])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "o = Round(x)",
            r"node 'Round -> o' \(Round\): Round has no derivative: it is piecewise constant",
        ),
        ("o = Sign(x)", "Sign has no derivative"),
    ],
)
def test_what_has_no_derivative_is_named(body, said):
    with pytest.raises(UnsupportedError, match=said):
        tw.compile(model(body, {"x": np.ones(3)}, (3,)))


def test_what_flows_to_another_output_is_not_forgotten(monkeypatch):
    """A rule that looks at the first output alone, where something flows to the second."""
    definition = registry.lookup("Split", "", 18)
    wrong = lambda f, op, x, y, g: [f.op("Concat", g, g, g, axis=1)]  # noqa: E731
    monkeypatch.setattr(registry, "_definitions", dict(registry._definitions))
    key = ("", "Split")
    registry._definitions[key] = [replace(definition, gradient=wrong)]
    text, inputs, out = CASES["SplitUnused"]
    with pytest.raises(UnsupportedError, match="the gradient of output 2, 'r'"):
        tw.compile(model(text, inputs, out))
