"""Artifacts: the same model comes back; anything else in the file is refused by name."""

import dataclasses
import hashlib
import itertools
import json
import os
import subprocess
import sys
import zipfile

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime import native
from tilewright.base.errors import ArtifactError
from tilewright.runtime import bundle, digest, manifest
from tilewright.runtime.executable import Executable, load
from tilewright.runtime.model import (
    OBJECT,
    CompiledModel,
    CopyStep,
    HostFallbackStep,
    Tensor,
    ValueSlot,
)

X = np.linspace(-1, 1, 100).astype(np.float32)


def hosted_model():
    anything = Tensor("list", OBJECT, None)
    some = Tensor("a/b:0", "bfloat16", (None, 3))
    return dataclasses.replace(
        native.model(),
        steps=(
            *native.model().steps,
            HostFallbackStep(
                "test",
                "Op",
                {
                    "axis": -1,
                    "mode": "x",
                    "alpha": float("nan"),
                    "raw": b"\0\xff",
                    "none": None,
                    "nested": {"list": [1, 2.5, True]},
                },
                (ValueSlot("object", 0, anything), None),
                (None, ValueSlot("object", 1, some)),
                "block/node",
            ),
            CopyStep(
                ValueSlot("object", 0, anything), ValueSlot("object", 1, anything)
            ),
        ),
        object_slots=2,
    )


def same(one, two):
    assert np.array_equal(one.constants, two.constants)
    none = np.empty(0, np.uint8)
    left, right = (dataclasses.replace(m, constants=none) for m in (one, two))
    return repr(left) == repr(right)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    path = tmp_path_factory.mktemp("artifact") / "model.tw"
    bundle.save(native.model(), path)
    return path


def test_round_trip(artifact, tmp_path):
    exe = load(artifact, threads=1)
    np.testing.assert_array_equal(exe(X), native.expected(X))
    assert same(exe.model, native.model())
    bundle.save(hosted_model(), tmp_path / "hosted.tw")
    assert same(bundle.load(tmp_path / "hosted.tw", verify=True), hosted_model())


def test_the_same_model_makes_the_same_bytes(artifact, tmp_path):
    load(artifact).save(tmp_path / "again.tw")
    assert (tmp_path / "again.tw").read_bytes() == artifact.read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["again.tw"]


def test_constants_are_mapped_and_cannot_be_written(artifact):
    constants = bundle.load(artifact).constants
    assert not constants.flags.writeable and constants.ctypes.data % 64 == 0
    with open("/proc/self/maps") as file:
        assert any(str(artifact) in line for line in file)


def test_an_artifact_can_be_replaced_while_it_is_loaded(tmp_path):
    path = tmp_path / "model.tw"
    bundle.save(native.model(), path)
    exe = load(path)
    bundle.save(native.model(50), path)
    np.testing.assert_array_equal(exe(X), native.expected(X))
    assert load(path).inputs[0].shape == (50,)


def test_attributes_come_back():
    values = {
        "f": [0.1, float("inf"), -0.0],
        "i": np.int64(7),
        "a": np.arange(6, dtype=np.int16).reshape(2, 3),
        "b": np.ones((2, 0), ml_dtypes.bfloat16),
        "s": np.array([["x", "é"]], object),
        "q": (np.float32(1.5),),
    }
    back = manifest.decode_value(json.loads(json.dumps(manifest.encode_value(values))))
    assert back["f"] == values["f"] and back["i"] == 7
    for name in "abs":
        assert back[name].dtype == values[name].dtype
        np.testing.assert_array_equal(back[name], values[name])
    assert back["q"][0] == 1.5


@pytest.mark.parametrize("value", [object(), {"$float": 1}, {1: 2}, {1, 2}])
def test_an_attribute_that_cannot_be_stored(value, tmp_path):
    model = dataclasses.replace(native.model(), meta={"x": value})
    with pytest.raises(ArtifactError, match="the model cannot be saved"):
        bundle.save(model, tmp_path / "model.tw")
    assert list(tmp_path.iterdir()) == []


def test_where_it_cannot_be_written(tmp_path):
    with pytest.raises(ArtifactError, match="cannot be written: No such file"):
        bundle.save(native.model(), tmp_path / "no" / "model.tw")


# ---------------------------------------------------------------------------------- bad input


def rewrite(source, path, change=None, comment=None, compress=False):
    """The artifact with its manifest changed, and its checksum made right again."""
    kind = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w", kind) as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename == "manifest.json":
                head = json.loads(data)
                (change or (lambda _: None))(head)
                data = json.dumps(head).encode()
            if compress:
                info = info.filename
            new.writestr(info, data)
        mark = b"tilewright-artifact " + hashlib.sha256(data).hexdigest().encode()
        new.comment = mark if comment is None else comment
    return path


def set_(*path, to):
    def change(head):
        *way, last = path
        for step in way:
            head = head[step]
        head[last] = to

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            set_("format", to=6),
            "has format 6, this version reads 10. Load it with the version",
        ),
        (
            set_("abi", to=9),
            "calling convention 9, this version has 2. Compile the model again",
        ),
        (set_("steps", 0, "kind", to="magic"), "unknown step 'magic'"),
        (set_("steps", 0, "values", 0, 0, to="moon"), "unknown place 'moon'"),
        (set_("steps", 0, "values", 0, 1, to=5), "outside the model's 1"),
        (set_("steps", 0, "values", 0, 1, to=-5), "expected a count, got -5"),
        (
            set_("inputs", 0, 1, to="float31"),
            "malformed: unknown dtype 'float31' in inputs",
        ),
        (set_("arena_bytes", to="many"), "expected a count, got 'many'"),
        (set_("steps", to={}), "expected list, got dict"),
        (
            set_("members", "extra.o", to={"size": 1, "digest": ""}),
            "differ from those its manifest lists",
        ),
        (
            set_("members", "extra.o", to={}),
            "extra or missing members: 'digest', 'size' in members",
        ),
        (set_("members", to=[]), "expected dict, got list in members"),
        (set_("members", "objects/0.o", "size", to="1"), "expected a count, got '1'"),
        (set_("requirements", "features", to=7), "expected list, got int in features"),
        (
            set_("requirements", "features", to=[None]),
            "expected str, got NoneType in features",
        ),
        (set_("requirements", "arch", to=["x86_64"]), "expected str, got list in arch"),
        (
            set_("steps", 0, "kernels", 0, to=[1]),
            r"expected 6 items, got 1 in steps\[0\]",
        ),
        (set_("steps", 0, "values", 0, 2, to=99), "IndexError"),
        (set_("arena_bytes", to=1 << 63), "expected a count"),
        (set_("arena_bytes", to=True), "expected a count, got True"),
        (set_("inputs", 0, 2, to=[1.5]), "expected a count, got 1.5 in inputs"),
        (set_("meta", to={"$array": ["float32", [2], "AAAA"]}), "malformed"),
        (set_("meta", to={"$array": ["float32", [1], 7]}), "expected str, got int"),
        (set_("meta", to={"$float": []}), "expected str, got list"),
        (set_("meta", to={"$bytes": "?"}), "malformed"),
        (set_("format", to=[3]), "has format"),
        (
            set_("members", "objects/0.o", "digest", to="0"),
            "objects/0.o that does not match",
        ),
        (
            set_("members", "constants.bin", "digest", to="0"),
            "constants that do not match",
        ),
        (
            set_("members", "constants.bin", "size", to=1),
            "has a constants.bin of 400 bytes",
        ),
        (set_("constants_offset", to=64), "constants at another offset"),
    ],
)
def test_a_wrong_manifest_is_refused(artifact, tmp_path, change, message):
    path = rewrite(artifact, tmp_path / "model.tw", change)
    with pytest.raises(ArtifactError, match=message) as error:
        load(path)
    assert str(path) in str(error.value)


def test_another_machine(artifact, tmp_path):
    features = set_("requirements", "features", to=["sse2", "avx1024"])
    path = rewrite(artifact, tmp_path / "model.tw", features)
    with pytest.raises(
        ArtifactError, match="processor lacks what the artifact needs: avx1024"
    ):
        load(path)
    path = rewrite(
        artifact, tmp_path / "model.tw", set_("requirements", "arch", to="aarch64")
    )
    with pytest.raises(ArtifactError, match="is for aarch64, this machine is x86_64"):
        load(path)


def test_what_is_no_artifact(artifact, tmp_path):
    path = tmp_path / "model.tw"
    with pytest.raises(ArtifactError, match="cannot be read: No such file"):
        load(path)
    with pytest.raises(ArtifactError, match="cannot be read: Is a directory"):
        load(tmp_path)
    for device in ("/dev/zero", "/dev/null", "/dev/full"):
        with pytest.raises(
            ArtifactError, match="cannot be read: it is a pipe or a device"
        ):
            load(device)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArtifactError, match="cannot be read: it is a pipe or a device"):
        load(tmp_path / "pipe")
    for content in (b"", b"random bytes" * 100, artifact.read_bytes()[:-100]):
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match="is not an artifact, or is damaged"):
            load(path)
    with pytest.raises(ArtifactError, match="is a zip file, but not an artifact"):
        load(rewrite(artifact, path, comment=b""))
    with pytest.raises(
        ArtifactError, match="manifest that does not match its checksum"
    ):
        load(rewrite(artifact, path, comment=b"tilewright-artifact 00"))
    with pytest.raises(ArtifactError, match="compressed or encrypted member"):
        load(rewrite(artifact, path, compress=True))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), min_size=1, max_size=3
    )
)
def test_flipped_bytes_are_refused_or_harmless(artifact, tmp_path_factory, flips):
    data = bytearray(artifact.read_bytes())
    for at, mask in flips:
        data[at % len(data)] ^= mask
    check_damaged(bytes(data), tmp_path_factory)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 20))
def test_truncated_files_are_refused(artifact, tmp_path_factory, length):
    data = artifact.read_bytes()
    check_damaged(data[: length % len(data)], tmp_path_factory)


def check_damaged(data, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "damaged.tw"
    path.write_bytes(data)
    try:
        model = bundle.load(path)
    except ArtifactError:
        return
    assert same(model, native.model())


def test_every_byte_that_matters(artifact, tmp_path):
    """Every single byte outside the padding, one after another."""
    data = artifact.read_bytes()
    path = tmp_path / "damaged.tw"
    harmless = 0
    meaning = [n for n in range(len(data)) if any(data[max(0, n - 8) : n + 8])]
    for at in meaning[:: max(1, len(meaning) // 600)]:
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        try:
            assert same(bundle.load(path), native.model())
            harmless += 1
        except ArtifactError:
            pass
    assert harmless < len(meaning) // 10


# ------------------------------------------------------------------------------ in deployment


def test_large_constants_are_verified_when_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "_VERIFY_LIMIT", 100)
    path = tmp_path / "model.tw"
    bundle.save(native.model(), path)
    data = path.read_bytes()
    path.write_bytes(data[:4100] + b"\1" + data[4101:])
    assert not same_constants(bundle.load(path))
    with pytest.raises(ArtifactError, match="constants that do not match"):
        load(path, verify=True)


def same_constants(model):
    return np.array_equal(model.constants, native.model().constants)


def test_a_model_without_constants_or_code(tmp_path):
    x = Tensor("x", "float32", (3,))
    model = CompiledModel(
        (x,), (x,), (CopyStep(ValueSlot("input", 0, x), ValueSlot("output", 0, x)),)
    )
    Executable(model).save(tmp_path / "m.tw")
    np.testing.assert_array_equal(load(tmp_path / "m.tw")([1, 2, 3]), [1, 2, 3])


def test_loading_needs_no_compiler(artifact):
    code = f"""
import sys
import numpy as np
from tilewright.runtime.executable import load
exe = load({str(artifact)!r})
exe(np.ones(100, np.float32))
heavy = {{"llvmlite", "onnx", "torch", "islpy", "rich", "click", "ml_dtypes", "ctypes.util"}}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_padding_is_in_the_field_that_other_tools_keep(tmp_path):
    """The number is zipalign's: who packs the archive anew leaves it alone or pads again."""
    path = tmp_path / "m.tw"
    bundle.write(native.model(), path)
    with zipfile.ZipFile(path) as archive:
        extras = [info.extra for info in archive.infolist() if info.extra]
    assert extras and all(extra[:2] == b"\x35\xd9" for extra in extras)


@pytest.mark.parametrize("size", [0, 5, digest.CHUNK, 2 * digest.CHUNK + 3])
def test_the_digest_while_writing_is_that_of_the_whole(size):
    data = np.arange(size, dtype=np.uint32).view(np.uint8)[:size].tobytes()
    held = digest.GrowingDigest()
    for at in range(0, size, digest.CHUNK):
        held.add(memoryview(data)[at : at + digest.CHUNK])
    assert held.text == digest.of_bytes(data)


@pytest.mark.parametrize("sizes", [[], [0], [3, 0, 4], [5], [13, 2], [1, 12, 8, 7, 1]])
def test_pieces_are_written_in_whole_chunks(monkeypatch, sizes):
    monkeypatch.setattr(digest, "CHUNK", 4)
    bounds = np.cumsum([0, *sizes])
    data = np.arange(bounds[-1], dtype=np.uint8)
    pieces = [memoryview(data[a:b]) for a, b in itertools.pairwise(bounds)]
    found = list(digest.chunks(pieces))
    assert b"".join(found) == data.tobytes()
    assert all(len(chunk) == 4 for chunk in found[:-1])
    assert not found or 0 < len(found[-1]) <= 4


def test_only_chunks_of_several_pieces_are_copies(monkeypatch):
    monkeypatch.setattr(digest, "CHUNK", 4)
    data = np.arange(16, dtype=np.uint8)
    found = list(digest.chunks([memoryview(data[:9]), memoryview(data[9:])]))
    shared = [np.shares_memory(data, np.frombuffer(c, np.uint8)) for c in found]
    assert shared == [True, True, False, True]


def test_a_writer_pauses_after_each_chunk_of_constants(monkeypatch, tmp_path):
    model = native.model()
    monkeypatch.setattr(digest, "CHUNK", 64)
    pauses = []
    bundle.write(model, tmp_path / "m.tw", pause=lambda: pauses.append(1))
    assert len(pauses) == -(-model.held.stored_bytes() // 64) > 0


@pytest.mark.parametrize(
    "content", [b"\x08\x09", b"", "zip"], ids=["onnx", "empty", "zip"]
)
@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_a_model_is_not_loaded_but_compiled(tmp_path, suffix, content):
    path = tmp_path / f"model{suffix}"
    if content == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("version", "3")
    else:
        path.write_bytes(content)
    with pytest.raises(ArtifactError) as caught:
        load(path)
    said = "the file is a model, not an artifact; tilewright.compile takes models"
    assert str(caught.value) == f"{path}: {said}"


def test_what_is_no_path_is_refused():
    with pytest.raises(ArtifactError, match="by its path, not a dict"):
        load({})
