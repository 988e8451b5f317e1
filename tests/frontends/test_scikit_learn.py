"""Models of scikit-learn through skl2onnx, natively: beside scikit-learn and ONNX Runtime."""

import warnings

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from sklearn import (
    cluster,
    datasets,
    decomposition,
    ensemble,
    impute,
    linear_model,
    neural_network,
    pipeline,
    preprocessing,
    svm,
    tree,
)

import tilewright as tw
from tilewright.base.errors import UnsupportedError
from tilewright.runtime.model import HostFallbackStep

skl2onnx = pytest.importorskip("skl2onnx")
warnings.filterwarnings("ignore", module="sklearn")

ROWS = 37


def data(classes):
    x, y = datasets.make_classification(
        240, 8, n_informative=6, n_classes=classes, random_state=classes
    )
    return x.astype(np.float32), y


def converted(model, x, monkeypatch, **options):
    """The model in ONNX; skl2onnx writes booleans where ONNX wants ints, which onnx refuses."""
    from skl2onnx.common import _container

    def make_node(*args, **attributes):
        for name, value in attributes.items():
            if isinstance(value, list):
                attributes[name] = [
                    int(v) if isinstance(v, bool | np.bool_) else v for v in value
                ]
        return onnx.helper.make_node(*args, **attributes)

    monkeypatch.setattr(_container, "make_node", make_node)
    return skl2onnx.to_onnx(model, x[:1], **options)


def compared(proto, x, want, atol=1e-6):
    """Results equal to scikit-learn's and ONNX Runtime's, without host fallbacks."""
    exe = tw.compile(proto, threads=1, cache=False)
    given = {proto.graph.input[0].name: x}
    found = exe(x)
    found = found if isinstance(found, tuple) else (found,)
    built = exe.specialized(given) if hasattr(exe, "specialized") else exe
    host = [s.op for s in built.model.steps if isinstance(s, HostFallbackStep)]
    assert not host
    session = ort.InferenceSession(proto.SerializeToString())
    theirs = session.run(None, given)
    for ours, other, right in zip(found, theirs, want, strict=True):
        assert (ours.dtype, ours.shape) == (other.dtype, other.shape)
        if ours.dtype.kind == "i":
            assert np.array_equal(ours, np.reshape(right, ours.shape))
        else:
            right = np.reshape(right, ours.shape)
            np.testing.assert_allclose(ours, right, rtol=2e-6, atol=atol)
            np.testing.assert_allclose(ours, other, rtol=1e-4, atol=20 * atol)


CLASSIFIERS = {
    "forest": lambda: ensemble.RandomForestClassifier(12, max_depth=6, random_state=0),
    "extra": lambda: ensemble.ExtraTreesClassifier(6, random_state=0),
    "tree": lambda: tree.DecisionTreeClassifier(random_state=0),
    "boosting": lambda: ensemble.GradientBoostingClassifier(n_estimators=9),
    "histograms": lambda: ensemble.HistGradientBoostingClassifier(max_iter=9),
    "logistic": lambda: linear_model.LogisticRegression(),
    "perceptron": lambda: neural_network.MLPClassifier((6,), max_iter=9),
    "pipeline": lambda: pipeline.make_pipeline(
        preprocessing.StandardScaler(),
        decomposition.PCA(4),
        linear_model.LogisticRegression(),
    ),
}


@pytest.mark.representatives("forest-3", "boosting-2", "perceptron-2", "pipeline-2")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    "name",
    [
        # Like the forest, and the end of the pipeline.
        pytest.param(n, marks=[pytest.mark.slow] * (n in ("extra", "logistic")))
        for n in CLASSIFIERS
    ],
)
def test_classifier(name, classes, monkeypatch):
    x, y = data(classes)
    if name == "histograms":
        x[np.random.default_rng(0).random(x.shape) < 0.2] = np.nan
    model = CLASSIFIERS[name]().fit(x, y)
    proto = converted(model, x, monkeypatch, options={"zipmap": False})
    rows = x[:ROWS]
    compared(proto, rows, [model.predict(rows), model.predict_proba(rows)])


@pytest.mark.representatives("2-rbf", "3-poly")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kernel", ["linear", "poly", "rbf", "sigmoid"])
@pytest.mark.parametrize("classes", [2, 3])
def test_support_vectors(kernel, classes, monkeypatch):
    x, y = data(classes)
    model = svm.SVC(kernel=kernel, decision_function_shape="ovo").fit(x, y)
    options = {id(model): {"zipmap": False, "raw_scores": classes == 2}}
    proto = converted(model, x, monkeypatch, options=options)
    rows = x[:ROWS]
    scores = model.decision_function(rows)
    if classes == 2:
        scores = np.stack([-scores, scores], 1)
    compared(proto, rows, [model.predict(rows), scores], atol=2e-6)


REGRESSORS = {
    "forest": lambda: ensemble.RandomForestRegressor(9, max_depth=5, random_state=0),
    "boosting": lambda: ensemble.GradientBoostingRegressor(n_estimators=9),
    "histograms": lambda: ensemble.HistGradientBoostingRegressor(max_iter=9),
    "linear": lambda: linear_model.LinearRegression(),
    "vectors": lambda: svm.SVR(),
}


@pytest.mark.representatives("boosting", "linear", "vectors")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REGRESSORS)
def test_regressor(name, monkeypatch):
    x, y = data(2)
    y = (x[:, 0] * 2 + y).astype(np.float32)
    model = REGRESSORS[name]().fit(x, y)
    compared(converted(model, x, monkeypatch), x[:ROWS], [model.predict(x[:ROWS])])


TRANSFORMERS = {
    "standard": lambda: preprocessing.StandardScaler(),
    "min_max": lambda: preprocessing.MinMaxScaler(),
    "l1": lambda: preprocessing.Normalizer("l1"),
    "l2": lambda: preprocessing.Normalizer("l2"),
    "binary": lambda: preprocessing.Binarizer(threshold=0.2),
    "components": lambda: decomposition.PCA(3),
    "imputer": lambda: impute.SimpleImputer(strategy="mean"),
    "polynomial": lambda: preprocessing.PolynomialFeatures(2),
}


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformer(name, monkeypatch):
    x, _ = data(2)
    if name == "imputer":
        x[::3, ::2] = np.nan
    model = TRANSFORMERS[name]().fit(x)
    compared(converted(model, x, monkeypatch), x[:ROWS], [model.transform(x[:ROWS])])


@pytest.mark.filterwarnings("ignore")
def test_clusters(monkeypatch):
    x, _ = data(2)
    model = cluster.KMeans(4, n_init=1, random_state=0).fit(x)
    want = [model.predict(x[:ROWS]), model.transform(x[:ROWS])]
    compared(converted(model, x, monkeypatch), x[:ROWS], want, atol=5e-6)


@pytest.mark.filterwarnings("ignore")
def test_numbers_as_categories(monkeypatch):
    x = np.random.default_rng(0).integers(0, 4, (60, 3))
    one_hot = preprocessing.OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    one_hot.fit(x)
    unknown = x[:9] + (np.arange(9) == 4)[:, None] * 7
    proto = converted(one_hot, x, monkeypatch)
    compared(proto, unknown, [one_hot.transform(unknown)])


def test_a_threshold_between_two_numbers_of_float32(monkeypatch):
    low = np.float32(4)
    high = np.nextafter(low, np.float32(5))
    x = np.array([[low], [high]], np.float32)
    model = tree.DecisionTreeClassifier().fit(x, [0, 1])
    proto = converted(model, x, monkeypatch, options={"zipmap": False})
    compared(proto, x, [[0, 1], np.eye(2)])


@pytest.mark.filterwarnings("ignore")
def test_dictionaries_are_refused_with_what_to_do(monkeypatch):
    x, y = data(2)
    model = linear_model.LogisticRegression().fit(x, y)
    with pytest.raises(UnsupportedError, match="ZipMap") as caught:
        tw.compile(converted(model, x, monkeypatch))
    assert "zipmap" in str(caught.value.hint)
