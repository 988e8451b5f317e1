"""Programs that torch.export.save wrote: compiled, cached, and refused for what they are not."""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.base import events
from tilewright.base.errors import (
    InputError,
    MemoryLimitError,
    ModelError,
    UnsupportedError,
)
from tilewright.frontends.load import load
from tilewright.frontends.torch.aten.builder import source_of

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
    pairs = {"left": left.numpy(), "right": [right.numpy()]}
    found = exe(a.numpy(), pairs, scale=scale.numpy())
    np.testing.assert_allclose(found["sum"], a + left, rtol=1e-6)
    np.testing.assert_allclose(found["product"], a * right * scale, rtol=1e-6)
    flat = [t.numpy() for t in (a, left, right, scale)]
    names = [t.name for t in exe.inputs]
    total, product = exe.run(dict(zip(names, flat, strict=True)))
    assert np.array_equal(total, found["sum"])
    assert np.array_equal(product, found["product"])


@pytest.mark.parametrize("name", ["m.pt", "m.safetensors", "m.tflite", "m.tw"])
def test_files_of_other_kinds_are_told_what_to_do(tmp_path, name):
    (tmp_path / name).write_bytes(b"weights")
    with pytest.raises(ModelError, match="is not a model that can be read") as caught:
        load(tmp_path / name)
    advice = {"m.tflite": "tf2onnx", "m.tw": "tilewright.load"}
    assert advice.get(name, "torch.export.save") in str(caught.value)


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


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 4)
        self.drop = torch.nn.Dropout(0.9)
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x, *, scale=None):
        y = self.norm(self.drop(self.first(x)))
        return y if scale is None else y * scale["by"]


def expected(module, *args, **named):
    module = copy.deepcopy(module).eval()
    return module(*args, **named).detach().numpy()


def test_a_bare_tensor_arrays_and_arguments_by_name_are_example_inputs():
    module, x, by = Scaled(), torch.randn(2, 6), torch.randn(4)
    for given in (x, (x,), [x.numpy()], x.numpy()):
        found = tw.compile(module, given)(x.numpy())
        np.testing.assert_allclose(found, expected(module, x), rtol=1e-5, atol=1e-6)
    found = tw.compile(module, {"x": x, "scale": {"by": by}})(
        x.numpy(), scale={"by": by.numpy()}
    )
    wanted = expected(module, x, scale={"by": by})
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="are not the module's arguments"):
        tw.compile(module, {"y": x})
    for nothing in ((), {}, None):
        with pytest.raises(InputError, match="needs example inputs"):
            tw.compile(module, nothing)


@pytest.mark.parametrize("scalar", [torch.tensor(3.0), np.array(3.0, np.float32)])
def test_a_bare_scalar_is_an_example_input(scalar):
    """It has no length."""
    assert float(tw.compile(torch.nn.ReLU(), scalar)(np.float32(2))) == 2
    program = torch.export.export(torch.nn.ReLU(), (torch.tensor(3.0),))
    with pytest.raises(InputError, match="example_inputs: only a "):
        tw.compile(program, scalar)


class Table(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))

    def forward(self):
        return self.rows * 2


@pytest.mark.parametrize("nothing", [(), {}, []])
def test_a_module_without_arguments_needs_no_examples(nothing):
    (found,) = tw.compile(Table(), nothing).run({})
    np.testing.assert_array_equal(found, 2 * np.arange(6.0).reshape(2, 3))


def test_only_modules_are_traced_on_examples(tmp_path):
    x = torch.randn(2, 6)
    program = torch.export.export(Scaled().eval(), (x,))
    torch.export.save(program, tmp_path / "m.pt2")
    for source in (program, tmp_path / "m.pt2"):
        with pytest.raises(InputError, match="example_inputs: only a "):
            tw.compile(source, (x,))
        for _ in range(2):  # the second time from the cache
            tw.compile(source)(x)
            with pytest.raises(InputError, match="only a "):
                tw.compile(source, x)


@dataclass
class Pair:
    low: Any
    high: Any


class Pairs(torch.nn.Module):
    def forward(self, x):
        return Pair(x.relu(), -x)


def test_an_unknown_class_of_results_is_explained():
    with pytest.raises(ModelError, match="Pair") as caught:
        tw.compile(Pairs(), torch.ones(2))
    assert "torch.export.register_dataclass" in str(caught.value)


def test_the_users_module_stays_as_it_was():
    module = Scaled().train()
    module.norm.eval()
    tw.compile(module, (torch.randn(2, 6),))
    assert [m.training for m in module.modules()] == [True, True, True, False]
    assert all(p.requires_grad for p in module.parameters())
    with pytest.raises(ModelError):
        tw.compile(module, (torch.randn(2, 7),))
    assert module.training


def test_dimensions_have_the_names_that_the_user_gave():
    module, rows = Scaled(), torch.export.Dim("rows")
    for shapes in (({0: rows},), {"x": {0: rows}}, [[rows, None]]):
        exe = tw.compile(module, (torch.randn(2, 6),), dynamic_shapes=shapes)
        x = torch.randn(5, 6)
        wanted = expected(module, x)
        np.testing.assert_allclose(exe(x.numpy()), wanted, rtol=1e-5, atol=1e-6)
        fixed = tw.compile(
            module, (torch.randn(2, 6),), dynamic_shapes=shapes, dims={"rows": 5}
        )
        np.testing.assert_allclose(fixed(x.numpy()), wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="no dimension is called 'cols'"):
        tw.compile(
            module, torch.randn(2, 6), dynamic_shapes=({0: rows},), dims={"cols": 5}
        )
    with pytest.raises(InputError, match=r"only a torch.nn.Module is traced"):
        tw.compile(b"", dynamic_shapes=({0: rows},))
    with pytest.raises(InputError, match=r"only a torch.nn.Module is traced"):
        tw.compile(b"", 3)


class Branching(torch.nn.Module):
    """PyTorch's tracer resolves the condition: the program is right on one side only."""

    def forward(self, x):
        return x * 2 if x.shape[0] > 10 else x * 3


@pytest.mark.parametrize(
    ("traced", "dim", "right", "wrong", "may_be"),
    [
        (4, torch.export.Dim.AUTO, (0, 1, 2, 10), (11, 12), "0 to 10"),
        (4, torch.export.Dim("n", max=10), (1, 10), (11,), "0 to 10"),
        (4, torch.export.Dim("n", min=3, max=8), (3, 8), (2, 9), "3 to 8"),
        (14, torch.export.Dim.AUTO, (11, 20), (0, 1, 10), "at least 11"),
    ],
)
def test_extents_for_which_a_program_is_not_made_are_refused(
    traced, dim, right, wrong, may_be
):
    module = Branching()
    shapes = ({0: dim},)
    program = torch.export.export(module, (torch.ones(traced),), dynamic_shapes=shapes)
    exe = tw.compile(program, threads=1)
    for n in right:
        torch.testing.assert_close(exe(torch.ones(n)), module(torch.ones(n)))
    (name,) = {d for v in exe.graph.inputs for d in v.shape}
    for n in wrong:
        with pytest.raises(InputError, match=f"{name} is {n}, and may be {may_be}"):
            exe(torch.ones(n))
        for given in (n, (min(n, right[0]), max(n, right[0])), [n]):
            with pytest.raises(InputError, match="the model is made for"):
                tw.compile(program, dims={name: given}, threads=1)
    fixed = tw.compile(program, dims={name: right[-1]}, threads=1)
    ones = torch.ones(right[-1])
    torch.testing.assert_close(fixed(ones), module(ones))


class Halves(torch.nn.Module):
    """PyTorch's tracer resolves how many rows the parts have: equally many."""

    def forward(self, batch):
        return torch.tensor_split(batch["rows"][0], 2)


@pytest.mark.parametrize("saved", [False, True])
def test_extents_that_are_multiples(saved, tmp_path):
    program = torch.export.export(
        Halves(),
        ({"rows": [torch.ones(6, 3)]},),
        dynamic_shapes=({"rows": [{0: torch.export.Dim.DYNAMIC}]},),
    )
    path = tmp_path / "m.pt2"
    if saved:
        torch.export.save(program, path)
    exe = tw.compile(path if saved else program, threads=1)
    x = torch.randn(10, 3)
    found = exe({"rows": [x]})
    for got, want in zip(found, torch.tensor_split(x, 2), strict=True):
        torch.testing.assert_close(got, want)
    message = "is 7, and may be at least 0 in steps of 2; give 6 or 8"
    with pytest.raises(InputError, match=message):
        exe({"rows": [torch.ones(7, 3)]})


def test_a_derived_dimension_has_steps():
    half = torch.export.Dim("half", max=50)
    shapes = ({0: 2 * half},)
    x = torch.randn(6, 3)
    for jit in (True, False):
        how = {"threads": 1, "jit": jit, "cache": False}
        exe = tw.compile(Scaled6(), x, dynamic_shapes=shapes, **how)
        torch.testing.assert_close(exe(x), 6 * x)
        with pytest.raises(InputError, match="in steps of 2; give 6 or 8"):
            exe(torch.ones(7, 3))
        with pytest.raises(InputError, match="0 to 100 in steps of 2; give 100,"):
            exe(torch.ones(102, 3))


class Parts(torch.nn.Module):
    def forward(self, x, y, counts):
        rows, columns = counts.tolist(), x.shape[1]
        for n in rows:
            torch._check(n >= 0)
        torch._check(sum(rows) == y.shape[0])
        return (
            *x.split([x.shape[0] - 2, 2]),
            *x.split(columns),
            *y.split(rows),
        )


def test_parts_whose_sizes_are_known_when_the_model_runs():
    """From extents, with a last one that is shorter, and from elements of a tensor."""
    module = Parts()
    inputs = torch.randn(5, 3), torch.randn(6, 2), torch.tensor([2, 4])
    rows, columns = torch.export.Dim.DYNAMIC, torch.export.Dim.DYNAMIC
    shapes = ({0: rows, 1: columns}, None, None)
    exe = tw.compile(module, inputs, dynamic_shapes=shapes, threads=1, fallback="error")
    for (n, m), counts in (((5, 3), [2, 4]), ((8, 6), [0, 6]), ((7, 5), [5, 1])):
        given = torch.randn(n, m), torch.randn(6, 2), torch.tensor(counts)
        found, wanted = exe(*given), module(*given)
        assert [y.shape for y in found] == [y.shape for y in wanted]
        for got, want in zip(found, wanted, strict=True):
            torch.testing.assert_close(got, want)


class Scaled6(torch.nn.Module):
    def forward(self, x):
        return 6 * x


def test_a_dimension_without_bounds_has_any_extent():
    """PyTorch's own lower bound of 2 says that 0 and 1 were not looked at, and lets them pass."""
    module = torch.nn.Linear(3, 2)
    shapes = ({0: torch.export.Dim.AUTO},)
    exe = tw.compile(module, torch.ones(4, 3), dynamic_shapes=shapes, threads=1)
    for n in (0, 1, 2, 30):
        x = torch.ones(n, 3)
        torch.testing.assert_close(exe(x), module(x).detach())


def test_dimensions_collected_by_tensor():
    module, x = Scaled(), torch.randn(2, 6)
    shapes = torch.export.ShapesCollection()
    shapes[x] = {0: torch.export.Dim("rows")}
    more = torch.export.AdditionalInputs()
    more.add((torch.randn(3, 6),))
    for given, name in ((shapes, "rows"), (more, None)):
        exe = tw.compile(module, (x,), dynamic_shapes=given, threads=1)
        (found,) = {d for v in exe.graph.inputs for d in v.shape if d != 6}
        assert found == name or name is None
        y = torch.randn(5, 6)
        np.testing.assert_allclose(exe(y), expected(module, y), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_an_operator_that_nothing_imports_is_named_with_its_line():
    class Decomposed(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.eigvals(x).abs()

    with pytest.raises(UnsupportedError, match=r"linalg_eig.*test_torch.py:\d+"):
        tw.compile(Decomposed(), torch.randn(3, 3))


def test_of_a_saved_program_too_the_line_is_named(tmp_path):
    class Decomposed(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.eigvals(x).abs()

    path = tmp_path / "m.pt2"
    torch.export.save(torch.export.export(Decomposed(), (torch.randn(3, 3),)), path)
    with pytest.raises(UnsupportedError, match=r"linalg_eig.*test_torch.py:\d+"):
        tw.compile(path)


def test_the_line_is_the_users_and_not_one_of_pytorch():
    class Inner(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(x)

    program = torch.export.export(Inner(), (torch.randn(2, 3),))
    (node,) = (n for n in program.graph.nodes if n.op == "call_function")
    assert "torch/nn/modules/linear.py" in node.meta["stack_trace"]
    assert source_of(node).startswith("test_torch.py:")


def test_elements_that_are_not_zero_run_natively():
    class Chosen(torch.nn.Module):
        def forward(self, x):
            return torch.nonzero(x > 0), x[x > 0]

    x = torch.randn(3, 3)
    exe = tw.compile(Chosen(), x)
    places, chosen = exe(x.numpy())
    np.testing.assert_array_equal(places, torch.nonzero(x > 0).numpy())
    np.testing.assert_array_equal(chosen, x[x > 0].numpy())


def test_nothing_goes_through_the_onnx_exporter(monkeypatch):
    class Airy(torch.nn.Module):
        def forward(self, x):
            return torch.special.airy_ai(x)

    monkeypatch.setattr(torch.onnx, "export", None)
    with pytest.raises(UnsupportedError, match=r"airy_ai.*test_torch.py:\d+"):
        tw.compile(Airy(), torch.randn(3))


def test_floats_wrap_around_in_narrow_integers():
    """Only numbers that fit into int32: C++ leaves the others undefined."""
    types = torch.uint8, torch.int8, torch.int16, torch.uint16

    class Narrow(torch.nn.Module):
        def forward(self, x):
            wide = [x, x.double(), x.half(), x.bfloat16()]
            return [a.to(to) for a in wide for to in types]

    numbers = [382.5, -1.0, -130.7, 255.9, 256.0, -0.5, 65503.5, -40000.0, float("nan")]
    x = torch.tensor(numbers * 4)
    for got, want in zip(tw.compile(Narrow(), x)(x), Narrow()(x), strict=True):
        np.testing.assert_array_equal(np.asarray(got), want.numpy())
    far = torch.tensor([2.0**31 - 128, -(2.0**31), 70000.9, -70000.9])
    for got, want in zip(
        tw.compile(Narrow(), far)(far)[:8], Narrow()(far), strict=False
    ):
        np.testing.assert_array_equal(np.asarray(got), want.numpy())


def test_tensors_without_data_are_refused_by_name():
    """PyTorch traces with them, but nothing can run on them, or be packed."""
    layer, x = torch.nn.Linear(4, 3), torch.ones(2, 4)
    bare, shape = torch.nn.Linear(4, 3, device="meta"), torch.ones(2, 4, device="meta")
    without = "on PyTorch's device 'meta', where tensors have no data"
    with pytest.raises(InputError, match=f"weight: it is {without}"):
        tw.compile(bare, x)
    with pytest.raises(InputError, match=rf"example input \[0\]\[0\]: it is {without}"):
        tw.compile(layer, shape)
    program = torch.export.export(bare, (shape,))
    with pytest.raises(InputError, match=f"weight: it is {without}"):
        tw.compile(program)
    exe = tw.compile(layer, x, threads=1)
    with pytest.raises(InputError, match=f"input 'input': it is {without}"):
        exe(shape)
    fast = torch.compile(lambda x: x * 2, backend="tilewright")
    with pytest.raises(InputError, match=without):
        fast(shape)


@pytest.mark.parametrize("affine", [True, False])
def test_normalization_by_the_batch_is_trained_as_by_torch(affine):
    torch.manual_seed(3)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3, bias=False),
        torch.nn.BatchNorm2d(4, affine=affine, track_running_stats=False),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 3),
    )
    x, target = torch.randn(5, 2, 6, 6), torch.randint(0, 3, (5,))
    step = tw.compile_training_step(module, "cross_entropy", tw.optim.SGD(0.5), (x,))
    optimizer = torch.optim.SGD(module.parameters(), 0.5)
    for _ in range(5):
        loss = torch.nn.functional.cross_entropy(module(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        got = step.step(x.numpy(), target.numpy())
        assert got == pytest.approx(float(loss.detach()), rel=1e-4)


def test_a_running_mean_that_would_move_is_refused():
    class Moved(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))
            self.register_buffer("var", torch.ones(4))

        def forward(self, x):
            return torch.nn.functional.batch_norm(x, self.mean, self.var, training=True)

    with pytest.raises(UnsupportedError, match="the module changes 'mean'"):
        tw.compile(Moved(), (torch.randn(5, 4),))
