"""The reader of .safetensors: what it gives, and each way in which a file can be broken."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from tests.llm.folders import write_safetensors
from tilewright.base.errors import MemoryLimitError, ModelError
from tilewright.frontends.safetensors import read

PLENTY = 1 << 30
TENSORS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array([1.5, -0.0, np.inf], ml_dtypes.bfloat16),
    "none": np.zeros((0, 4), np.float32),
    "one": np.array(7, np.int64),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "t.safetensors"


def test_tensors_come_back_as_they_were(path):
    write_safetensors(path, TENSORS, lambda e: {"__metadata__": {"format": "pt"}} | e)
    found = read(path, PLENTY)
    assert list(found) == list(TENSORS)
    for name, array in TENSORS.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()
        assert not found[name].size or not found[name].flags.writeable


def changed(name, **fields):
    """A header in which one tensor's entry says something else."""
    return lambda entries: entries | {name: entries[name] | fields}


FAULTS = {
    "an end behind the file": (
        changed("one", data_offsets=[30, 38 + 8]),
        "needs 8 bytes",
    ),
    "a shape of another size": (
        changed("a", shape=[2, 2]),
        "tensor 'a': .*needs 16 bytes",
    ),
    "a negative extent": (changed("a", shape=[-2, -3]), "tensor 'a': shape"),
    "an extent that is not an integer": (
        changed("a", shape=[2.0, 3]),
        "tensor 'a': shape",
    ),
    "an extent that is true": (changed("one", shape=[True]), "tensor 'one': shape"),
    "no shape": (changed("a", shape=None), "tensor 'a': shape"),
    "an unknown dtype": (changed("a", dtype="F4"), "tensor 'a': dtype 'F4'"),
    "a dtype that is a list": (changed("a", dtype=["F32"]), "tensor 'a': dtype"),
    "offsets that fall": (changed("a", data_offsets=[24, 0]), "data_offsets"),
    "three offsets": (changed("a", data_offsets=[0, 24, 30]), "data_offsets"),
    "an overlap": (changed("b", data_offsets=[22, 28]), "'b' overlaps"),
    "a gap": (lambda e: {"b": e["b"], "one": e["one"]}, "'b' leaves a gap"),
    "bytes left over": (lambda e: {"a": e["a"]}, "14 bytes after"),
    "more than there is": (
        changed("one", shape=[2], data_offsets=[30, 46]),
        "ends at 46",
    ),
    "an entry that is a list": (lambda e: e | {"a": []}, "tensor 'a': its entry"),
    "no object": (lambda e: [], "not an object"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_header_is_refused_by_name(path, fault):
    header, said = FAULTS[fault]
    write_safetensors(path, TENSORS, header)
    with pytest.raises(ModelError, match=said) as error:
        read(path, PLENTY)
    assert str(path) in str(error.value)


def test_broken_files_are_refused(path):
    text = json.dumps({"a": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}})
    twice = f'{{"a": 1, {text[1:]}'
    for data, said in (
        (b"", "0 bytes"),
        (b"1234567", "7 bytes"),
        ((1 << 40).to_bytes(8, "little") + b"{}", "a header of"),
        ((2).to_bytes(8, "little") + b"{]", "cannot be read"),
        ((2).to_bytes(8, "little") + b"\xff\xfe", "cannot be read"),
        (len(twice).to_bytes(8, "little") + twice.encode(), "occurs twice"),
        ((100_000).to_bytes(8, "little") + b"[" * 100_000, "cannot be read"),
    ):
        path.write_bytes(data)
        with pytest.raises(ModelError, match=said):
            read(path, PLENTY)
    with pytest.raises(ModelError, match="no such file"):
        read(path.with_name("other"), PLENTY)


def test_a_file_over_the_memory_limit_is_refused(path):
    write_safetensors(path, TENSORS)
    with pytest.raises(MemoryLimitError, match="over the memory limit"):
        read(path, 100)
