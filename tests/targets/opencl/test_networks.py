"""Whole networks on an OpenCL device: right, saved, loaded without the compiler, profiled."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tests.targets.opencl.running import pocl
from tilewright.base.errors import (
    ArtifactError,
    ExecutionError,
    InputError,
    MemoryLimitError,
    TilewrightWarning,
    UnsupportedError,
)
from tilewright.cli import app
from tilewright.driver.compile import text
from tilewright.frontends.onnx.export import to_model
from tilewright.runtime import devices
from tilewright.targets.opencl.device import OpenCLDevice
from tilewright.testing.networks import NETWORKS
from tilewright.testing.networks.judge import NetworkJudge, lines

SAMPLE = ("lenet", "bert")
LONG = ("resnet_basic", "mobilenet_v2")
# One of each family besides, and what has recurrences, gathers and parts of tensors.
MORE = (
    "resnet_basic mobilenet_v2 squeezenet maxout_chain shufflenet_v2 unet_transposed "
    "feature_pyramid vit lstm mamba gpt hifigan r2plus1d gcn capsules qdq_resnet"
).split()
MODEL = """
<ir_version: 8, opset_import: ["": 17]>
small (float[8, 5] x) => (float[8, 6] y, float[8, 6] z)
<float[5, 6] w = {WEIGHTS}>
{ m = MatMul(x, w) y = Relu(m) z = Softmax(m) }
""".replace("WEIGHTS", ", ".join(str(n % 7 - 3) for n in range(30)))


@pytest.fixture(autouse=True)
def _on_pocl(monkeypatch):
    pocl()
    monkeypatch.setenv("TILEWRIGHT_OPENCL_DEVICE", "Portable")
    devices.find.cache_clear()
    yield
    devices.find.cache_clear()


def small():
    return onnx.parser.parse_model(MODEL)


X = np.random.default_rng(0).standard_normal((8, 5)).astype("f")


def expected():
    w = np.array([n % 7 - 3 for n in range(30)], "f").reshape(5, 6)
    m = X @ w
    e = np.exp(m - m.max(1, keepdims=True))
    return np.maximum(m, 0), e / e.sum(1, keepdims=True)


def check(found):
    for one, two in zip(found, expected(), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


@pytest.mark.representatives("bert")
@pytest.mark.parametrize(
    "name", [*SAMPLE, *(pytest.param(n, marks=pytest.mark.slow) for n in MORE)]
)
def test_a_network_gives_on_the_device_what_it_gives_in_float64(name):
    case = NETWORKS[name]()
    judge = NetworkJudge(case.graph, case.inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TilewrightWarning)
        exe = tw.compile(case.graph, target="opencl", cache=False)
    arrays = [case.inputs[v.name] for v in case.graph.inputs]
    assert not lines(judge, (exe(*arrays) for _ in range(2)))
    placed = exe.model.meta["placements"]
    assert {row[0] for row in placed} == {"opencl"}, placed


def test_a_saved_model_runs_without_the_compiler(tmp_path):
    exe = tw.compile(small(), target="opencl", cache=False)
    check(exe(X))
    exe.save(tmp_path / "small.tw")
    np.save(tmp_path / "x.npy", X)
    code = (
        "import sys, numpy as np, tilewright as tw\n"
        f"y, z = tw.load({str(tmp_path / 'small.tw')!r})(np.load({str(tmp_path / 'x.npy')!r}))\n"
        f"np.save({str(tmp_path / 'z.npy')!r}, z)\n"
        "rooms = ('ir', 'expr', 'loops', 'schedule', 'driver', 'graph', 'plan', 'compute')\n"
        "print([m for m in sys.modules if m.startswith('tilewright.')\n"
        "       and m.split('.')[1] in rooms or m in ('llvmlite', 'onnx', 'islpy')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
    np.testing.assert_allclose(np.load(tmp_path / "z.npy"), expected()[1], rtol=1e-5)


def test_weights_are_on_the_device_once_and_calls_copy_inputs_and_results_only():
    exe = tw.compile(small(), target="opencl", cache=False)
    profile = exe.profile(X)
    rows = str(profile)
    assert "copy x to opencl" in rows and "copy y from opencl" in rows
    assert "copy w" not in rows


def test_what_has_no_code_runs_on_the_host_with_copies_between():
    model = onnx.parser.parse_model("""
<ir_version: 10, opset_import: ["": 19]>
mixed (float[8] x) => (float[8] y)
{ a = Relu(x) b = Cast<to=17>(a) c = Cast<to=1>(b) y = Mul(c, c) }
""")
    plan = text(model, "plan", target="opencl")
    assert "on opencl" in plan and "copy" in plan
    exe = tw.compile(model, target="opencl", cache=False)
    x = np.linspace(-3, 3, 8, dtype="f")
    np.testing.assert_array_equal(exe(x), tw.compile(model, cache=False)(x))
    placed = {row[0] for row in exe.model.meta["placements"]}
    assert placed == {"host", "opencl"}
    assert any(
        "OpenCL C has no float8" in row[3] for row in exe.model.meta["placements"]
    )


def test_groups_whose_results_between_are_large_run_on_the_device():
    model = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["": 17]>
rows (float[1024, 1024] x) => (float[1024, 1024] y) { y = Softmax(x) }
""")
    plan = text(model, "plan", target="opencl")
    assert "group softmax_max on opencl" in plan, plan


def test_an_index_out_of_range_is_an_error_and_the_next_call_is_right():
    model = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["": 17]>
rows (float[4, 3] x, int64[2] i) => (float[2, 3] y) { y = Gather(x, i) }
""")
    exe = tw.compile(model, target="opencl", cache=False)
    x = np.arange(12, dtype="f").reshape(4, 3)
    for _ in range(2):
        with pytest.raises(ExecutionError, match=r"outside 0\.\.3"):
            exe(x, np.array([1, 9]))
        assert (exe(x, np.array([3, 0])) == x[[3, 0]]).all()


def test_every_stage_is_shown():
    source = text(small(), "asm", target="opencl")
    assert "__kernel" in source and "get_local_id(0)" in source
    assert "threadIdx.x" in text(small(), "kernel", target="opencl")


def test_a_machine_description_is_taken_and_checked(tmp_path):
    file = tmp_path / "mali.toml"
    file.write_text('like = "mali"\nusual_threads = 4\n')
    made = text(small(), "kernel", target="opencl", machine=file)
    assert "4 threadIdx.x" in made
    for line, said in (
        ("warps = 3", "warps is not a field"),
        ("units = 0", "units is 0; expected an integer of at least 1"),
        ('shared_pays = "yes"', "shared_pays is 'yes'; expected true or false"),
    ):
        file.write_text(line)
        with pytest.raises(InputError, match=said):
            tw.compile(small(), target="opencl", machine=file)
    file.write_text('like = "abacus"')
    with pytest.raises(UnsupportedError, match=r"unknown machine 'abacus'.*generic"):
        tw.compile(small(), target="opencl", machine=file)


def test_a_device_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_OPENCL_DEVICE", "abacus")
    devices.find.cache_clear()
    exe = tw.compile(small(), target="opencl", cache=False)  # to be saved, it may be
    with pytest.raises(
        ArtifactError, match="'abacus' names no OpenCL device; there are: "
    ):
        exe(X)


def test_without_pyopencl_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    devices.find.cache_clear()
    exe = tw.compile(small(), target="opencl", cache=False)
    with pytest.raises(ArtifactError, match=r"pip install 'tilewright\[opencl\]'"):
        exe(X)
    assert "pyopencl" in str(devices.present()["opencl"])


@pytest.mark.parametrize(
    ("most", "said"),
    [
        (64, r"constant w\w* on device opencl: .* gives 64 at most"),
        (200, r"memory between the kernels on device opencl: .* gives 200 at most"),
    ],
)
def test_more_memory_than_the_device_has_is_refused_by_name(most, said):
    devices.register("opencl", lambda: OpenCLDevice(pocl().device, most))
    try:
        with pytest.raises(MemoryLimitError, match=said):
            # Exact sums are in the order of the program: the kernel keeps a row in memory.
            tw.compile(small(), target="opencl", cache=False, math="exact")(X)
    finally:
        devices._makers.pop("opencl")


def test_memory_of_the_device_counts_against_the_limit():
    """On the device: m, y and z, the weights, and what softmax has between its launches."""
    least = tw.compile(small(), target="opencl", cache=False)
    assert least.peak_bytes > tw.compile(small(), cache=False).peak_bytes
    said = r"over the memory limit of 1,000 bytes"
    with pytest.raises(MemoryLimitError, match=rf"[0-9,]+ on opencl\), {said}"):
        tw.compile(small(), target="opencl", cache=False, memory_limit=1000)


def test_a_profile_has_the_share_of_the_described_peaks_and_a_trace_both_clocks(
    tmp_path, capsys
):
    """A launch has a share of the device's peaks; a copy has none, as it is not bound by them."""
    path, machine, trace = (tmp_path / n for n in ("m.onnx", "m.toml", "t.json"))
    path.write_bytes(small().SerializeToString())
    for faster in (1, 1000):
        machine.write_text(
            f'like = "pocl"\nunits = 2\nrate = {16.0 * faster}\nbandwidth = {20.0 * faster}\n'
        )
        given = f"{path} --target opencl --machine {machine} --repeat 3 --trace {trace}"
        args = ["run", *given.split(), "--profile", "--roofline", "--json"]
        assert app.run(args) == 0
        rows = json.loads(capsys.readouterr().out)["profile"]["rows"]
        launches = [r for r in rows if r["device"] == "opencl" and r["nodes"]]
        copies = [r for r in rows if r["name"].startswith("copy ")]
        assert launches and copies and all(r["peak_share"] is None for r in copies)
        for r in launches:
            least = max(r["flops"] / 64e9, r["bytes"] / 20e9) / faster
            assert r["peak_share"] == pytest.approx(least / r["seconds"])
    events = json.loads(trace.read_text())["traceEvents"]
    lanes = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
    spans = [e for e in events if e["ph"] == "X"]
    device = [e for e in spans if e["tid"] == lanes["opencl, by its clock"]]
    host = {e["name"]: e for e in spans if e["tid"] == lanes["model"]}
    assert [e["name"] for e in device] == [r["name"] for r in rows]
    for e in device:
        seen = host[e["name"]]
        assert 0 <= e["dur"] <= seen["dur"] and e["ts"] >= seen["ts"] - 1e-6
        assert e["ts"] + e["dur"] == pytest.approx(seen["ts"] + seen["dur"])


def test_a_saved_model_has_no_description_and_so_no_share_of_peaks(tmp_path, capsys):
    path = tmp_path / "m.tw"
    tw.compile(small(), target="opencl", cache=False).save(path)
    flags = ["--repeat", "1", "--profile", "--roofline", "--json"]
    assert app.run(["run", str(path), *flags]) == 0
    rows = json.loads(capsys.readouterr().out)["profile"]["rows"]
    assert all(r["peak_share"] is None for r in rows if r["device"] == "opencl")


@pytest.mark.parametrize(
    "name", [*SAMPLE, *(pytest.param(n, marks=pytest.mark.slow) for n in LONG)]
)
def test_the_command_of_the_readme_gives_what_the_cpu_gives(name, tmp_path, capsys):
    path = tmp_path / f"{name}.onnx"
    path.write_bytes(to_model(NETWORKS[name]().graph).SerializeToString())
    found = []
    for target in ("opencl", "cpu"):
        out = tmp_path / f"{target}.npz"
        command = ["run", str(path), "--seed", "3", "-o", str(out), "--repeat", "1"]
        assert app.run([*command, "--target", target]) == 0, capsys.readouterr().err
        found.append(np.load(out))
    assert "\nopencl " in capsys.readouterr().out
    assert found[0].files == found[1].files
    for n in found[0].files:
        one, two = (f[n] for f in found)
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-4 * np.abs(two).max())


@pytest.mark.slow
def test_the_command_of_the_readme_runs_as_a_process(tmp_path):
    path = tmp_path / "lenet.onnx"
    path.write_bytes(to_model(NETWORKS["lenet"]().graph).SerializeToString())
    command = [
        sys.executable,
        "-m",
        "tilewright",
        "run",
        str(path),
        "--target",
        "opencl",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # A device is timed as the host is, and not compared as a simulated machine.
    assert "median of 10" in done.stdout and "differs" not in done.stdout, done.stdout
    assert "\nopencl " in done.stdout
