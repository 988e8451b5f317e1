"""Libraries for C programs: every file format, on this machine and on others."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

import tilewright as tw
from tests.driver import emulated
from tilewright.base.errors import InputError, TilewrightError, UnsupportedError
from tilewright.driver.library import Library, compile_library
from tilewright.runtime import abi

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
x86 = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="runs code for x86-64 here"
)
X = np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32)
WHICH = np.array([1, 0, 1], np.int64)


def graph(shape: Sequence[int | str] = (2, 3, 6, 6)) -> Any:
    """A small network with a weight, an output that is an input, and indices that may be wrong."""
    rng = np.random.default_rng(1)
    weights = {
        "w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "m": rng.standard_normal((36, 5)).astype(np.float32),
    }
    nodes = [
        h.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        h.make_node("Relu", ["c"], ["r"]),
        h.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        h.make_node("Flatten", ["p"], ["f"]),
        h.make_node("MatMul", ["f", "m"], ["d"]),
        h.make_node("Softmax", ["d"], ["s"]),
        h.make_node("Gather", ["s", "which"], ["y"]),
        h.make_node("Floor", ["d"], ["low"]),
        h.make_node("Identity", ["x"], ["same"]),
    ]
    make = h.make_tensor_value_info
    made = h.make_graph(
        nodes,
        "small",
        [make("x", T.FLOAT, shape), make("which", T.INT64, [3])],
        [
            make("y", T.FLOAT, [3, 5]),
            make("low", T.FLOAT, [shape[0], 5]),
            make("same", T.FLOAT, shape),
        ],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    return h.make_model(made, opset_imports=[h.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def model() -> bytes:
    return graph().SerializeToString()


@pytest.fixture(scope="module")
def expected(model: bytes) -> list[np.ndarray]:
    return list(tw.compile(model)(X, WHICH))


@pytest.fixture(scope="module")
def built(model: bytes, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Library]:
    """Every format of this machine's code: multi-level where it is x86-64."""
    folder = tmp_path_factory.mktemp("library")
    mcpu = "multi" if platform.machine() == "x86_64" else "native"
    return {
        suffix: compile_library(model, folder / f"libsmall{suffix}", mcpu=mcpu)
        for suffix in (".so", ".a", ".o")
    }


def workspace(library: Library, threads: int = 1) -> np.ndarray:
    shared, thread = library.described.workspace
    whole = np.zeros(shared + threads * thread + abi.ALIGNMENT, np.uint8)
    return whole[-whole.ctypes.data % abi.ALIGNMENT :]


def call(function: Any, arrays: Sequence[np.ndarray], *first: object) -> int:
    return int(function(*first, *(ctypes.c_void_p(a.ctypes.data) for a in arrays)))


def empty(expected: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [np.full_like(a, 7) for a in expected]


def same(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def test_a_shared_library_needs_nothing(
    built: dict[str, Library], expected: list[np.ndarray]
) -> None:
    library = built[".so"]
    loaded = ctypes.CDLL(str(library.path))
    memory, found = workspace(library), empty(expected)
    assert call(loaded.small_run, [X, WHICH, *found, memory]) == 0
    same(found, expected)
    # What a call leaves in the workspace is of no account to the next.
    memory[:] = 255
    again = empty(expected)
    assert call(loaded.small_run, [X, WHICH, *again, memory]) == 0
    for a, b in zip(found, again, strict=True):
        np.testing.assert_array_equal(a, b)


def test_codes_of_failures(
    built: dict[str, Library], expected: list[np.ndarray]
) -> None:
    library = built[".so"]
    loaded = ctypes.CDLL(str(library.path))
    memory, found = workspace(library), empty(expected)
    wrong = np.array([1, 0, 2], np.int64)
    assert call(loaded.small_run, [X, wrong, *found, memory]) == abi.STATUS_INDEX
    none = ctypes.c_void_p(None)
    arrays = [ctypes.c_void_p(a.ctypes.data) for a in (X, WHICH, *found)]
    assert loaded.small_run(*arrays, none) == abi.NO_MEMORY
    assert call(loaded.small_run, [X, WHICH, *found, memory[8:]]) == abi.NOT_ALIGNED
    assert (found[2] == 7).all()  # nothing was written


_MAIN = """\
#include <stdio.h>
#include "small.h"
static void in_turn(tilewright_context *ctx, tilewright_task *task, void *closure, int64_t count) {
    for (int64_t n = 0; n < count; n++) task(closure, n % ctx->threads, n, n + 1);
}
static float x[SMALL_X_COUNT], y[SMALL_Y_COUNT], low[SMALL_LOW_COUNT], same[SMALL_SAME_COUNT];
static int64_t which[SMALL_WHICH_COUNT];
static _Alignas(SMALL_ALIGNMENT) char memory[SMALL_WORKSPACE(3) + 1];
int main(void) {
    if (fread(x, sizeof x, 1, stdin) != 1 || fread(which, sizeof which, 1, stdin) != 1) return 99;
    int code = small_run_parallel(in_turn, 3, x, which, y, low, same, memory);
    if (code != TILEWRIGHT_OK) return code & 255;
    fwrite(y, sizeof y, 1, stdout);
    fwrite(low, sizeof low, 1, stdout);
    fwrite(same, sizeof same, 1, stdout);
    return small_run(x, which, y, low, same, NULL) == TILEWRIGHT_NO_MEMORY ? 0 : 98;
}
"""


@needs_cc
@pytest.mark.parametrize("suffix", [".so", ".a", ".o"])
def test_a_c_program(
    built: dict[str, Library],
    expected: list[np.ndarray],
    tmp_path: Path,
    suffix: str,
) -> None:
    library = built[suffix]
    shutil.copy(library.header, tmp_path / "small.h")
    (tmp_path / "main.c").write_text(_MAIN)
    command = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    files = ["main.c", str(library.path), f"-Wl,-rpath,{library.path.parent}"]
    subprocess.run([*command, *files, "-o", "main"], check=True, cwd=tmp_path)
    given = X.tobytes() + WHICH.tobytes()
    done = subprocess.run([tmp_path / "main"], input=given, capture_output=True)
    assert done.returncode == 0
    same(split(done.stdout, expected), expected)


def split(data: bytes, like: Sequence[np.ndarray]) -> list[np.ndarray]:
    assert len(data) == sum(a.nbytes for a in like)
    found, at = [], 0
    for a in like:
        found.append(np.frombuffer(data, a.dtype, a.size, at).reshape(a.shape))
        at += a.nbytes
    return found


def test_only_the_functions_are_seen(built: dict[str, Library]) -> None:
    """Two libraries in one program do not meet: everything else is local."""
    if shutil.which("nm") is None:
        pytest.skip("no nm")
    text = subprocess.run(
        ["nm", "-g", built[".a"].path], capture_output=True, text=True, check=True
    ).stdout
    names = [line.split()[-1] for line in text.splitlines() if len(line.split()) == 3]
    assert sorted(names) == ["small_run", "small_run_parallel"]


def test_the_same_bytes_again(
    model: bytes, built: dict[str, Library], tmp_path: Path
) -> None:
    """Without the cache, from elsewhere: nothing of the place or the time is in the files."""
    before = built[".so"]
    mcpu = list(before.described.processors)
    again = compile_library(model, tmp_path / "libsmall.so", mcpu=mcpu, cache=False)
    for a, b in zip(files(before), files(again), strict=True):
        assert a.read_bytes() == b.read_bytes()


def files(library: Library) -> list[Path]:
    return [library.path, library.header, library.manifest]


def test_the_manifest_says_what_the_header_says(built: dict[str, Library]) -> None:
    library = built[".so"]
    found = json.loads(library.manifest.read_text())
    assert [p["parameter"] for p in found["parameters"]] == [
        "x",
        "which",
        "y",
        "low",
        "same",
    ]
    assert found["parameters"][1]["bytes"] == 24 and found["alignment"] == 64
    assert [p["written"] for p in found["parameters"]] == [False] * 2 + [True] * 3
    sizes = found["workspace"]
    shared, thread = sizes["bytes"], sizes["bytes_per_thread"]
    text = library.header.read_text()
    assert f"((size_t){shared} + (size_t){thread} * (threads))" in text
    assert "const int64_t *which /* [3] */" in text


def test_an_output_in_the_memory_of_an_input(tmp_path: Path) -> None:
    make = h.make_tensor_value_info
    nodes = [h.make_node("Add", ["old", "x"], ["new"])]
    ends = [make("old", T.FLOAT, [64]), make("x", T.FLOAT, [64])]
    made = h.make_graph(nodes, "sum", ends, [make("new", T.FLOAT, [64])])
    proto = h.make_model(made, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
    library = compile_library(
        proto, tmp_path / "libsum.so", name="total", aliases={"new": "old"}
    )
    assert "float *old" in library.header.read_text()
    assert "const float *old" not in library.header.read_text()
    loaded = ctypes.CDLL(str(library.path))
    old, x = np.arange(64, dtype=np.float32), np.ones(64, np.float32)
    memory = workspace(library)
    assert [call(loaded.total_run, [old, x, memory]) for _ in range(2)] == [0, 0]
    np.testing.assert_array_equal(old, np.arange(64) + 2)


@pytest.mark.parametrize("mcpu", ["wasm32", "wasm32-mvp"])
def test_webassembly(
    model: bytes, expected: list[np.ndarray], tmp_path: Path, mcpu: str
) -> None:
    wasmtime = pytest.importorskip("wasmtime")
    library = compile_library(model, tmp_path / "small.wasm", mcpu=mcpu)
    store = wasmtime.Store()
    module = wasmtime.Module(store.engine, library.path.read_bytes())
    assert not module.imports
    exports = wasmtime.Instance(store, module, []).exports(store)
    memory, at, places = exports["memory"], exports["__heap_base"].value(store), []
    sizes = [a.nbytes for a in (X, WHICH, *expected)]
    for size in (*sizes, sum(library.described.workspace)):
        places.append(at)
        at += -(-size // 64) * 64
    memory.grow(store, max(0, -(-at // 65536) - memory.size(store)))
    memory.write(store, X.tobytes(), places[0])
    memory.write(store, WHICH.tobytes(), places[1])
    assert exports["small_run"](store, *places) == 0
    data = b"".join(
        memory.read(store, at, at + a.nbytes) for at, a in zip(places[2:], expected)
    )
    same(split(data, expected), expected)
    memory.write(store, np.array([9, 0, 0]).tobytes(), places[1])
    assert exports["small_run"](store, *places) == abi.STATUS_INDEX
    assert exports["small_run"](store, *places[:-1], 0) == abi.NO_MEMORY


_ELSEWHERE = [
    ("aarch64", "aarch64", ()),
    ("aarch64", "neoverse-n1", ("-cpu", "max")),
    ("riscv64", "riscv64", ()),
    ("riscv64", "riscv64-v", ("-cpu", "rv64,v=true,vlen=128")),
]


@pytest.mark.parametrize(("arch", "mcpu", "options"), _ELSEWHERE)
def test_another_processor(
    model: bytes,
    expected: list[np.ndarray],
    tmp_path: Path,
    arch: str,
    mcpu: str,
    options: tuple[str, ...],
) -> None:
    if emulated.emulator(arch) is None:
        pytest.skip(f"{emulated.SYSTEMS[arch].emulator} is not installed")
    library = compile_library(model, tmp_path / "small.o", mcpu=mcpu)
    code = library.path.read_bytes()
    sizes = [a.nbytes for a in expected]
    given = [X.nbytes, WHICH.nbytes]
    memory = sum(library.described.workspace)
    file = tmp_path / "program"
    file.write_bytes(emulated.program(arch, code, "small", given, sizes, memory))
    file.chmod(0o755)
    same(split(emulated.run(arch, str(file), [X, WHICH], *options), expected), expected)
    wrong = np.array([0, -7, 0], np.int64)
    with pytest.raises(subprocess.CalledProcessError) as error:
        emulated.run(arch, str(file), [X, wrong], *options)
    assert error.value.returncode == abi.STATUS_INDEX


@x86
def test_the_program_around_an_emulated_library_runs_here(
    model: bytes, expected: list[np.ndarray], tmp_path: Path
) -> None:
    """Linked as for the emulators, so that what they run is looked at where there are none."""
    library = compile_library(model, tmp_path / "small.o", mcpu="x86-64-v2")
    sizes = [a.nbytes for a in expected]
    file = tmp_path / "program"
    memory = sum(library.described.workspace)
    code = library.path.read_bytes()
    given = [X.nbytes, WHICH.nbytes]
    file.write_bytes(emulated.program("x86_64", code, "small", given, sizes, memory))
    file.chmod(0o755)
    data = X.tobytes() + WHICH.tobytes()
    done = subprocess.run([file], input=data, capture_output=True, check=True)
    same(split(done.stdout, expected), expected)


@pytest.mark.sampled(2)  # the one with fewer instructions
@pytest.mark.parametrize("mcpu", ["cortex-m4", "cortex-m7"])
def test_a_microcontroller(model: bytes, tmp_path: Path, mcpu: str) -> None:
    """It needs what every compiler for ARM brings, if anything: compiled, and not run."""
    code = compile_library(model, tmp_path / "small.o", mcpu=mcpu).path.read_bytes()
    assert code[:5] == b"\x7fELF\1" and struct.unpack_from("<H", code, 18) == (40,)
    from tilewright.targets.llvm.object_file import undefined

    assert all(name.startswith("__aeabi_") for name in undefined(code))


@pytest.mark.parametrize(
    ("triple", "magic"),
    [("arm64-apple-macosx", "cffaedfe"), ("x86_64-pc-windows-msvc", "6486")],
)
def test_other_systems_have_objects(
    model: bytes, tmp_path: Path, triple: str, magic: str
) -> None:
    library = compile_library(model, tmp_path / "small.o", triple=triple)
    assert library.path.read_bytes().startswith(bytes.fromhex(magic))
    # It is refused before anything is compiled, and before the model is even read.
    with pytest.raises(UnsupportedError, match=r"so files are not supported for"):
        compile_library(b"not a model", tmp_path / "small.so", triple=triple)
    assert not (tmp_path / "small.so").exists()


def fallback() -> Any:
    make = h.make_tensor_value_info
    node = h.make_node("StringNormalizer", ["s"], ["t"], name="lower")
    made = h.make_graph(
        [node], "text", [make("s", T.STRING, [2])], [make("t", T.STRING, [2])]
    )
    return h.make_model(made, opset_imports=[h.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (graph, {"triple": "z80-unknown-none"}, "no code is generated for the triple"),
        (graph, {"triple": "x86_64-*/-linux"}, "no code is generated for the triple"),
        (graph, {"triple": "z80"}, "no code is generated for the triple"),
        (
            graph,
            {"triple": "aarch64-linux", "mcpu": "x86-64-v3"},
            "is x86_64, the triple",
        ),
        (graph, {"mcpu": "z80"}, "unknown processor 'z80'"),
        (graph, {"mcpu": ["aarch64", "x86-64-v3"]}, "aarch64 is not x86-64"),
        (graph, {"mcpu": []}, "mcpu="),
        (graph, {"name": "9lives"}, "is not a name in C"),
        (graph, {"sanitize": True}, "nowhere to report"),
        (graph, {"target": "vta"}, "'vta' has no libraries"),
        (graph, {"path": "model.dll"}, "cannot be written as .dll"),
        (graph, {"path": "no/such/model.so"}, "does not exist"),
        (graph, {"path": "folder.so"}, "it is a folder"),
        (graph, {"header": "model.so"}, "need different names"),
        (lambda: graph(("batch", 3, 6, 6)), {}, "dims={'batch': 1}"),
        (fallback, {}, "lower"),
    ],
)
def test_bad_input_writes_nothing(
    tmp_path: Path, make: Any, given: dict[str, Any], message: str
) -> None:
    (tmp_path / "folder.so").mkdir()
    path = tmp_path / given.pop("path", "model.so")
    if "header" in given:
        given = {**given, "header": tmp_path / given["header"]}
    with pytest.raises(TilewrightError) as error:
        compile_library(make(), path, **given)
    assert message in str(error.value)
    assert os.listdir(tmp_path) == ["folder.so"]


@pytest.mark.parametrize(
    ("stem", "name"), [("libmy-model", "my_model"), ("3", "m3"), ("模型", "m__")]
)
def test_any_file_name_makes_a_name_in_c(
    model: bytes, tmp_path: Path, stem: str, name: str
) -> None:
    library = compile_library(model, tmp_path / f"{stem}.o", mcpu="x86-64-v2")
    assert f"int {name}_run(" in library.header.read_text()


def test_all_files_or_none(
    model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when the last file is begun."""
    from tilewright.driver.library import build

    def refusing(path: Path, write: Any) -> None:
        if path.suffix == ".json":
            raise OSError(28, "No space left on device", str(path))
        whole(path, write)

    whole = build.write_whole
    monkeypatch.setattr(build, "write_whole", refusing)
    with pytest.raises(InputError, match="No space left"):
        compile_library(model, tmp_path / "small.so")
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_the_file_that_cannot_be_written_is_named(model: bytes, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No space left") as caught:
        compile_library(model, tmp_path / "small.so", header="/dev/full")
    assert caught.value.where == "/dev/full" and os.listdir(tmp_path) == []


@needs_cc
def test_names_that_c_has_for_something_else(tmp_path: Path) -> None:
    """Macros are in capitals, where `x` and `X` are one; headers are for C++, too."""
    make = h.make_tensor_value_info
    names = ["x", "X", "_Bool", "NULL", "size_t", "float32", "linux", "a*/b"]
    made = h.make_graph(
        [h.make_node("Sum", names, ["class"])],
        "names",
        [make(name, T.FLOAT, [2] if n else [3, 2]) for n, name in enumerate(names)],
        [make("class", T.FLOAT, [3, 2])],
    )
    opset = [h.make_opsetid("", 17)]
    model = h.make_model(made, opset_imports=opset, ir_version=8)
    library = compile_library(model, tmp_path / "libmy-model.o")
    text = f'#include "{library.header}"\nint at[MY_MODEL_X_COUNT == 6 ? 1 : -1];\n'
    flags = ["-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    for language in ("c", "c++"):
        if language == "c++" and shutil.which("c++") is None:
            continue
        cc = ["cc" if language == "c" else "c++", "-x", language, *flags, "-"]
        subprocess.run(cc, input=text, text=True, check=True)


def test_kernels_of_a_library_are_not_validated(
    model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CHECK", "1")
    with pytest.raises(UnsupportedError, match="do not run here") as error:
        compile_library(model, tmp_path / "model.so")
    assert error.value.code == "TW-CHECK" and not os.listdir(tmp_path)


def test_a_symbolic_dimension_with_a_value(tmp_path: Path) -> None:
    library = compile_library(
        graph(("batch", 3, 6, 6)), tmp_path / "small.o", dims={"batch": 2}
    )
    assert "[2][3][6][6]" in library.header.read_text()
