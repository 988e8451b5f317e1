"""The models and encoders of ai.onnx.ml, natively, against ONNX Runtime and ONNX's reference."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper

from tests.graph.one_operator import agree, model_of, run
from tilewright.base.errors import ModelError
from tilewright.frontends.onnx import load

RNG = np.random.default_rng(3)
ML = {"domain": "ai.onnx.ml", "opset": 3}
MODES = [
    "BRANCH_LEQ",
    "BRANCH_LT",
    "BRANCH_GTE",
    "BRANCH_GT",
    "BRANCH_EQ",
    "BRANCH_NEQ",
]


def runtime(op_type, x, outputs=1, opset=3, **attributes):
    """Check against ONNX Runtime."""
    options = {"outputs": outputs, "domain": "ai.onnx.ml", "opset": opset}
    model = model_of(op_type, [x], **options, **attributes)
    model.opset_import.append(helper.make_opsetid("", 17))
    session = ort.InferenceSession(model.SerializeToString())
    want = session.run(None, {"x0": x})
    for ours, theirs in zip(run(model, [x]), want, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def forest(votes, ids, weights, trees=3, modes=MODES, missing=0):
    """Attributes of full trees of depth 2 over 3 features; a vote per leaf and id in `ids`."""
    columns = {k: [] for k in ("treeids", "nodeids", "featureids", "values", "modes")}
    columns |= {k: [] for k in ("truenodeids", "falsenodeids")}
    places = []
    for t in range(trees):
        for n in range(7):
            leaf = n > 2
            ways = (0, 0) if leaf else (2 * n + 1, 2 * n + 2)
            mode = "LEAF" if leaf else str(RNG.choice(modes))
            row = (t, n, int(RNG.integers(3)), float(RNG.integers(3)), mode, *ways)
            for column, entry in zip(columns.values(), row, strict=True):
                column.append(entry)
            places += [(t, n)] * (leaf * len(ids))
    found = {f"nodes_{k}": v for k, v in columns.items()}
    found[f"{votes}_treeids"], found[f"{votes}_nodeids"] = map(list, zip(*places))
    found[f"{votes}_ids"] = [*ids] * (len(places) // len(ids))
    found[f"{votes}_weights"] = [float(w) for w in weights(size=len(places))]
    if missing:
        tracks = [int(RNG.random() < 0.5) for _ in columns["modes"]]
        found["nodes_missing_value_tracks_true"] = tracks
    return found


def rows(dtype=np.float32, nans=True):
    x = RNG.integers(0, 3, (21, 3)).astype(dtype)
    if nans:
        x[RNG.random(x.shape) < 0.2] = np.nan
    return x


@pytest.mark.covering(1)
@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("ids", [[0, 1, 2], [0, 2, 1, 1]])
def test_tree_regressor(how, ids):
    trees = forest("target", ids, RNG.normal, missing=1)
    base = [0.25, -1.0, 0.5]
    runtime(
        "TreeEnsembleRegressor",
        rows(),
        n_targets=3,
        aggregate_function=how,
        base_values=base,
        **trees,
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tree_regressor_of_other_types(dtype):
    trees = forest("target", [0], RNG.normal, modes=["BRANCH_LEQ"])
    runtime("TreeEnsembleRegressor", rows(dtype, nans=False), n_targets=1, **trees)


@pytest.mark.covering(1)
@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize(("classes", "ids"), [(3, [0, 1, 2]), (3, [1]), (2, [0])])
def test_tree_classifier(classes, ids, positive, post):
    weights = (lambda size: RNG.random(size) / 3) if positive else RNG.normal
    trees = forest("class", ids, weights, modes=["BRANCH_LEQ"])
    labels = [7, 5, 9][:classes]
    options = {"classlabels_int64s": labels, "post_transform": post}
    runtime("TreeEnsembleClassifier", rows(nans=False), 2, **options, **trees)


@pytest.mark.sampled(5)  # none, and vectors with a rest
@pytest.mark.parametrize("n", [0, 1, 3, 8, 9, 1500])
def test_any_number_of_rows(n):
    trees = forest("target", [0, 1], RNG.normal, trees=5)
    x = RNG.integers(0, 3, (n, 3)).astype(np.float32)
    runtime("TreeEnsembleRegressor", x, n_targets=2, **trees)


def test_wrong_trees_are_named():
    trees = forest("target", [0], RNG.normal)
    x = rows()

    def refused(match, **changes):
        model = model_of("TreeEnsembleRegressor", [x], **ML, **{**trees, **changes})
        with pytest.raises(ModelError, match=match):
            run(load(model) and model, [x])

    refused("feature 3 of 3", nodes_featureids=[3] * 21)
    refused("no node 99", nodes_truenodeids=[99] * 21)
    refused("same number", nodes_nodeids=[0] * 21)
    refused("mode 'ODD'", nodes_modes=["ODD"] * 21)
    refused("aggregate_function 'MEAN'", aggregate_function="MEAN")


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_scaler(dtype):
    x = rows(dtype, nans=False)
    runtime("Scaler", x, offset=[1.0, 2.0, -0.5], scale=[0.5, 2.0, 3.0])
    runtime("Scaler", x, offset=[1.0], scale=[0.5])


@pytest.mark.parametrize("norm", ["L1", "L2", "MAX"])
def test_normalizer(norm):
    x = RNG.normal(size=(5, 4)).astype(np.float32)
    x[2] = 0
    agree("Normalizer", [x], norm=norm, **ML)


def test_imputer():
    x = rows()
    for values in ([9.0], [7.0, 8.0, 9.0]):
        options = {"imputed_value_floats": values}
        runtime("Imputer", x, replaced_value_float=np.nan, **options)
        runtime("Imputer", x, replaced_value_float=1.0, **options)
    runtime(
        "Imputer",
        rows(np.int64, nans=False),
        imputed_value_int64s=[4],
        replaced_value_int64=2,
    )


def test_one_hot_encoder():
    runtime("OneHotEncoder", np.array([[1], [5], [9]]), cats_int64s=[9, 1], zeros=1)


def test_label_encoder():
    x = np.array([[3, 1, 4], [9, 2, 3]])
    keys = [1, 3, 4]
    runtime("LabelEncoder", x, opset=2, keys_int64s=keys, values_int64s=[6, 5, 7])
    runtime(
        "LabelEncoder",
        np.array([1, np.nan, 5], np.float32),
        opset=2,
        keys_floats=[2.0, 1.0],
        values_int64s=[6, 5],
        default_int64=4,
    )
    runtime(
        "LabelEncoder",
        x,
        opset=2,
        keys_int64s=keys,
        values_floats=[0.5, 1.5, 2.5],
        default_float=-1.0,
    )


def test_feature_vectorizer():
    given = [rows(nans=False), rows(nans=False)]
    agree("FeatureVectorizer", given, inputdimensions=[2, 5], **ML)


@pytest.mark.covering(1)
@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("classes", [2, 3])
def test_linear(classes, post):
    x = RNG.normal(size=(6, 4)).astype(np.float32)
    options = {
        "coefficients": RNG.normal(size=4 * classes).tolist(),
        "intercepts": RNG.normal(size=classes).tolist(),
        "post_transform": post,
    }
    runtime("LinearClassifier", x, 2, classlabels_ints=[4, 2, 8][:classes], **options)
    runtime(
        "LinearRegressor", x, targets=classes, **{**options, "post_transform": "NONE"}
    )


@pytest.mark.covering(1)
@pytest.mark.parametrize("one_class", [0, 1])
@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_svm_regressor(kernel, one_class):
    x = RNG.normal(size=(6, 4)).astype(np.float32)
    runtime(
        "SVMRegressor",
        x,
        kernel_type=kernel,
        kernel_params=[0.3, 0.1, 2.0],
        n_supports=5,
        support_vectors=RNG.normal(size=20).tolist(),
        coefficients=RNG.normal(size=5).tolist(),
        rho=[0.2],
        one_class=one_class,
    )
