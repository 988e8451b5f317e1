"""Programs that torch.export.save wrote: compiled, cached, and refused for what they are not."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.base import events
from tilewright.base.errors import MemoryLimitError, ModelError
from tilewright.frontends.load import load

torch = pytest.importorskip("torch")


class Nested(torch.nn.Module):
    """Arguments and results in dictionaries and lists, one argument by name."""

    def forward(self, a, pairs, *, scale):
        return {"sum": a + pairs["left"], "product": a * pairs["right"][0] * scale}


@pytest.fixture(scope="module")
def program():
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3)
    )
    batch = torch.export.Dim("batch")
    return torch.export.export(
        module, (torch.randn(4, 6),), dynamic_shapes=({0: batch},)
    )


@pytest.fixture
def path(program, tmp_path):
    torch.export.save(program, tmp_path / "m.pt2")
    return tmp_path / "m.pt2"


def test_a_saved_program_computes_what_its_module_does(
    program, path, monkeypatch, tmp_path
):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    x = torch.randn(7, 6)
    expected = program.module()(x).detach().numpy()
    (size,) = load(path).inputs[0].shape[:1]
    for seen_before in (False, True):
        with events.record() as happened:
            exe = tw.compile(path, dims={size: 7})
        assert any(e.kind == "model-cached" for e in happened) == seen_before
        np.testing.assert_allclose(exe(x.numpy()), expected, rtol=1e-5, atol=1e-6)


def test_a_program_brings_its_own_example_inputs(program):
    x = torch.randn(3, 6)
    np.testing.assert_allclose(
        tw.compile(program)(x.numpy()),
        program.module()(x).detach(),
        rtol=1e-5,
        atol=1e-6,
    )


def test_nested_arguments_become_inputs_in_order(tmp_path):
    a, left, right, scale = (torch.randn(3, 4) for _ in range(4))
    named = {"scale": scale}
    made = torch.export.export(Nested(), (a, {"left": left, "right": [right]}), named)
    torch.export.save(made, tmp_path / "n.pt2")
    exe = tw.compile(tmp_path / "n.pt2")
    total, product = exe(*(t.numpy() for t in (a, left, right, scale)))
    np.testing.assert_allclose(total, a + left, rtol=1e-6)
    np.testing.assert_allclose(product, a * right * scale, rtol=1e-6)


@pytest.mark.parametrize("name", ["m.pt", "m.pth", "m.safetensors", "m.tflite"])
def test_files_of_other_kinds_are_told_what_to_do(tmp_path, name):
    (tmp_path / name).write_bytes(b"weights")
    with pytest.raises(ModelError, match="is not a model that can be read") as caught:
        load(tmp_path / name)
    assert ("tf2onnx" if name == "m.tflite" else "torch.export.save") in str(
        caught.value
    )


def test_a_damaged_program_a_missing_one_and_a_folder(path, tmp_path, capfd):
    (tmp_path / "half.pt2").write_bytes(path.read_bytes()[:500])
    (tmp_path / "text.pt2").write_text("hello")
    (tmp_path / "folder.pt2").mkdir()
    for name, why in {
        "half": "not an exported program, or a damaged one",
        "text": "not an exported program, or a damaged one",
        "folder": "it is a folder",
        "absent": "no such file",
    }.items():
        with pytest.raises(ModelError, match=why) as caught:
            tw.compile(tmp_path / f"{name}.pt2")
        assert caught.value.where == str(tmp_path / f"{name}.pt2")
    assert capfd.readouterr().err == ""


def test_one_that_is_too_large_is_not_read(path):
    with pytest.raises(MemoryLimitError, match="over the memory limit"):
        tw.compile(path, memory_limit=100)
