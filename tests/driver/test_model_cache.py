"""Whole models in the cache: found by their bytes, repaired when damaged, kept only if safe."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.base import events
from tilewright.base.errors import (
    InputError,
    MemoryLimitError,
    ModelError,
    TilewrightWarning,
)
from tilewright.base.store import FileStore
from tilewright.driver import file_digest, left_work, model_cache, steps, version
from tilewright.driver.dynamic import DynamicExecutable
from tilewright.runtime import bundle, digest, ranged_bundle

W = np.random.default_rng(0).standard_normal((40, 30)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((5, 40)).astype(np.float32)


def model(op: str = "Relu", shape: Any = (5, 40)) -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node(op, ["h"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(W, "w")],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def found(source: Any, **options: Any) -> tuple[Any, bool]:
    """The executable, and whether the whole model came from the cache."""
    with events.record() as log:
        exe = tw.compile(source, **options)
    return exe, any(e.kind == "model-cached" for e in log)


def entries(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("model-*") if p.is_file()]


def test_the_same_bytes_are_not_compiled_twice(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    first, again = found(path)
    assert not again
    second, again = found(str(path))
    assert again
    np.testing.assert_array_equal(first(X), second(X))
    assert found(model().SerializeToString())[1]
    assert not found(path, math="exact")[1]
    assert not found(path, cache=False)[1]
    onnx.save(model("Neg"), path)
    other, again = found(path)
    assert not again
    np.testing.assert_allclose(other(X), -(X @ W), rtol=1e-4, atol=1e-4)


def test_a_damaged_entry_is_made_again(folder: Path) -> None:
    source = model().SerializeToString()
    found(source)
    (entry,) = entries(folder)
    data = bytearray(entry.read_bytes())
    data[len(data) // 2] ^= 0xFF
    entry.write_bytes(data)
    with pytest.warns(TilewrightWarning, match="damaged"):
        exe, again = found(source)
    assert not again
    np.testing.assert_allclose(exe(X), np.maximum(X @ W, 0), rtol=1e-4, atol=1e-4)
    assert found(source)[1]


def test_values_of_dimensions_are_part_of_the_key() -> None:
    source = model(shape=("N", 40)).SerializeToString()
    assert not found(source, dims={"N": 5})[1]
    assert not found(source, dims={"N": 6})[1]
    exe, again = found(source, dims={"N": 6})
    assert again
    assert exe.inputs[0].shape == (6, 40)


RANGE: dict[str, Any] = {"dims": {"N": (1, 20)}, "jit": False, "threads": 1}


def test_a_range_is_not_compiled_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    source = model(shape=("N", 40)).SerializeToString()
    first, again = found(source, **RANGE)
    assert not again
    monkeypatch.delattr(steps, "ranged")
    second, again = found(source, **RANGE)
    assert again
    assert repr(second) == repr(first)
    assert len(second.model.shared) == 1
    for n in (1, 5, 20):
        x = np.resize(X, (n, 40))
        np.testing.assert_array_equal(first(x), second(x))
    with pytest.raises(InputError, match="may be 1 to 20"):
        second(np.zeros((21, 40), np.float32))
    with pytest.raises(InputError, match="may have another shape"):
        tw.compile(source, tiered=True, **RANGE)


CHANGES: list[dict[str, Any]] = [
    {"dims": {"N": (1, 21)}},
    {"dims": {"N": (1, 20, 1)}},
    {"dims": {"N": [1, 20]}},
    {"math": "exact"},
    {"fusion": False},
    {"threads": 2},
]


def test_another_range_or_option_is_another_model() -> None:
    source = model(shape=("N", 40)).SerializeToString()
    tw.compile(source, **RANGE)
    for change in CHANGES:
        assert not found(source, **{**RANGE, **change})[1], change


def test_code_for_all_values_is_not_that_for_a_range() -> None:
    """With jit, the same dims only limit what is compiled during calls."""
    source = model(shape=("N", 40)).SerializeToString()
    tw.compile(source, **RANGE)
    exe, again = found(source, dims=RANGE["dims"])
    assert not again
    assert isinstance(exe, DynamicExecutable)


def test_a_damaged_range_is_made_again(folder: Path) -> None:
    source = model(shape=("N", 40)).SerializeToString()
    found(source, **RANGE)
    (entry,) = entries(folder)
    data = bytearray(entry.read_bytes())
    data[len(data) // 2] ^= 0xFF
    entry.write_bytes(data)
    with pytest.warns(TilewrightWarning, match="damaged"):
        exe, again = found(source, **RANGE)
    assert not again
    np.testing.assert_allclose(exe(X), np.maximum(X @ W, 0), rtol=1e-4, atol=1e-4)
    assert found(source, **RANGE)[1]


def test_weights_of_a_range_in_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_digest, "SETTLED", -60.0)
    path = saved_apart(tmp_path / "m.onnx", shape=("N", 40))
    assert not found(path, **RANGE)[1]
    assert found(path, **RANGE)[1]
    (path.parent / "w.bin").write_bytes((2 * W).tobytes())
    exe, again = found(path, **RANGE)
    assert not again
    np.testing.assert_allclose(exe(X), np.maximum(X @ W, 0) * 2, rtol=1e-4, atol=1e-4)


def test_the_memory_limit_is_what_a_kept_range_may_need(tmp_path: Path) -> None:
    """As when it is compiled: half of the limit."""
    store = FileStore(tmp_path / "store", 1 << 30)
    source = model(shape=("N", 40)).SerializeToString()
    asked = model_cache.known(store, source, None, {}, 1 << 30)
    assert asked is not None
    made: Any = tw.compile(source, cache=False, **RANGE)
    model_cache.keep(store, asked, made.model, 1 << 30)
    needed = 2 * made.model.needs(len(made.model.held.block))
    assert model_cache.find(store, asked, needed, 1) is not None
    assert model_cache.find(store, asked, needed - 1, 1) is None


def test_reference_kernels_of_a_range_are_reported_each_time(folder: Path) -> None:
    source = model("RandomUniformLike", shape=("N", 40)).SerializeToString()
    for _ in range(2):
        with pytest.warns(TilewrightWarning, match="RandomUniformLike"):
            assert not found(source, **RANGE | {"dims": {"N": [2, 3]}})[1]
    assert not entries(folder)


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose weights lie in another file; what was just written counts as settled."""
    monkeypatch.setattr(file_digest, "SETTLED", -60.0)
    return saved_apart(tmp_path / "m.onnx")


def saved_apart(path: Path, **options: Any) -> Path:
    external = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save(model(**options), path, **external)
    return path


def test_weights_in_another_file_are_part_of_the_key(apart: Path, folder: Path) -> None:
    assert not found(apart)[1]
    exe, again = found(apart)
    assert again
    np.testing.assert_allclose(exe(X), np.maximum(X @ W, 0), rtol=1e-4, atol=1e-4)
    (apart.parent / "w.bin").write_bytes((2 * W).tobytes())
    exe, again = found(apart)
    assert not again
    np.testing.assert_allclose(exe(X), np.maximum(X @ W, 0) * 2, rtol=1e-4, atol=1e-4)
    assert found(apart)[1]
    (apart.parent / "w.bin").write_bytes(W.tobytes())
    assert found(apart)[1]
    assert len(entries(folder)) == 2


def test_the_same_model_elsewhere_has_weights_of_its_own(apart: Path) -> None:
    found(apart)
    other = apart.parent / "other"
    other.mkdir()
    path = other / "n.onnx"
    path.write_bytes(apart.read_bytes())
    with pytest.raises(ModelError, match="does not exist"):
        tw.compile(path)
    (other / "w.bin").write_bytes((3 * W).tobytes())
    exe, again = found(path)
    assert not again
    np.testing.assert_allclose(exe(X), np.maximum(X @ W, 0) * 3, rtol=1e-4, atol=1e-4)


def test_weights_outside_the_folder_are_refused_from_the_cache_too(apart: Path) -> None:
    found(apart)
    weights = apart.parent / "w.bin"
    outside = apart.parent.parent / f"{apart.parent.name}-outside.bin"
    weights.rename(outside)
    weights.symlink_to(outside)
    with pytest.raises(ModelError, match="outside"):
        tw.compile(apart)


def test_a_model_given_as_bytes_has_no_other_files(apart: Path) -> None:
    found(apart)
    with pytest.raises(ModelError, match="given as bytes"):
        tw.compile(apart.read_bytes())


def test_values_of_dimensions_keep_the_files_in_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_digest, "SETTLED", -60.0)
    path = saved_apart(tmp_path / "m.onnx", shape=("N", 40))
    found(path, dims={"N": 5})
    assert found(path, dims={"N": 5})[1]
    (tmp_path / "w.bin").write_bytes((2 * W).tobytes())
    assert not found(path, dims={"N": 5})[1]


def test_weights_that_were_just_written_keep_a_model_out(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_digest, "SETTLED", 3600.0)  # however slow this machine is
    found(saved_apart(tmp_path / "m.onnx"))
    assert not entries(folder)


def test_a_model_that_changes_meanwhile_is_not_kept(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    executable = steps.executable

    def changing(*arguments: Any) -> Any:
        onnx.save(model("Neg"), path)
        return executable(*arguments)

    monkeypatch.setattr(steps, "executable", changing)
    found(path)
    assert not entries(folder)

    def removing(*arguments: Any) -> Any:
        made = executable(*arguments)
        path.unlink()
        return made

    monkeypatch.setattr(steps, "executable", removing)
    found(path)
    assert not entries(folder)


def test_constants_are_verified_unless_nobody_wrote_since(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "_VERIFY_LIMIT", 0)
    source = model().SerializeToString()
    found(source)
    asked = []
    load = ranged_bundle.load

    def noting(path: Path, *, verify: bool) -> Any:
        asked.append(verify)
        return load(path, verify=verify)

    monkeypatch.setattr(ranged_bundle, "load", noting)
    assert found(source)[1]
    (entry,) = entries(folder)
    data = bytearray(entry.read_bytes())
    entry.write_bytes(data)
    assert found(source)[1]
    assert found(source)[1]
    monkeypatch.setattr(file_digest, "_boot", lambda: "another")
    assert found(source)[1]
    assert asked == [False, True, False, True]
    monkeypatch.setattr(file_digest, "_boot", lambda: "")  # the system does not say
    for _ in range(2):
        assert found(source)[1]
    assert asked[4:] == [True, True]
    at = data.index(W.tobytes()[:16])
    data[at] ^= 1
    entry.write_bytes(data)
    with pytest.warns(TilewrightWarning, match="damaged"):
        assert not found(source)[1]


def test_a_truncated_entry_is_made_again_with_an_event(folder: Path) -> None:
    source = model().SerializeToString()
    found(source)
    (entry,) = entries(folder)
    os.truncate(entry, entry.stat().st_size // 2)
    with events.record() as log, pytest.warns(TilewrightWarning, match="damaged"):
        exe = tw.compile(source)
    assert [e.fields["key"] for e in log if e.kind == "store-corrupted"] == [entry.name]
    np.testing.assert_allclose(exe(X), np.maximum(X @ W, 0), rtol=1e-4, atol=1e-4)
    assert found(source)[1]


@pytest.mark.parametrize("shape", [(5, 40), ("N", 40)], ids=["fixed", "range"])
def test_an_entry_under_the_name_of_another_is_made_again(
    folder: Path, shape: Any
) -> None:
    """Renamed, or copied back from a backup; both are whole, and of one shape."""
    options = RANGE if shape[0] == "N" else {}
    source, other = (model(op, shape).SerializeToString() for op in ("Relu", "Neg"))
    found(other, **options)
    (wrong,) = entries(folder)
    made, _ = found(source, **options)
    (right,) = (e for e in entries(folder) if e != wrong)
    assert found(source, **options)[0].model.meta == made.model.meta
    copied = wrong.read_bytes()
    for misname in (lambda: right.write_bytes(copied), lambda: wrong.rename(right)):
        misname()
        with events.record() as log, warnings.catch_warnings():
            warnings.simplefilter("ignore", TilewrightWarning)  # once for each store
            exe = tw.compile(source, **options)
        refused = [e.fields["key"] for e in log if e.kind == "store-corrupted"]
        assert refused == [right.name]
        np.testing.assert_allclose(exe(X), np.maximum(X @ W, 0), rtol=1e-4, atol=1e-4)
    assert found(source, **options)[1]


def test_reference_kernels_are_reported_each_time(folder: Path) -> None:
    source = model("RandomUniformLike").SerializeToString()
    for _ in range(2):
        with pytest.warns(TilewrightWarning, match="RandomUniformLike"):
            assert not found(source)[1]
    assert not entries(folder)


def test_the_memory_limit_holds_for_kept_models_too() -> None:
    source = model().SerializeToString()
    found(source)
    with pytest.raises(MemoryLimitError):
        tw.compile(source, memory_limit=5000)


def test_the_memory_limit_is_what_a_kept_model_may_need(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store", 1 << 30)
    source = model().SerializeToString()
    asked = model_cache.known(store, source, None, {}, 1 << 30)
    assert asked is not None
    made = tw.compile(source, cache=False, threads=1).model
    model_cache.keep(store, asked, made, 1 << 30)
    needed = made.memory(1) + len(made.constants)
    assert model_cache.find(store, asked, needed, 1) is not None
    assert model_cache.find(store, asked, needed - 1, 1) is None


def test_files_over_the_limit_are_not_read_for_the_key(
    apart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path / "store", 1 << 30)
    asked = model_cache.known(store, apart, None, {}, 1 << 30)
    assert asked is not None
    assert model_cache._key(store, asked, ["w.bin"], W.nbytes) is not None
    monkeypatch.setattr(
        file_digest, "of_file", lambda *given: pytest.fail("it is read")
    )
    assert model_cache._key(store, asked, ["w.bin"], W.nbytes - 1) is None


def test_a_file_over_the_limit_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "huge.onnx"
    with path.open("wb") as file:
        file.truncate(1 << 40)

    def refuse(self: Path) -> bytes:
        raise AssertionError("read whole")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(MemoryLimitError):
        tw.compile(path)


def test_a_large_model_is_written_while_the_caller_goes_on(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call returns before it is written; the next one waits for that, and finds it."""
    monkeypatch.setattr(model_cache, "LARGE", 0)
    may_write = threading.Event()
    write = ranged_bundle.write

    def later(*args: Any, **options: Any) -> None:
        assert may_write.wait(60)
        time.sleep(0.2)  # whoever does not wait comes first
        write(*args, **options)

    monkeypatch.setattr(ranged_bundle, "write", later)
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    first, _ = found(path)
    assert not entries(folder)
    np.testing.assert_allclose(first(X), np.maximum(X @ W, 0), rtol=1e-4, atol=1e-4)
    may_write.set()
    second, again = found(path)
    assert again
    np.testing.assert_array_equal(first(X), second(X))


@pytest.mark.parametrize("ranged", [False, True])
def test_a_large_model_is_written_with_pauses(
    ranged: bool, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[object] = []
    monkeypatch.setattr(model_cache, "LARGE", 0)
    monkeypatch.setattr(digest, "CHUNK", 64)
    monkeypatch.setattr(left_work.Pauses, "pause", lambda of: pauses.append(of))
    path = tmp_path / "m.onnx"
    onnx.save(model(shape=("N", 40)) if ranged else model(), path)
    tw.compile(path, **(RANGE if ranged else {}))
    left_work.settle()
    assert len(pauses) >= W.nbytes // 64


def test_the_end_of_the_process_waits_and_kept_models_need_no_compiler(
    tmp_path: Path,
) -> None:
    """One for one shape, and one for a range."""
    one, ranged = (str(tmp_path / f"{name}.onnx") for name in ("one", "ranged"))
    onnx.save(model(), one)
    onnx.save(model(shape=("N", 40)), ranged)
    code = (
        "import sys, tilewright as tw\n"
        "from tilewright.driver import model_cache\n"
        "model_cache.LARGE = 0\n"
        f"tw.compile({one!r})\n"
        f"tw.compile({ranged!r}, **{RANGE})\n"
        "rooms = {m.split('.')[1] for m in sys.modules if m.startswith('tilewright.')}\n"
        "print(sorted(rooms & {'graph', 'plan', 'expr', 'schedule', 'targets'}))\n"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        for _ in range(2)
    ]
    assert not any(run.stderr for run in runs)
    assert runs[0].stdout.strip() != "[]"
    assert runs[1].stdout.strip() == "[]"


def test_a_file_is_identified_in_another_process_while_the_compiler_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What that process found is taken over: the versions, and where the model is cached."""
    monkeypatch.setattr(file_digest, "SETTLED", -60.0)
    path, copy = tmp_path / "m.onnx", tmp_path / "copy.onnx"
    for p in (path, copy):
        onnx.save(model(), p)
    here, identified = os.getpid(), []
    known = model_cache.known

    def noting(*arguments: Any) -> Any:
        identified.append(os.getpid())
        return known(*arguments)

    def refused(*_: object) -> str:
        assert os.getpid() != here
        return "0.1"

    monkeypatch.setattr(model_cache, "known", noting)
    monkeypatch.setattr(version, "_compiler", refused)
    monkeypatch.setattr(version, "FOUND", {})
    monkeypatch.setattr(model_cache, "MANY", 0)
    monkeypatch.delitem(sys.modules, steps.__name__)
    assert not found(path)[1]
    assert identified == []  # here
    assert version.FOUND == {(): "0.1"}
    assert found(copy)[1]
    assert identified == []
    assert found(copy)[1]  # its digest is remembered
    assert identified == [here]


def test_a_small_file_is_identified_in_another_process_if_the_sources_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes are not; nor is a file once the digest of the sources is remembered."""
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    identified = []
    known = model_cache.known

    def noting(*arguments: Any) -> Any:
        identified.append(os.getpid())
        return known(*arguments)

    monkeypatch.setattr(model_cache, "known", noting)
    for sources_known in (False, True):
        for source in (path.read_bytes(), path):
            monkeypatch.setattr(
                version, "is_known", lambda _, is_it=sources_known: is_it
            )
            monkeypatch.delitem(sys.modules, steps.__name__, raising=False)
            identified.clear()
            found(source)
            elsewhere = source is path and not sources_known
            assert identified == ([] if elsewhere else [os.getpid()])


def test_a_file_is_identified_here_if_no_process_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> int:
        raise OSError("no more processes")

    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    monkeypatch.setattr(os, "fork", refuse)
    monkeypatch.setattr(model_cache, "MANY", 0)
    monkeypatch.delitem(sys.modules, steps.__name__)
    for kept in (False, True):
        assert found(path)[1] == kept


def test_a_cached_model_warns_as_its_import_did(tmp_path: Path) -> None:
    proto = model()
    declared = helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 31])
    proto.graph.output[0].CopyFrom(declared)
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    texts = []
    for expected in (False, True):
        with pytest.warns(
            TilewrightWarning, match=r"m\.onnx: 'y' is declared"
        ) as caught:
            _, again = found(path)
        assert again == expected
        texts.append([str(w.message) for w in caught])
    assert texts[0] == texts[1]
    onnx.save(model(), path)
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("error", TilewrightWarning)
            found(path)
