"""Running: inputs in every form, outputs that own their memory, host steps, failures by name."""

import dataclasses
import importlib.util
import threading

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from tests.runtime import native
from tilewright.base.errors import ArtifactError, ExecutionError, InputError
from tilewright.runtime import host
from tilewright.runtime.executable import Executable
from tilewright.runtime.model import (
    OBJECT,
    CompiledModel,
    CopyStep,
    HostFallbackStep,
    NativeStep,
    Tensor,
    ValueSlot,
)

X = np.linspace(-1, 1, 100).astype(np.float32)


@pytest.fixture(scope="module")
def exe():
    return Executable(native.model(), threads=1)


@pytest.fixture(autouse=True)
def provider():
    """Reference kernels for the tests: NumPy functions by name."""
    table = {
        "neg": lambda x: [-x],
        "same": lambda *xs: list(xs),
        "split": lambda x, at=1: [x[:at], x[at:]],
        "pack": lambda *xs: [list(xs)],
        "second": lambda xs: [xs[1]],
        "upper": lambda x: [np.array([s.upper() for s in x], object)],
        "fail": lambda x: 1 / 0,
        "double": lambda x: [x.astype(np.float64)],
        "nothing": lambda *xs: [],
        "write": lambda x: x.__setitem__(0, 1),
        "given": lambda *xs: [np.array([x is not None for x in xs])],
    }
    host.register(
        "test", lambda op, attributes: lambda xs: table[op](*xs, **attributes)
    )
    yield
    host._factories.pop("test")


def test_values(exe):
    for x in (X, X[::-1].copy(), X * np.inf):
        np.testing.assert_array_equal(exe(x), native.expected(x))
    assert exe.inputs[0].name == "x" and exe.outputs[0].layout == "float32[100]"
    assert "(x: float32[100]) -> (y: float32[100])" in repr(exe)
    assert exe.peak_bytes == 4 * 400


def test_every_way_to_pass_the_input(exe):
    want = native.expected(X)
    readonly = X.copy()
    readonly.flags.writeable = False
    strided = np.repeat(X, 2)[::2]
    misaligned = np.frombuffer(b"x" + X.tobytes(), np.uint8)[1:].view(np.float32)
    for x in (
        X,
        readonly,
        strided,
        misaligned,
        X.astype(">f4"),
        memoryview(X),
        X.tolist(),
    ):
        np.testing.assert_array_equal(exe(x), want)
        np.testing.assert_array_equal(exe(x=x), want)
        np.testing.assert_array_equal(exe({"x": x}), want)
    assert exe(X).ctypes.data % 64 == 0


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((), {}, r"missing inputs: x: float32\[100\]"),
        ((X, X), {}, r"2 inputs given, the model has 1: x: float32\[100\]"),
        ((), {"z": X}, r"no input is called 'z': expected x: float32\[100\]"),
        ((X,), {"x": X}, "input 'x' is given twice"),
        ((X[:3],), {}, r"input 'x': expected float32\[100\], got shape \[3\]"),
        ((X.astype(np.float64),), {}, r"expected float32\[100\], got float64\[100\]"),
        (("text",), {}, "input 'x': expected float32"),
        ((object(),), {}, "expected an array, got object"),
        ((None,), {}, "expected an array, got NoneType"),
    ],
)
def test_wrong_inputs_are_named(exe, args, named, message):
    with pytest.raises(InputError, match=message):
        exe(*args, **named)


def test_out(exe):
    want = native.expected(X)
    out = np.empty(100, np.float32)
    for form in (out, [out], (out,), {"y": out}):
        out[:] = 0
        assert exe(X, out=form) is out
        np.testing.assert_array_equal(out, want)
    wide = np.zeros(200, np.float32)
    assert exe(X, out=wide[::2]).base is wide
    np.testing.assert_array_equal(wide[::2], want)
    assert not wide[1::2].any()
    x = X.copy()
    assert exe(x, out=x) is x
    np.testing.assert_array_equal(x, want)
    both = np.concatenate([X, np.zeros(2, np.float32)])
    np.testing.assert_array_equal(exe(both[:100], out=both[2:]), want)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (
            np.empty(99, np.float32),
            r"out= for 'y': expected float32\[100\], got float32\[99\]",
        ),
        (np.empty(100), r"expected float32\[100\], got float64\[100\]"),
        ([], "out= has 0 arrays, the model 1 output"),
        ({"z": X}, "no output is called 'z'"),
        ("text", "expected an array or a tensor, got str"),
        (np.broadcast_to(np.float32(0), (100,)), "read-only"),
        (as_strided(X.copy(), (100,), (0,)), "its elements share memory"),
    ],
)
def test_wrong_out_is_named(exe, out, message):
    with pytest.raises(InputError, match=message):
        exe(X, out=out)


def test_out_of_torch(exe):
    torch = pytest.importorskip("torch")
    want, x = native.expected(X), torch.tensor(X)
    out = torch.zeros(200)
    for form in (torch.zeros(100), out[::2]):
        assert exe(x, out=form) is form
        np.testing.assert_array_equal(form.numpy(), want)
    assert not out[1::2].any()
    changed = (torch.ones(100, requires_grad=True) * out[::2]).sum()
    exe(x, out=out[::2])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        changed.backward()
    with torch.inference_mode():
        uncounted = torch.zeros(100)
    assert exe(x, out=uncounted) is uncounted
    wanted = torch.zeros(100, requires_grad=True)
    for form, message in (
        (wanted, "requires gradients"),
        (torch._neg_view(torch.zeros(100)), "negated view"),
        (torch.zeros(100, dtype=torch.float64), "expected float32"),
    ):
        with pytest.raises(InputError, match=message):
            exe(x, out=form)


def test_outputs_own_their_memory(exe):
    one, two = exe(X), exe(X + 1)
    one[:] = 7
    np.testing.assert_array_equal(two, native.expected(X + 1))
    exe.release()
    np.testing.assert_array_equal(exe(X), native.expected(X))


def test_a_failing_kernel_is_named(exe):
    bad = X.copy()
    bad[0] = 13
    message = (
        r"kernel 'add' \(nodes add_1, gather_2\): an index in the data is out of range"
    )
    for _ in range(2):
        with pytest.raises(ExecutionError, match=message):
            exe(bad)
    with pytest.raises(ExecutionError, match=message):
        exe(x=bad)
    np.testing.assert_array_equal(exe(X), native.expected(X))


def test_one_call_is_one_frame_even_in_many_threads(exe):
    exe.release()
    wrong = []

    def work(seed):
        x = X + seed
        wrong.extend(n for n in range(2000) if not (exe(x) == native.expected(x)).all())

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and 1 <= len(exe._frames) <= 4


def test_torch_in_torch_out(exe):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X.copy()).requires_grad_()
    y = exe(x)
    assert isinstance(y, torch.Tensor)
    np.testing.assert_array_equal(y.numpy(), native.expected(X))
    assert isinstance(exe(X), np.ndarray)
    with pytest.raises(InputError, match=r"meta|device type"):
        exe(torch.empty(100, device="meta"))


# ------------------------------------------------------------------ models of several steps


def tensor(name, shape=(4,), dtype="float32"):
    return Tensor(name, dtype, shape)


def hosted(op, ins, outs, **attributes):
    return HostFallbackStep(
        "test", op, attributes, tuple(ins), tuple(outs), f"node_{op}"
    )


def slot(kind, at=0, shape=(4,), dtype="float32", name="v"):
    return ValueSlot(kind, at, tensor(name, shape, dtype))


def run(steps, ins, outs, *args, arena=0, objects=0, constants=b"", **keywords):
    data = np.frombuffer(constants, np.uint8)
    model = CompiledModel(
        tuple(ins),
        tuple(outs),
        tuple(steps),
        constants=data,
        arena_bytes=arena,
        object_slots=objects,
    )
    return Executable(model)(*args, **keywords)


FOUR = np.arange(4, dtype=np.float32)
IN, OUT = [tensor("x")], [tensor("y")]


def test_a_host_step():
    y = run([hosted("neg", [slot("input")], [slot("output")])], IN, OUT, FOUR)
    np.testing.assert_array_equal(y, -FOUR)
    out = np.empty(4, np.float32)
    steps = [hosted("neg", [slot("input")], [slot("output")])]
    assert run(steps, IN, OUT, FOUR, out=out) is out
    np.testing.assert_array_equal(out, -FOUR)


@pytest.mark.parametrize(
    "step",
    [
        CopyStep(slot("input"), slot("output")),
        hosted("same", [slot("input")], [slot("output")]),
    ],
)
def test_an_input_that_is_an_output_is_copied(step):
    x = FOUR.copy()
    y = run([step], IN, OUT, x)
    np.testing.assert_array_equal(y, x)
    assert not np.may_share_memory(x, y) and y.flags.writeable


def test_a_constant_that_is_an_output_is_copied():
    y = run(
        [CopyStep(slot("constant"), slot("output"))], [], OUT, constants=FOUR.tobytes()
    )
    np.testing.assert_array_equal(y, FOUR)
    assert y.flags.writeable


def test_values_in_the_arena_outlive_it():
    steps = [
        CopyStep(slot("input"), slot("arena")),
        hosted("same", [slot("arena")], [slot("object", 0)]),
        hosted("neg", [slot("arena")], [slot("arena")]),
        CopyStep(slot("object", 0), slot("output", 0)),
        CopyStep(slot("arena"), slot("output", 1)),
    ]
    a, b = run(steps, IN, [tensor("a"), tensor("b")], FOUR, arena=16, objects=1)
    np.testing.assert_array_equal(a, FOUR)
    np.testing.assert_array_equal(b, -FOUR)


def test_objects_strings_and_shapes_known_only_at_run_time():
    some = slot("object", 0, None)
    steps = [
        hosted(
            "split", [slot("input", 0, (None,))], [some, slot("output", 0, None)], at=1
        ),
        hosted(
            "pack", [some, slot("input", 1, None)], [slot("object", 1, None, OBJECT)]
        ),
        hosted("second", [slot("object", 1, None, OBJECT)], [slot("output", 1, None)]),
        hosted(
            "upper",
            [slot("input", 2, (2,), "string")],
            [slot("output", 2, (2,), "string")],
        ),
        CopyStep(slot("object", 1, None, OBJECT), slot("output", 3, None, OBJECT)),
    ]
    ins = [tensor("a", (None,)), tensor("b", None), tensor("s", (2,), "string")]
    outs = [
        tensor("p", None),
        tensor("q", None),
        tensor("t", (2,), "string"),
        tensor("l", None, OBJECT),
    ]
    b = np.float32(3)
    p, q, t, both = run(steps, ins, outs, FOUR, b, ["a", "b"], objects=2)
    np.testing.assert_array_equal(p, FOUR[1:])
    assert q.shape == () and q == 3
    assert t.tolist() == ["A", "B"]
    np.testing.assert_array_equal(both[0], FOUR[:1])


def test_left_out_inputs_and_outputs():
    steps = [
        hosted("given", [None, slot("input"), None], [slot("output", 0, (3,), "bool")]),
        hosted("same", [slot("input"), slot("input")], [None, slot("object")]),
    ]
    y = run(steps, IN, [tensor("y", (3,), "bool")], FOUR, objects=1)
    assert y.tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (
            "fail",
            "node 'node_fail': the host fallback of fail failed: ZeroDivisionError",
        ),
        ("double", r"node 'node_double': 'v' is float64\[4\], expected float32\[4\]"),
        ("nothing", "node 'node_nothing': nothing gives 0 outputs, expected 1"),
        ("write", "node 'node_write': .* read-only"),
    ],
)
def test_a_failing_reference_kernel_is_named(op, message):
    with pytest.raises(ExecutionError, match=message):
        run([hosted(op, [slot("input")], [slot("output")])], IN, OUT, FOUR)


def test_an_output_that_nobody_makes():
    with pytest.raises(ExecutionError, match="no step produces the output 'y'"):
        run([], IN, OUT, FOUR)


def test_an_unknown_provider():
    step = HostFallbackStep("nobody", "op", {}, (), (), "n")
    with pytest.raises(
        ArtifactError, match="node 'n': the model needs operators of 'nobody'"
    ):
        run([step], [], [])


@pytest.mark.parametrize("module, _", host._MODULES.values(), ids=host._MODULES)
def test_the_providers_of_our_own_exist(module, _):
    assert importlib.util.find_spec(module) is not None


def test_a_provider_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(
        host, "_MODULES", {"gone": ("tilewright.runtime.gone", "tilewright[gone]")}
    )
    step = HostFallbackStep("gone", "op", {}, (), (), "n")
    with pytest.raises(ArtifactError, match=r"Run: pip install tilewright\[gone\]"):
        run([step], [], [])


def test_empty_and_zero_dimensional_tensors():
    for shape in ((0,), (), (2, 0, 3), (1, 1)):
        x = np.ones(shape, np.float32)
        ins, outs = [tensor("x", shape)], [tensor("y", shape)]
        steps = [
            CopyStep(slot("input", 0, shape), slot("arena", 0, shape)),
            hosted("neg", [slot("arena", 0, shape)], [slot("output", 0, shape)]),
        ]
        y = run(steps, ins, outs, x, arena=4)
        assert y.shape == shape and (y == -1).all()


def test_native_and_host_steps_together():
    """A native segment on an object that a host step made, and its result for another."""
    whole = native.model()
    v = native.Tensor("v", "float32", (100,))
    steps = (
        hosted("neg", [ValueSlot("input", 0, v)], [ValueSlot("object", 0, v)]),
        NativeStep(
            "segment",
            (ValueSlot("object", 0, v), ValueSlot("object", 1, v)),
            native.records(),
        ),
        hosted("neg", [ValueSlot("object", 1, v)], [ValueSlot("output", 0, v)]),
    )
    exe = Executable(dataclasses.replace(whole, steps=steps, object_slots=2), threads=1)
    np.testing.assert_array_equal(exe(X), -native.expected(-X))
    profile = exe.profile(X, repeat=3)
    assert [r.kind for r in profile.rows] == ["host", "native", "native", "host"]


@pytest.mark.parametrize("shape", [(0,), ()])
def test_native_code_with_empty_and_zero_dimensional_values(shape):
    text = """
    define void @segment(ptr %ctx, ptr %table) {
      %in.p = getelementptr ptr, ptr %table, i64 2
      %in = load ptr, ptr %in.p
      %out.p = getelementptr ptr, ptr %table, i64 3
      %out = load ptr, ptr %out.p
      BODY
      ret void
    }"""
    body = "%v = load float, ptr %in\n store float %v, ptr %out" if shape == () else ""
    x, y = tensor("x", shape), tensor("y", shape)
    step = NativeStep(
        "segment", (ValueSlot("input", 0, x), ValueSlot("output", 0, y)), ()
    )
    code = native.assemble(text.replace("BODY", body))
    exe = Executable(CompiledModel((x,), (y,), (step,), (code,)))
    value = np.full(shape, 5, np.float32)
    np.testing.assert_array_equal(exe(value), value)
    assert exe(value).shape == shape
    out = np.empty(shape, np.float32)
    assert exe(value, out=out) is out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arena_bytes": -1}, "asks for -1 bytes"),
        ({"abi": 99}, "calling convention 99"),
        ({"objects": ()}, "no object defines the symbol 'segment'"),
        (
            {"requirements": {"arch": "aarch64"}},
            "is for aarch64, this machine is x86_64",
        ),
        (
            {"requirements": {"features": ["sse2", "avx1024", "amx-quantum"]}},
            "lacks what the artifact needs: avx1024, amx-quantum",
        ),
    ],
)
def test_what_cannot_run_is_refused(change, message):
    with pytest.raises(ArtifactError, match=message):
        Executable(dataclasses.replace(native.model(), **change))


@pytest.mark.parametrize(
    "bad",
    [
        slot("arena", 12),
        slot("input", 1),
        slot("constant"),
        slot("output", 7),
        slot("object"),
        slot("arena", 0, (None,)),
    ],
)
def test_steps_outside_the_memory_are_refused(bad):
    with pytest.raises(ArtifactError, match=r"outside the model's|has no size"):
        run([CopyStep(bad, slot("output"))], IN, OUT, FOUR, arena=16)
