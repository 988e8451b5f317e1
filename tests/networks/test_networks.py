"""Small networks of many architectures against float64: whole, and every tensor inside.

As outputs, the tensors inside are never fused away; so the whole network is compared as users run
it, and the one with all its tensors says which operator is wrong by itself.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import tilewright as tw
from tilewright.base.errors import TilewrightWarning
from tilewright.driver import early_kernels
from tilewright.driver.processes import can_fork
from tilewright.frontends.onnx.export import to_model
from tilewright.testing.graphs import Case
from tilewright.testing.networks import FAMILIES, NETWORKS
from tilewright.testing.networks.judge import NetworkJudge, every_value, lines

# One of each family, which compiles quickly; the others are slow tests. Those at every eighth and
# sixth place take part in more than one form.
SAMPLE = (
    "attention_then_convolution maxout_chain efficientnet_v2 unet_unpadded feature_pyramid res2net "
    "dcgan_generator mamba c3d gcn qdq_concat"
).split()
REST = [name for name in NETWORKS if name not in SAMPLE]
FORMS = [pytest.param(name, id=name) for name in SAMPLE]
FORMS += [pytest.param(name, id=name, marks=pytest.mark.slow) for name in REST]


def run(case: Case, math: str = "default", threads: int = 2) -> list[str]:
    """What is wrong with two runs of a compiled network."""
    judge = NetworkJudge(case.graph, case.inputs, math)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TilewrightWarning)  # of host fallbacks
        exe = tw.compile(case.graph, math=math, threads=threads, cache=False)
    arrays = [case.inputs[v.name] for v in case.graph.inputs]
    return lines(judge, (exe(*arrays) for _ in range(2)))


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process makes kernels, as it does for users; workers of xdist have none."""
    monkeypatch.setattr(early_kernels, "FEWEST", 0)
    monkeypatch.setattr(early_kernels, "SHORTEST", 1)
    monkeypatch.setattr(early_kernels, "can_fork", can_fork)


@pytest.mark.usefixtures("early")
@pytest.mark.parametrize("name", FORMS)
def test_a_network_gives_what_it_gives_in_float64(name: str) -> None:
    assert not run(NETWORKS[name]())


@pytest.mark.parametrize(
    ("math", "name"),
    [
        pytest.param(m, n, marks=() if n in SAMPLE[start::8] else pytest.mark.slow)
        for start, m in enumerate(("exact", "fast"))
        for n in NETWORKS
    ],
)
def test_so_it_does_in_other_arithmetic(math: str, name: str) -> None:
    assert not run(NETWORKS[name](), math, threads=1)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", FORMS)
def test_every_tensor_inside_is_right(name: str) -> None:
    case = NETWORKS[name]()
    assert not run(Case(every_value(case.graph), case.inputs))


@pytest.mark.slow
@pytest.mark.parametrize("math", ["exact", "fast"])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_tensor_inside_is_right_in_other_arithmetic(name: str, math: str) -> None:
    case = NETWORKS[name]()
    assert not run(Case(every_value(case.graph), case.inputs), math)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_read_from_a_file_is_the_same(name: str) -> None:
    """Through the importer, on the vectors of lesser processors."""
    case = NETWORKS[name]()
    judge = NetworkJudge(case.graph, case.inputs)
    arrays = [case.inputs[v.name] for v in case.graph.inputs]
    model = to_model(case.graph).SerializeToString()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TilewrightWarning)
        for level in ("x86-64-v2", "x86-64-v3"):
            exe = tw.compile(model, mcpu=level, threads=3, cache=False)
            assert not judge.wrong(exe(*arrays)), level


# -- the networks and the judge themselves


@pytest.mark.slow
def test_every_family_is_there_and_signals_neither_fade_nor_explode() -> None:
    assert len(NETWORKS) >= 120 and len(FAMILIES) == 11
    for name, make in NETWORKS.items():
        case = make()
        for v, a in NetworkJudge(case.graph, case.inputs).expected.items():
            if a.dtype.kind == "f" and a.size > 1:
                assert 1e-3 < np.abs(a).max() < 100 and np.isfinite(a).all(), (name, v)
                assert np.std(a) > 1e-4, f"{name}: {v} is constant and proves nothing"


def test_each_family_has_a_fast_test() -> None:
    for family, module in FAMILIES.items():
        assert vars(module).keys() & NETWORKS.keys() & {*SAMPLE}, family


def test_a_network_is_the_same_each_time() -> None:
    first, second = (NETWORKS["resnet_basic"]() for _ in range(2))
    pairs = zip(
        first.graph.constants.values(), second.graph.constants.values(), strict=True
    )
    assert all(np.array_equal(a, b) for a, b in pairs)
    assert np.array_equal(*(c.inputs["x1"] for c in (first, second)))


@pytest.mark.parametrize("share", [1e-3, 1e-4])
@pytest.mark.parametrize("name", ["resnet_basic", "llama", "lstm"])
def test_a_fault_of_a_thousandth_of_the_peak_in_one_element_is_seen(
    name: str, share: float
) -> None:
    case = NETWORKS[name]()
    judge = NetworkJudge(case.graph, case.inputs)
    arrays = [judge.expected[v].astype(v.dtype.numpy) for v in judge.outputs if v.dtype]
    assert not judge.wrong(arrays)
    spoiled = arrays[0].copy()
    spoiled.flat[-1] += share * np.abs(spoiled).max()
    (line,) = judge.wrong([spoiled, *arrays[1:]])
    assert "1 of" in line and judge.outputs[0].name in line


def test_other_shapes_dtypes_counts_and_numbers_that_are_none_are_wrong() -> None:
    case = NETWORKS["lenet"]()
    judge = NetworkJudge(case.graph, case.inputs)
    (good,) = (a.astype(np.float32) for a in judge.expected.values())
    assert judge.wrong([good, good]) == ["2 outputs, expected 1"]
    assert judge.wrong(good.astype(np.float64)) and judge.wrong(good[:1])
    assert judge.wrong(np.where(good == good.max(), np.nan, good).astype(np.float32))
    assert lines(judge, iter([good, good])) == []
    other = np.nextafter(good, np.float32(0))
    assert lines(judge, iter([good, other])) == [
        "run 1 gives other bits than the first"
    ]
