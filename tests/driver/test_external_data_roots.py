"""Folders that a model's weights may lie in besides its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import tilewright as tw
from tilewright.base import events
from tilewright.base.errors import InputError, ModelError
from tilewright.driver import file_digest

W = np.arange(4, dtype=np.float32)
ONES = np.ones(4, np.float32)


@pytest.fixture
def linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose weights have a second name; what was just written counts as settled."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(file_digest, "SETTLED", -60.0)
    made = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 21]> f (float[4] x) => (float[4] y) { y = Add(x, w) }'
    )
    made.graph.initializer.append(numpy_helper.from_array(W, "w"))
    path = tmp_path / "m" / "m.onnx"
    path.parent.mkdir()
    outside: dict[str, Any] = {"save_as_external_data": True, "size_threshold": 0}
    onnx.save(made, path, location="w.bin", **outside)
    os.link(path.parent / "w.bin", tmp_path / "other name")
    return path


def test_hard_links_are_read_where_their_folder_is_named(linked: Path) -> None:
    with pytest.raises(ModelError, match="several hard links") as caught:
        tw.compile(linked)
    hint = str(caught.value.hint)
    assert "--external-data-root" in hint and "external_data_roots=[...]" in hint
    exe = tw.compile(linked, external_data_roots=[linked.parent])
    np.testing.assert_array_equal(exe(ONES), ONES + W)


def test_a_kept_model_is_found_by_who_names_the_folder_alone(linked: Path) -> None:
    roots = {"external_data_roots": [linked.parent]}
    tw.compile(linked, **roots)
    with events.record() as log:
        exe = tw.compile(linked, **roots)
    assert [e.kind for e in log].count("model-cached") == 1
    np.testing.assert_array_equal(exe(ONES), ONES + W)
    with pytest.raises(ModelError, match="several hard links"):
        tw.compile(linked)
    (linked.parent / "w.bin").write_bytes((W * 2).tobytes())
    np.testing.assert_array_equal(tw.compile(linked, **roots)(ONES), ONES + 2 * W)


def test_a_model_given_as_bytes(linked: Path) -> None:
    exe = tw.compile(linked.read_bytes(), external_data_roots=[str(linked.parent)])
    np.testing.assert_array_equal(exe(ONES), ONES + W)


@pytest.mark.parametrize("roots", ["folder", 3, [3], ["no such folder"]])
def test_what_are_no_folders(linked: Path, roots: Any) -> None:
    with pytest.raises(InputError, match="external_data_roots"):
        tw.compile(linked, external_data_roots=roots)
