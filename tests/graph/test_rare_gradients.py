"""Gradients of operators that few networks train: regions, Fourier transforms, Microsoft's.

Cases and method are those of `test_operator_gradients.py`.
"""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.graph.test_operator_gradients import I, P, U, differences, model
from tilewright.base.errors import UnsupportedError

RNG = np.random.default_rng(11)
MS, ML = "com.microsoft.", "ai.onnx.ml."

CASES = {
    "Acos": ("o = Acos(x)", {"x": I(2, 3)}, (2, 3)),
    # Two of the four have one place, and the result is larger than what was pooled.
    "MaxUnpool": (
        "s = Constant<value_ints=[1,1,5,6]>()\n "
        "i = Constant<value=int64[1,1,2,2] {5,7,15,5}>()\n "
        "o = MaxUnpool<kernel_shape=[2,2],strides=[2,2]>(x, i, s)",
        {"x": U(1, 1, 2, 2)},
        (1, 1, 5, 6),
    ),
    "Upsample": (
        "s = Constant<value=float[4] {1.0,1.0,2.0,2.0}>()\n o = Upsample(x, s)",
        {"x": U(1, 1, 2, 3)},
        (1, 1, 4, 6),
        9,
    ),
    "Scatter": (
        "i = Constant<value=int64[1,2] {0,1}>()\n o = Scatter<axis=1>(x, i, w)",
        {"x": U(2, 3), "w": U(1, 2)},
        (2, 3),
        9,
    ),
    "Det": ("o = Det(x)", {"x": U(2, 3, 3)}, (2,)),
    "Squeeze": (
        "a = Constant<value_ints=[1]>()\n o = Squeeze(x, a)",
        {"x": U(2, 1, 3)},
        (2, 3),
    ),
    "Unsqueeze": (
        "a = Constant<value_ints=[0, 2]>()\n o = Unsqueeze(x, a)",
        {"x": U(2, 3)},
        (1, 2, 1, 3),
    ),
    "CenterCropPad": (
        "s = Constant<value_ints=[3, 4]>()\n o = CenterCropPad(x, s)",
        {"x": U(5, 2)},
        (3, 4),
    ),
    "GlobalLpPool": ("o = GlobalLpPool<p=3>(x)", {"x": U(2, 3, 4)}, (2, 3, 1)),
    "DFT": (
        "n = Constant<value=int64 {1}>()\n o = DFT(x, , n)",
        {"x": U(2, 5, 1)},
        (2, 5, 2),
    ),
    "STFT": (
        "s = Constant<value=int64 {2}>()\n o = STFT(x, s, w)",
        {"x": U(1, 8, 1), "w": P(4)},
        (1, 3, 3, 2),
    ),
    "RoiAlign": (
        "r = Constant<value=double[2,4] {0.0, 0.0, 2.2, 3.1, 1.0, 1.3, 3.0, 3.4}>()\n "
        "i = Constant<value=int64[2] {0, 1}>()\n "
        "o = RoiAlign<output_height=2, output_width=2, sampling_ratio=2>(x, r, i)",
        {"x": U(2, 2, 5, 5)},
        (2, 2, 2, 2),
    ),
    "RoiAlignMax": (
        "r = Constant<value=double[1,4] {0.0, 0.0, 2.2, 3.1}>()\n "
        "i = Constant<value=int64[1] {0}>()\n "
        'o = RoiAlign<mode="max", output_height=2, output_width=2, sampling_ratio=2>(x, r, i)',
        {"x": U(1, 2, 5, 5)},
        (1, 2, 2, 2),
    ),
    "DeformConv": (
        "o = DeformConv<pads=[1,1,1,1]>(x, w, t)",
        {"x": U(1, 2, 4, 4), "w": U(2, 2, 3, 3), "t": I(1, 18, 4, 4) / 3 + 0.4},
        (1, 2, 4, 4),
    ),
    "DequantizeLinear": (
        "q = Constant<value=int8[2,3] {1, -2, 3, 4, -5, 6}>()\n "
        "c = Cast<to=1>(x)\n d = DequantizeLinear<axis=1>(q, c)\n o = Cast<to=11>(d)",
        {"x": P(3)},
        (2, 3),
    ),
    "MaxRoiPool": (
        "r = Constant<value=double[2,5] {0.0, 0.0, 0.0, 2.0, 3.0, 0.0, 1.0, 1.0, 3.0, 3.0}>()\n "
        "o = MaxRoiPool<pooled_shape=[2, 2]>(x, r)",
        {"x": U(1, 2, 4, 4)},
        (2, 2, 2, 2),
    ),
    "SimplifiedLayerNormalization": (
        "o = SimplifiedLayerNormalization(x, w)",
        {"x": U(2, 4), "w": U(4)},
        (2, 4),
    ),
    "RotaryEmbedding": (
        "i = Constant<value=int64[1,3] {0, 1, 2}>()\n "
        f"o = {MS}RotaryEmbedding(x, i, c, s)",
        {"x": U(1, 2, 3, 4), "c": I(4, 2), "s": I(4, 2)},
        (1, 2, 3, 4),
    ),
    "BiasGelu": (f"o = {MS}BiasGelu(x, w)", {"x": U(2, 3), "w": U(3)}, (2, 3)),
    "FastGelu": (f"o = {MS}FastGelu(x, w)", {"x": U(2, 3), "w": U(3)}, (2, 3)),
    "QuickGelu": (f"o = {MS}QuickGelu(x)", {"x": U(2, 3)}, (2, 3)),
    "FusedMatMul": (
        f"o = {MS}FusedMatMul<alpha=0.5, transB=1>(x, w)",
        {"x": U(2, 3), "w": U(4, 3)},
        (2, 4),
    ),
    "SkipLayerNormalization": (
        f"o = {MS}SkipLayerNormalization(x, s, w, b)",
        {"x": U(2, 3, 4), "s": U(2, 3, 4), "w": U(4), "b": U(4)},
        (2, 3, 4),
    ),
    "SkipSimplifiedLayerNormalization": (
        f"o = {MS}SkipSimplifiedLayerNormalization(x, s, w)",
        {"x": U(2, 3, 4), "s": U(2, 3, 4), "w": U(4)},
        (2, 3, 4),
    ),
    "GroupQueryAttention": (
        "s = Constant<value=int32[1] {2}>()\n t = Constant<value=int32 {3}>()\n "
        "a = Cast<to=1>(q)\n b = Cast<to=1>(k)\n c = Cast<to=1>(x)\n "
        f"p, keys, values = {MS}GroupQueryAttention<num_heads=2, kv_num_heads=1>"
        "(a, b, c, , , s, t)\n o = Cast<to=11>(p)",
        {"q": U(1, 3, 16), "k": U(1, 3, 8), "x": U(1, 3, 8)},
        (1, 3, 16),
    ),
    "MatMulNBits": (
        "b = Constant<value=uint8[2,1,8] {1, 35, 69, 103, 137, 171, 205, 239, "
        "16, 50, 84, 118, 152, 186, 220, 254}>()\n "
        "s = Constant<value=float[2] {0.5, 0.25}>()\n a = Cast<to=1>(x)\n "
        f"p = {MS}MatMulNBits<K=16, N=2, bits=4, block_size=16>(a, b, s)\n "
        "o = Cast<to=11>(p)",
        {"x": U(2, 16)},
        (2, 2),
    ),
    "ArrayFeatureExtractor": (
        f"i = Constant<value=int64[2] {{2, 0}}>()\n o = {ML}ArrayFeatureExtractor(x, i)",
        {"x": U(2, 3)},
        (2, 2),
    ),
    "LinearRegressor": (
        f"r = {ML}LinearRegressor<coefficients=[0.5, -1.0, 2.0], intercepts=[0.25]>(x)\n "
        "o = Cast<to=11>(r)",
        {"x": U(2, 3)},
        (2, 1),
    ),
    "SVMRegressor": (
        f'r = {ML}SVMRegressor<kernel_type="RBF", kernel_params=[0.5, 0.0, 3.0], '
        "coefficients=[0.5, -1.0], support_vectors=[0.1, 0.2, 0.3, -0.4, 0.5, 0.6], "
        "n_supports=2, rho=[0.2]>(x)\n o = Cast<to=11>(r)",
        {"x": U(2, 3)},
        (2, 1),
    ),
    "Scaler": (
        f"r = {ML}Scaler<offset=[0.5, -1.0, 2.0], scale=[0.25, 2.0, 3.0]>(x)\n "
        "o = Cast<to=11>(r)",
        {"x": U(2, 3)},
        (2, 3),
    ),
    "Normalizer": (
        f'r = {ML}Normalizer<norm="L2">(x)\n o = Cast<to=11>(r)',
        {"x": U(2, 3)},
        (2, 3),
    ),
    "FeatureVectorizer": (
        f"r = {ML}FeatureVectorizer<inputdimensions=[3, 2]>(x, w)\n o = Cast<to=11>(r)",
        {"x": U(2, 3), "w": U(2, 2)},
        (2, 5),
    ),
    "MultiHeadAttention": (
        f"o = {MS}MultiHeadAttention<num_heads=2>(q, k, x)",
        {"q": U(1, 3, 4), "k": U(1, 3, 4), "x": U(1, 3, 4)},
        (1, 3, 4),
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_differences(name: str) -> None:
    body, inputs, out, *opset = CASES[name]
    made = model(body, inputs, out, *opset)
    for domain, version in ((MS, 1), (ML, 3)):
        if domain in body:
            made.opset_import.add(domain=domain[:-1], version=version)
    weights = RNG.uniform(0.5, 1.5, out)
    arrays = list(inputs.values())
    exe = tw.compile(made, threads=1, cache=False)
    _, *found = exe(*arrays, weights)
    narrow = name in IN_FLOAT32
    step, within = (1e-2, 1e-3) if narrow else (1e-6, 1e-6)
    for n, got in enumerate(found):
        want = differences(lambda *a: exe(*a, weights)[0], arrays, n, step)
        np.testing.assert_allclose(got, want, rtol=within, atol=within)


def test_places_that_a_smaller_result_cuts_have_no_gradient() -> None:
    body, inputs, _ = CASES["MaxUnpool"]
    smaller = model(body.replace("1,1,5,6", "1,1,3,4"), inputs, (1, 1, 3, 4))
    with pytest.raises(UnsupportedError, match=r"smaller than \[1, 1, 4, 4\]"):
        tw.compile(smaller, threads=1, cache=False)


IN_FLOAT32 = {
    "DequantizeLinear",
    "FeatureVectorizer",
    "GroupQueryAttention",
    "LinearRegressor",
    "MatMulNBits",
    "Normalizer",
    "SVMRegressor",
    "Scaler",
}
