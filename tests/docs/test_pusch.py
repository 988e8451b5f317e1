"""The 5G receiver of examples/pusch: its parts against NumPy, its scripts as a user runs them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.docs.script import ROOT, printed, printed_here
from tilewright.base.errors import InputError
from tilewright.dataflow.lower import network, program
from tilewright.frontends.onnx import load

FOLDER = ROOT / "examples" / "pusch"
NAMES = [path.stem for path in FOLDER.glob("*.py")]
LAYOUTS = {"4x4": (4, 4, "16QAM"), "6x2": (6, 2, "QPSK"), "8x5": (8, 5, "64QAM")}


@pytest.fixture(scope="module")
def pusch() -> Iterator[Any]:
    """The modules of the example, which import one another by their short names."""
    kept = {name: sys.modules.pop(name) for name in NAMES if name in sys.modules}
    sys.path.insert(0, str(FOLDER))
    wanted = [n for n in NAMES if n != "speed"]  # it is a script and nothing else
    loaded: dict[str, ModuleType] = {
        name: importlib.import_module(name) for name in wanted
    }
    yield SimpleNamespace(**loaded)
    sys.path.remove(str(FOLDER))
    for name in NAMES:
        sys.modules.pop(name, None)
    sys.modules.update(kept)


# ----------------------------------------------------------------------------------------- channel


@pytest.mark.parametrize("profile", "ABC")
def test_taps_have_unit_power_and_delay_spread(pusch: Any, profile: str) -> None:
    delays, powers = pusch.channel.taps(profile)
    mean = powers @ delays
    assert powers.sum() == pytest.approx(1)
    assert np.sqrt(powers @ (delays - mean) ** 2) == pytest.approx(1, abs=2e-3)


def test_the_channel_is_correlated_as_asked(pusch: Any) -> None:
    channel = pusch.channel.Channel("B", speed=30.0, correlation=(0.7, 0.3))
    rng = np.random.default_rng(0)
    draws = [pusch.channel.response(channel, 24, 8, (3, 2), rng) for _ in range(800)]
    h = np.stack(draws)  # draws, symbols, antennas, layers, subcarriers
    assert np.mean(np.abs(h) ** 2) == pytest.approx(1, rel=0.05)

    def across(a: np.ndarray, b: np.ndarray) -> complex:
        return complex(np.mean(a.conj() * b))

    assert across(h[:, :, 0], h[:, :, 2]) == pytest.approx(0.49, abs=0.06)
    assert across(h[:, :, :, 0], h[:, :, :, 1]) == pytest.approx(0.3, abs=0.06)
    # In time Clarke's model, J0(2 pi f t); in frequency the transform of the profile.
    lag = 2 * np.pi * (30.0 * 3.5e9 / pusch.channel.LIGHT) * 7 * pusch.channel.SYMBOL
    bessel = np.mean(
        np.cos(lag * np.cos(np.linspace(0, 2 * np.pi, 720, endpoint=False)))
    )
    assert across(h[:, 0], h[:, 7]) == pytest.approx(bessel, abs=0.06)
    delays, powers = pusch.channel.taps("B")
    turn = np.exp(-2j * np.pi * 20 * pusch.channel.SPACING * channel.spread * delays)
    assert across(h[..., 0], h[..., 20]) == pytest.approx(powers @ turn, abs=0.06)


@pytest.mark.parametrize("name", ["QPSK", "16QAM", "64QAM", "256QAM"])
def test_constellations_have_unit_energy_and_gray_labels(pusch: Any, name: str) -> None:
    levels = sorted(pusch.modulation.axis(name), key=lambda pair: pair[1])
    assert 2 * np.mean([value**2 for _, value in levels]) == pytest.approx(1)
    for (one, _), (other, _) in pairwise(levels):
        assert sum(a != b for a, b in zip(one, other, strict=True)) == 1


def test_16qam_is_the_standards(pusch: Any) -> None:
    bits = np.random.default_rng(0).integers(0, 2, (4, 50))
    s = 1 - 2 * bits
    expected = (s[0] * (2 - s[2]) + 1j * s[1] * (2 - s[3])) / np.sqrt(10)
    np.testing.assert_allclose(pusch.modulation.modulate(bits, "16QAM"), expected)


@pytest.mark.parametrize(
    "sizes",
    [{"subcarriers": 30}, {"layers": 5}, {"modulation": "8PSK"}, {"symbols": 1}],
    ids=str,
)
def test_layouts_that_are_none_are_refused(pusch: Any, sizes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"layout: .*{next(iter(sizes.values()))}"):
        pusch.slot.Layout(**sizes)


@pytest.mark.parametrize(
    "settings",
    [{"profile": "D"}, {"speed": -1.0}, {"correlation": (0.0, 2.0)}],
    ids=str,
)
def test_channels_that_are_none_are_refused(
    pusch: Any, settings: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match=f"channel: .*{next(iter(settings))}"):
        pusch.channel.Channel(**settings)


# ---------------------------------------------------------------------------------------- receiver


def compare(
    pusch: Any, sizes: tuple[int, int, str], method: str, subcarriers: int
) -> None:
    """Every step against NumPy in double precision, on the same slot."""
    layout = pusch.slot.Layout(subcarriers, *sizes)
    slot = pusch.slot.send(
        layout, pusch.channel.Channel("C"), 20.0, np.random.default_rng(1)
    )
    receiver = pusch.receiver.Receiver(layout, method, threads=1)
    received = pusch.receiver.blocked(slot.received)
    pilots = np.stack([slot.pilots.real, slot.pilots.imag]).astype(np.float32)

    def flat(values: np.ndarray, blocks: int) -> np.ndarray:
        return pusch.receiver.joined(values, blocks, subcarriers)

    h = pusch.reference.estimate(layout, slot)
    found = flat(receiver.estimate(received, pilots), 1)
    np.testing.assert_allclose(found[0] + 1j * found[1], h, atol=1e-5)

    x, variance = pusch.reference.detect(h, slot.received[layout.pilots :], slot.noise)
    symbols = flat(receiver.detect(receiver.h, received, slot.noise), 0).swapaxes(0, 1)
    np.testing.assert_allclose(
        symbols[:, :, 0] + 1j * symbols[:, :, 1], x, rtol=1e-3, atol=1e-3
    )
    receiver.detect(pusch.receiver.blocked(h), received, slot.noise)
    solutions = flat(receiver.solutions, 0).swapaxes(0, 1)
    error, bound = pusch.accuracy.accuracy(
        h, slot.received[layout.pilots :], slot.noise, solutions
    )
    assert (error <= bound).all() and bound.min() < 1e-3
    np.testing.assert_allclose(flat(receiver.variance, 0), variance, rtol=1e-3)

    ratios = flat(receiver.demap(receiver.x, receiver.variance), 1)
    expected = pusch.reference.demap(x, variance, layout.modulation)
    np.testing.assert_allclose(ratios, expected, rtol=5e-3, atol=5e-2)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", ["cholesky", "lu"])
@pytest.mark.parametrize("sizes", LAYOUTS)
def test_each_step_agrees_with_double_precision(
    pusch: Any, sizes: str, method: str
) -> None:
    compare(pusch, LAYOUTS[sizes], method, subcarriers=60)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["cholesky", "lu"])
def test_sixteen_antennas_and_eight_layers(pusch: Any, method: str) -> None:
    compare(pusch, (16, 8, "256QAM"), method, subcarriers=3276)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["QPSK", "16QAM", "64QAM", "256QAM"])
def test_ratios_of_clean_symbols_say_the_bits(pusch: Any, name: str) -> None:
    layout = pusch.slot.Layout(60, 4, 2, name)
    slot = pusch.slot.send(
        layout, pusch.channel.Channel(), 60.0, np.random.default_rng(2)
    )
    ratios = pusch.receiver.Receiver(layout, threads=1)(
        slot.received, slot.pilots, slot.noise
    )
    assert ratios.shape == slot.bits.shape
    assert np.mean((ratios < 0) != slot.bits) < 1e-3


def test_error_rates_are_those_of_double_precision(pusch: Any) -> None:
    layout = pusch.slot.Layout(240, 4, 4, "QPSK")
    found = list(pusch.error_rate.curve(layout, pusch.channel.Channel("A"), least=100))
    assert all(point.compiled >= 100 for point, _ in found)
    assert max(abs(gap) for _, gap in found) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("modulation", ["QPSK", "16QAM", "64QAM", "256QAM"])
def test_a_thousand_errors_a_point(pusch: Any, modulation: str) -> None:
    layout = pusch.slot.Layout(3276, 4, 4, modulation)
    found = list(
        pusch.error_rate.curve(layout, pusch.channel.Channel("A"), least=1000, slots=2)
    )
    assert all(min(point.compiled, point.double) >= 1000 for point, _ in found)
    assert max(abs(gap) for _, gap in found) < 0.05


# --------------------------------------------------------------------------------------- task graph


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", ["cholesky", "lu"])
def test_the_task_graph_computes_what_the_receiver_does(
    pusch: Any, method: str
) -> None:
    layout = pusch.slot.Layout(12, 3, 2)
    slot = pusch.slot.send(
        layout, pusch.channel.Channel(), 20.0, np.random.default_rng(0)
    )
    receiver = pusch.receiver.Receiver(layout, method, threads=1)
    inputs = {
        "y": pusch.receiver.blocked(slot.received),
        "pilots": np.stack([slot.pilots.real, slot.pilots.imag]).astype(np.float32),
    }
    x = receiver.detect(receiver.estimate(**inputs), inputs["y"], slot.noise)
    net = pusch.explore.network(layout, method)
    assert net.families["matched0"] == "matmul"  # of complex numbers
    rest = {"sign": receiver.sign, "noise": np.array([slot.noise], np.float32)}
    for choice in ("whole", "loop", "lmv", "mv", "op", "tiled"):
        named = {
            n: choice if choice in known else "whole"
            for n, known in net.choices.items()
        }
        found = program(net, named).run(inputs | rest)
        for n in range(2 * layout.layers):
            expected = x[:, :, n // 2, n % 2]
            np.testing.assert_allclose(found[f"x{n}"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("factorization", ["Cholesky", "LU"])
def test_the_model_detects(pusch: Any, factorization: str) -> None:
    layout = pusch.slot.Layout(8, 3, 2, symbols=4)
    rng = np.random.default_rng(0)
    h = rng.standard_normal((8, 3, 2)) + 1j * rng.standard_normal((8, 3, 2))
    y = rng.standard_normal((8, 3, 3)) + 1j * rng.standard_normal((8, 3, 3))
    # A vector is the first column of its real matrix.
    vectors = np.concatenate([y.real, y.imag], -2).astype(np.float32)
    inputs = {
        "h": pusch.model.real(h),
        "y": vectors,
        "noise": 0.1 * np.eye(4, dtype=np.float32),
    }
    model = pusch.model.model(layout, factorization)
    found = program(network(load(model)), {"matmul": "mv"}).run(inputs)["x"]
    adjoint = h.conj().swapaxes(1, 2)
    x = np.linalg.solve(adjoint @ h + 0.1 * np.eye(2), adjoint @ y)
    expected = np.concatenate([x.real, x.imag], -2)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        tw.compile(model)(inputs), expected, rtol=1e-3, atol=1e-4
    )


# ----------------------------------------------------------------------------------------- scripts

SAYS = {
    "speed 12 1 1 2x1": [
        "2 x 1, 12 x 14:",
        "of the bound",
        "NumPy",
    ],
    "error_rate --subcarriers 60 --errors 10 --slots 1 --modulations QPSK --profiles B": [
        "TDL-B, QPSK, 4 x 4",
        "largest gap",
        "error_rate.svg written",
    ],
    "model 8 3 2": ["pusch_cholesky.onnx written", "pusch_lu.onnx written"],
    "explore 8 2 2": ["cholesky", "lu", "loop", "128 PEs"],
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("line", SAYS, ids=lambda line: line.split()[0])
def test_script(pusch: Any, line: str, tmp_path: Path) -> None:
    name, *arguments = line.split()
    run = printed if name == "model" else printed_here
    found = run(FOLDER / f"{name}.py", arguments, tmp_path)
    for words in SAYS[line]:
        assert words in found
    assert (
        name != "speed" or found.count("of the bound") == 2
    )  # this layout, by both methods
    if name == "error_rate":
        assert (tmp_path / "error_rate.svg").read_text().startswith("<svg")
