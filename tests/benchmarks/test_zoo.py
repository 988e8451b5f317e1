"""What the results of the zoo are judged by."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from benchmarks import (  # noqa: E402
    commits,
    harness,
    zoo,
    zoo_checks,
    zoo_export,
    zoo_lists,
    zoo_models,
    zoo_speed,
)
from tilewright.cli import engines, rounds, worker  # noqa: E402


class _Turned(torch.nn.Module):
    """A batch norm whose gradient comes as columns, with a batch of one that has a stride."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm2d(128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x).reshape(1, 128, 16).transpose(1, 2)


def test_gradients_of_a_batch_norm_are_those_of_its_definition() -> None:
    torch.manual_seed(0)
    module, x = _Turned().eval(), torch.randn(1, 128, 4, 4)
    wide, call, inputs = zoo_checks._double(module, {"x": x})
    tangent = torch.empty_strided((1, 16, 128), (128, 128, 1), dtype=torch.float64)
    tangent.normal_()
    call(*inputs.values()).backward(tangent)
    bias = wide.norm.bias.grad
    torch.testing.assert_close(bias, tangent.sum((0, 1)))


def test_a_row_of_times_has_peers_failures_and_dear_kernels(monkeypatch) -> None:
    """The kernels are named exactly where a peer is faster."""

    def broken(*_: object) -> None:
        raise ValueError("not exported\nmore")

    peers = {"torch_eager": zoo_speed._eager, "onnxruntime": broken}
    monkeypatch.setattr(zoo_speed, "_PEERS", peers)
    inputs = {"x": torch.ones(64, 128)}
    module = torch.nn.Linear(128, 64)
    monkeypatch.setattr(zoo_speed, "LOSS", 0.0)
    row = zoo_speed.timed(module, inputs, [1])
    assert row["status"] == "ok" and row["ms"] > 0 and "kernels" not in row
    assert row["speed"].keys() == {"torch_eager"} and row["speed"]["torch_eager"] > 0
    assert row["failed"] == {"onnxruntime": "ValueError: not exported"}
    monkeypatch.setattr(zoo_speed, "LOSS", float("inf"))
    kernels = zoo_speed.timed(module, inputs, [1])["kernels"]
    assert kernels and all(isinstance(name, str) and time > 0 for name, time in kernels)


def test_a_race_has_times_of_right_results_alone(monkeypatch) -> None:
    module, inputs = torch.nn.Linear(128, 64), {"x": torch.ones(64, 128)}
    row = zoo_speed.raced(module, inputs, [1], ["torch_eager"])
    assert row["status"] == "ok" and row["graphs"] == 1 and row["ms"] > 0
    assert row["speed"].keys() == {"torch_eager"} and row["speed"]["torch_eager"] > 0
    assert row["errors"].keys() == {"tilewright", "torch_eager"}
    wrong = {"status": "wrong", "message": "off by 1"}
    monkeypatch.setattr(zoo_checks, "captured", lambda *_: wrong)
    assert zoo_speed.raced(module, inputs, [1], ["torch_eager"]) == wrong


def test_a_summary_has_the_mean_of_speeds_and_the_lowest() -> None:
    rows = [
        {"model": "a", "status": "ok", "speed": {"torch_compile": 2.0}},
        {"model": "b", "status": "ok", "speed": {"torch_compile": 0.5}},
        {"model": "c", "status": "timeout", "message": "over 9 s"},
    ]
    assert list(zoo.summary(rows)) == [
        "2 ok, 1 timeout",
        "against torch_compile: 1.00 in the geometric mean of 2, lowest 0.50 (b)",
        "c: timeout: over 9 s",
    ]


def test_names_of_all_lists_differ() -> None:
    own = {name: rows for name, rows in zoo_lists.LISTS.items() if name != "hundred"}
    names = [e.name for rows in own.values() for e in rows]
    assert len(set(names)) == len(names)
    hundred = {e.name for e in zoo_lists.LISTS["hundred"]}
    assert len(hundred) == 100 and hundred <= set(names)
    assert zoo_lists.named("timm/darknet17") is zoo_models.DRAWN[0]


def test_an_exported_network_is_what_commits_time(tmp_path) -> None:
    """A network whose results are a dictionary, with its float64 results beside it."""

    class Net(torch.nn.Module):
        config = None

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"sum": x + 2 * y, "product": x * y}

    path = tmp_path / "net.onnx"
    inputs = {"x": torch.randn(2, 3), "y": torch.randn(2, 3)}
    row = zoo_export.written(Net(), inputs, path)
    assert row["status"] == "ok"
    feeds = worker.read_feeds(harness.inputs_of(path))
    right = commits.reference(harness.inputs_of(path))
    assert right is not None and all(y.dtype == "float64" for y in right)
    for engine, file in (
        ("tilewright", path),
        ("torch_eager", path.with_suffix(".pt2")),
    ):
        trust = {"trust": True} if engine == "torch_eager" else {}
        found = engines.ENGINES[engine](file, 1, {}, **trust)(feeds)
        assert rounds.difference(found, right) < 1e-6, engine
