"""Tensors that other libraries have on the GPU: read and written in place, results that stay there.

PyTorch's tensors of the host play them: they say that they are on the GPU, whose double has its
memory on the host as well.
"""

import ctypes
import gc
from functools import cache

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

import tilewright as tw
from tests.targets.cuda.fake import STREAM, RunningFake
from tilewright.base.errors import ExecutionError, InputError
from tilewright.runtime import capsule, devices
from tilewright.runtime.device_tensor import DeviceTensor
from tilewright.runtime.executable import Executable
from tilewright.targets.cuda.device import CudaDevice

torch = pytest.importorskip("torch")
from_dlpack = torch.from_dlpack
RNG = np.random.default_rng(0)
W = RNG.standard_normal((16, 8)).astype(np.float32)
X = RNG.standard_normal((4, 16)).astype(np.float32)
# Of float64, so that it is the same on every processor.
WANT = np.maximum(X.astype(np.float64) @ W, 0).astype(np.float32)


class OnGpu:
    """A tensor that says that it is on a GPU. streams: those that were given to it."""

    def __init__(self, api, tensor, device=(2, 0), versioned=True, read_only=False):
        self.tensor, self.device = tensor, device
        self.versioned, self.read_only = versioned, read_only
        self.streams = []
        if tensor.is_contiguous() and api is not None:
            held = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
            api.memory[tensor.data_ptr()] = held

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream, **more):
        if more and not self.versioned:
            raise TypeError("max_version is unknown")
        self.streams.append(stream)
        made = self.tensor.__dlpack__(**more)
        named(made, *self.device, read_only=self.read_only)
        return made


def named(made, kind, number, read_only=False):
    """Write another device into a capsule."""
    versioned = capsule._is_valid(id(made), b"dltensor_versioned")
    layout = capsule._ManagedVersioned if versioned else capsule._Managed
    name = b"dltensor_versioned" if versioned else b"dltensor"
    held = layout.from_address(capsule._pointer(id(made), name))
    held.tensor.device_type, held.tensor.device_id = kind, number
    if read_only:
        held.flags |= 1


def read(result):
    """A result as PyTorch takes it, whose memory it shares."""
    made = result.__dlpack__(stream=1, max_version=(1, 0))
    named(made, 1, 0)
    return from_dlpack(made)


@pytest.fixture
def api(monkeypatch):
    made = RunningFake()
    monkeypatch.setattr(devices, "_makers", {"cuda": lambda: CudaDevice(made)})
    devices.find.cache_clear()
    yield made
    devices.find.cache_clear()


MODELS = {
    "product": (
        "float[4, 16] x) => (float[4, 8] y) { a = MatMul(x, w) y = Relu(a) }",
        W,
    ),
    "by columns": ("float[4, 8] x) => (float[4, 8] y) { y = Mul(x, w) }", W[:1]),
    "rows": ("int64[2] x) => (float[2, 8] y) { y = Gather(w, x) }", W),
    "chain": (
        "float[8, 8] x) => (float[8, 8] y)"
        " { a = MatMul(x, w) b = MatMul(a, w) c = MatMul(b, w) y = MatMul(c, w) }",
        W[:8],
    ),
    "loop": (
        "float[4, 8] x, int64 n) => (float[4, 8] y, float[4, 8] z) { z = Mul(x, w)"
        " c = Constant<value = bool {1}>() y = Loop (n, c, x)"
        " <body = b (int64 i, bool go, float[4, 8] a) => (bool more, float[4, 8] o)"
        " { more = Identity(go) o = Add(a, a) }> }",
        W[:1],
    ),
    "on both": (
        "float[4, 4] x, float[4, 4] p) => (float[4, 4] d, float[4, 4] y, float[4, 4] z)"
        " { d = Bernoulli(p) a = Mul(x, w) y = Add(a, d) z = Identity(x) }",
        W[:1, :4],
    ),
}


@cache
def model(name):
    source, w = MODELS[name]
    text = f'<ir_version: 10, opset_import: ["" : 21]> f ({source}'
    made = onnx.parser.parse_model(text)
    made.graph.initializer.append(numpy_helper.from_array(w, "w"))
    return tw.compile(made, target="cuda", mcpu="sm_80").model


def compiled(name="product"):
    return Executable(model(name))


def copies(api, run):
    """The copies between host and GPU of a call, besides the one of its status."""
    del api.calls[:]
    found = run()
    names = [c for c in api.calls if c.startswith("Memcpy")]
    names.remove("MemcpyDtoHAsync")
    return found, names


@pytest.mark.parametrize("versioned", [True, False])
def test_an_input_is_read_in_place_and_the_result_stays(api, versioned):
    exe = compiled()
    x = OnGpu(api, torch.tensor(X), versioned=versioned)
    for _ in range(3):  # launched, recorded as a graph, launched as a graph
        y, copied = copies(api, lambda: exe(x))
        assert isinstance(y, DeviceTensor) and not copied
        assert (y.shape, y.dtype, y.__dlpack_device__()) == ((4, 8), "float32", (2, 0))
        np.testing.assert_allclose(read(y).numpy(), WANT, rtol=1e-5, atol=1e-6)
        assert np.array_equal(y.numpy(), read(y).numpy())
        x.tensor.neg_().neg_()
    assert x.streams == [STREAM] * 3
    assert np.array_equal(x.tensor.numpy(), X)
    assert repr(y) == "DeviceTensor(float32[4, 8] on cuda:0)"


def test_a_result_is_an_input_of_the_next_call(api):
    exe = compiled("by columns")
    x = OnGpu(api, torch.tensor(WANT))
    y, copied = copies(api, lambda: exe(exe(x)))
    assert not [c for c in copied if "HtoD" in c] and len(copied) == 1  # two statuses
    np.testing.assert_allclose(y.numpy(), WANT * W[:1] * W[:1], rtol=1e-6)


def test_results_are_written_into_given_tensors(api):
    exe = compiled()
    out = OnGpu(api, torch.full((4, 8), -1.0))
    for x in (OnGpu(api, torch.tensor(X)), X):
        out.tensor.fill_(-1)
        y, copied = copies(api, lambda x=x: exe(x, out=out))
        assert y is out and copied == ([] if x is not X else ["MemcpyHtoDAsync"])
        np.testing.assert_allclose(out.tensor.numpy(), WANT, rtol=1e-5, atol=1e-6)
    host = np.zeros((4, 8), np.float32)
    assert exe(OnGpu(api, torch.tensor(X)), out=host) is host
    np.testing.assert_allclose(host, WANT, rtol=1e-5, atol=1e-6)
    tensor = torch.zeros(4, 8)
    before = tensor._version
    assert exe(OnGpu(api, torch.tensor(X)), out=tensor) is tensor
    assert tensor._version > before
    np.testing.assert_allclose(tensor.numpy(), WANT, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*falls back to the host")
def test_what_the_host_reads_or_makes_is_copied(api):
    exe = compiled("on both")
    assert {p[0] for p in exe.placements} == {"cuda", "host"}
    ones = (X[:, :4] > 0).astype(np.float32)  # which are certain
    x = X[:, 4:8].copy()
    d, y, z = exe(*(OnGpu(api, torch.tensor(v)) for v in (x, ones)))
    assert all(isinstance(v, DeviceTensor) for v in (d, y, z))
    assert np.array_equal(d.numpy(), ones) and np.array_equal(z.numpy(), x)
    np.testing.assert_allclose(y.numpy(), x * W[:1, :4] + ones, rtol=1e-5)


def test_native_code_of_the_host_reads_a_copy(api):
    exe = compiled("loop")
    assert {type(s).__name__ for s in exe.model.steps} >= {"NativeStep", "LaunchStep"}
    y, z = exe(OnGpu(api, torch.tensor(WANT)), np.int64(3))
    assert np.array_equal(y.numpy(), WANT * 8)
    np.testing.assert_allclose(z.numpy(), WANT * W[:1], rtol=1e-6)


def test_other_tensors_at_the_place_of_an_input_stay_in_the_arena(api):
    exe = compiled("chain")
    copied, *launched = [s for s in exe.model.steps if hasattr(s, "device")][:-1]
    places = [s.arguments[-1].at for s in launched]
    assert copied.target.at in places[:-1]  # a result between is where the input is
    x = OnGpu(api, torch.tensor(X[:, :8].repeat(2, 0)))
    before = x.tensor.numpy().copy()
    y = exe(x)
    assert np.array_equal(x.tensor.numpy(), before)
    assert np.array_equal(y.numpy(), exe(before))


def test_torch_gets_tensors_of_torch(api, monkeypatch):
    exe = compiled()

    class Cuda(torch.Tensor):
        def __dlpack_device__(self):
            return 2, 0

        def __dlpack__(self, *, stream, **more):
            return OnGpu(api, self.as_subclass(torch.Tensor)).__dlpack__(stream=stream)

    monkeypatch.setattr(torch, "from_dlpack", read)
    y = exe(torch.tensor(X).as_subclass(Cuda))
    assert type(y) is torch.Tensor
    np.testing.assert_allclose(y.numpy(), WANT, rtol=1e-5, atol=1e-6)


def unaligned():
    return torch.zeros(4 * 16 + 1)[1:].view(4, 16)


REFUSED = {
    "another GPU": (
        lambda t: OnGpu(None, t, device=(2, 1)),
        r"on cuda:1, but the model runs on cuda:0\. Move it to cuda:0, or to the CPU",
    ),
    "another kind": (lambda t: OnGpu(None, t, device=(4, 0)), "it is on opencl:0, but"),
    "another dtype": (lambda t: OnGpu(None, t.double()), r"got float64\[4, 16\]"),
    "another shape": (lambda t: OnGpu(None, t[:3]), r"got float32\[3, 16\]"),
    "a transposed one": (
        lambda t: OnGpu(None, t.view(16, 4).T),
        r"not contiguous\. Give its \.contiguous",
    ),
    "one with gaps": (
        lambda t: OnGpu(None, torch.zeros(4, 32)[:, ::2]),
        "it is not contiguous",
    ),
    "an odd address": (
        lambda t: OnGpu(None, unaligned()),
        r"does not begin at a multiple of 64 bytes",
    ),
    "no capsule": (lambda t: Mute(), "cannot be exported through DLPack: not today"),
}


class Mute:
    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, **_):
        raise BufferError("not today")


@pytest.mark.parametrize("name", REFUSED)
def test_what_kernels_cannot_use_as_it_is_is_refused(api, name):
    make, message = REFUSED[name]
    exe = compiled()
    with pytest.raises(InputError, match=f"input 'x'.*{message}"):
        exe(make(torch.tensor(X)))
    assert not api.launches


def test_a_model_on_another_gpu_takes_tensors_there_and_no_others(monkeypatch):
    """Copies only come from the host."""
    made = RunningFake(count=2)
    make = {"cuda": lambda index=0: CudaDevice(made, index)}
    monkeypatch.setattr(devices, "_makers", make)
    devices.find.cache_clear()
    exe = Executable(model("product"), device=1)
    x = torch.from_numpy(X).clone()
    there = exe(OnGpu(made, x, device=(2, 1)))
    assert there.__dlpack_device__() == (2, 1)
    np.testing.assert_allclose(read(there), WANT, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(exe(X), WANT, rtol=1e-5, atol=1e-6)
    with pytest.raises(
        InputError, match="it is on cuda:0, but the model runs on cuda:1"
    ):
        exe(OnGpu(made, x))
    devices.find.cache_clear()


def test_results_that_cannot_be_written_are_refused(api):
    exe = compiled("by columns")
    x = OnGpu(api, torch.tensor(WANT))
    fixed = OnGpu(api, torch.zeros(4, 8), read_only=True)
    with pytest.raises(InputError, match="out= for 'y': the tensor is read-only"):
        exe(x, out=fixed)
    with pytest.raises(InputError, match="out= for 'y': it shares memory"):
        exe(x, out=OnGpu(api, x.tensor))
    one_row = OnGpu(api, torch.zeros(1, 8).expand(4, 8))
    with pytest.raises(InputError, match="out= for 'y': it is not contiguous"):
        exe(x, out=one_row)
    assert not api.launches
    exe(OnGpu(api, x.tensor, read_only=True))  # it is only read


def test_a_stream_that_is_none_is_refused(api):
    y = compiled()(OnGpu(api, torch.tensor(X)))
    for stream in (0, -2, 1.5, "1", True):
        with pytest.raises(InputError, match=r"is not a CUDA stream; give None or 1"):
            y.__dlpack__(stream=stream)


def test_a_consumer_may_ask_for_the_host_but_for_no_other_copy(api):
    y = compiled()(OnGpu(api, torch.tensor(X)))
    made = np.from_dlpack(y, device="cpu")
    np.testing.assert_allclose(made, WANT, rtol=1e-5, atol=1e-6)
    for asked in (
        {"dl_device": (2, 1)},
        {"copy": True},
        {"dl_device": (1, 0), "copy": False},
    ):
        with pytest.raises(InputError, match="only shared as it is"):
            y.__dlpack__(**asked)


@pytest.mark.usefixtures("own_garbage")
@pytest.mark.parametrize(
    ("stream", "waits", "on"), [(None, False, 1), (1, False, 1), (2, True, STREAM),
    (12345, True, STREAM), (-1, True, STREAM), (STREAM, False, STREAM)],
)  # fmt: skip
def test_memory_is_freed_after_what_its_consumers_do_with_it(api, stream, waits, on):
    exe = compiled()
    y = exe(OnGpu(api, torch.tensor(X)))
    address = y.place.memory.address
    made = y.__dlpack__(stream=stream)
    del y
    gc.collect()
    assert address not in api.freed
    del api.calls[:]
    del made  # nobody took it over
    gc.collect()
    assert api.freed[-1] == address and api.freed_on[-1] == on
    assert ("CtxSynchronize" in api.calls) is waits
    assert exe.outputs  # it lives, and has no part in it


@pytest.mark.usefixtures("own_garbage")
def test_a_consumer_keeps_the_memory(api):
    y = compiled()(OnGpu(api, torch.tensor(X)))
    address = y.place.memory.address
    taken = read(y)
    del y
    gc.collect()
    assert address not in api.freed
    np.testing.assert_allclose(taken.numpy(), WANT, rtol=1e-5, atol=1e-6)
    del taken
    gc.collect()
    assert api.freed[-1] == address


def test_a_failure_is_raised_by_the_call(api):
    exe = compiled("rows")
    good, bad = (OnGpu(api, torch.tensor(v)) for v in ([1, 2], [1, 99]))
    with pytest.raises(ExecutionError, match="out of range"):
        exe(bad)
    assert np.array_equal(exe(good).numpy(), W[[1, 2]])


def test_another_library_reads_what_the_call_before_did_not(api):
    """The arena is used again by the next call, so results are elsewhere."""
    exe = compiled()
    one = exe(OnGpu(api, torch.tensor(X)))
    exe(OnGpu(api, torch.tensor(-X)))
    np.testing.assert_allclose(one.numpy(), WANT, rtol=1e-5, atol=1e-6)
    on_host = exe(X)
    assert type(on_host) is np.ndarray
    np.testing.assert_allclose(on_host, WANT, rtol=1e-5, atol=1e-6)
