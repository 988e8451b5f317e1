"""Ranges of shapes in one artifact: saved, loaded where there is no compiler, damaged."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tilewright as tw
from tests.driver.ranges.test_ranged import MODELS, model
from tilewright.base.errors import ArtifactError, InputError
from tilewright.frontends.onnx import initializers
from tilewright.runtime import bundle, formulas, packed, ranged_bundle, ranged_model
from tilewright.runtime.executable import Executable
from tilewright.runtime.ranged import RangedExecutable

RNG = np.random.default_rng(0)
SIZES = (1, 2, 7, 20)

ELSEWHERE = """
import sys
import numpy as np
from tilewright import load
exe = load(sys.argv[1], threads=2)
found = [exe(x) for x in np.load(sys.argv[2]).values()]
np.savez(sys.argv[3], *found)
heavy = ("llvmlite", "onnx", "torch", "islpy", "tilewright.driver", "tilewright.expr")
print([m for m in sys.modules if m.startswith(heavy)])
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    path = tmp_path_factory.mktemp("ranged") / "m.tw"
    exe = tw.compile(
        model(MODELS["two"]),
        dims={"n": (1, 20)},
        jit=False,
        threads=2,
        cache=False,
        fusion=False,
    )
    exe.save(path)
    return exe, path


def arrays() -> list[Any]:
    return [RNG.standard_normal((n, 6)).astype(np.float32) for n in SIZES]


def test_another_process_runs_all_shapes_without_a_compiler(
    made: tuple[Any, Path], tmp_path: Path
) -> None:
    exe, path = made
    given = arrays()
    np.savez(tmp_path / "x.npz", *given)
    run = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, path, tmp_path / "x.npz", tmp_path / "y.npz"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "[]\n"
    with np.load(tmp_path / "y.npz") as found:
        for x, y in zip(given, found.values(), strict=True):
            np.testing.assert_array_equal(y, exe(x))


def test_a_loaded_range_is_the_one_that_was_saved(
    made: tuple[Any, Path], tmp_path: Path
) -> None:
    exe, path = made
    loaded = tw.load(path, threads=2)
    assert isinstance(loaded, RangedExecutable)
    assert repr(loaded) == repr(exe)
    assert loaded.inputs == exe.inputs
    assert loaded.outputs == exe.outputs
    for x in arrays():
        np.testing.assert_array_equal(loaded(x), exe(x))
        np.testing.assert_array_equal(loaded(x=x), exe(x))
    with pytest.raises(InputError, match="n is 21, and may be 1 to 20"):
        loaded(np.zeros((21, 6), np.float32))
    with pytest.raises(InputError, match=r"expected \[n, 6\], got \[3, 7\]"):
        loaded(np.zeros((3, 7), np.float32))
    assert loaded.profile(np.zeros((5, 6), np.float32), repeat=1).rows
    loaded.save(tmp_path / "again.tw")
    assert (tmp_path / "again.tw").read_bytes() == path.read_bytes()
    loaded.release()
    np.testing.assert_array_equal(loaded(x), exe(x))


def test_weights_of_a_large_file_and_of_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is scanned out of the model, one lies apart: in the archive both are as given in
    memory."""
    monkeypatch.setattr(initializers, "LEAST", 100)
    source = model(MODELS["products"])
    known = tmp_path / "known.tw"
    how: Any = {"dims": {"n": (1, 20)}, "jit": False, "threads": 1, "cache": False}
    want = tw.compile(source, **how)
    want.save(known)
    (weights,) = (t for t in source.graph.initializer if t.name == "b")
    (tmp_path / "b.bin").write_bytes(weights.raw_data)
    onnx.external_data_helper.set_external_data(weights, "b.bin")
    weights.ClearField("raw_data")
    source.doc_string = " " * (1 << 20)  # a large file
    path = tmp_path / "m.onnx"
    path.write_bytes(source.SerializeToString())
    assert len(initializers.scan(path)[1]) == 1
    tw.compile(path, **how).save(tmp_path / "m.tw")
    loaded = tw.load(tmp_path / "m.tw")
    for x in arrays():
        np.testing.assert_array_equal(loaded(x), want(x))


def test_constants_and_code_are_in_the_file_once(made: tuple[Any, Path]) -> None:
    exe, path = made
    models = exe.model.models
    assert len(models) > 1
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    distinct = {code for m in models for code in m.objects}
    assert sum(n.startswith("objects/") for n in names) == len(distinct)
    assert sum(n.startswith("support/") for n in names) == 1


def test_all_codes_have_the_same_constants(made: tuple[Any, Path]) -> None:
    exe, path = made
    loaded: Any = tw.load(path)
    for found in (exe.model, loaded.model):
        assert {id(m.constants) for m in found.models} == {id(found.held.block)}
    one, *others = exe.model.shared
    with pytest.raises(ArtifactError, match="different constants"):
        ranged_model.check(
            replace(
                exe.model, shared=(one.with_constants(packed.NO_CONSTANTS), *others)
            )
        )


def test_who_expects_one_shape_is_told_of_several(made: tuple[Any, Path]) -> None:
    with pytest.raises(ArtifactError, match="code for ranges of shapes"):
        bundle.load(made[1])


def test_models_of_one_shape_load_as_before(
    made: tuple[Any, Path], tmp_path: Path
) -> None:
    made[0].specialized({"x": arrays()[2]}).save(tmp_path / "one.tw")
    assert isinstance(tw.load(tmp_path / "one.tw"), Executable)


def _shared(head: Any) -> Any:
    return head["shared"][0]


DAMAGES: dict[str, Callable[[Any], object]] = {
    "a formula of no size": lambda h: _shared(h)["values"][0].__setitem__(0, "other"),
    "a division by zero": lambda h: _shared(h)["inputs"].__setitem__(
        0, [["//", 1, 0], 6]
    ),
    "a size too few": lambda h: _shared(h)["sizes"].pop(),
    "a tensor too few": lambda h: _shared(h)["values"].pop(),
    "a lifetime too few": lambda h: _shared(h)["lives"].pop(),
    "a lifetime backwards": lambda h: _shared(h)["lives"][0].__setitem__(
        slice(1, 3), [5, 0]
    ),
    "an operand too many": lambda h: _shared(h)["touched"][0].append(99),
    "another rank": lambda h: _shared(h)["values"][0].append(1),
    "another code": lambda h: _shared(h)["model"]["objects"].append(99),
    "other constants": lambda h: h["constants"].update(bytes=1 << 20),
    "constants of its own": lambda h: _shared(h)["model"].update(
        constants=h["constants"]
    ),
    "a size outside": lambda h: h["single"][0].__setitem__(0, [99]),
    "a key too long": lambda h: h["single"][0].__setitem__(0, [1, 1]),
    "cover of other rank": lambda h: _shared(h)["covers"].update(extents=[]),
    "another input": lambda h: h["inputs"][0].__setitem__(0, "other"),
    "an extent that is not a name": lambda h: h["inputs"][0].__setitem__(2, [[], 6]),
    "an unknown member": lambda h: h.update(more=1),
    "an empty range": lambda h: h["allowed"][0].__setitem__(1, ["range", [1]]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_manifests_are_refused(
    made: tuple[Any, Path], tmp_path: Path, damage: str
) -> None:
    bad = tmp_path / "bad.tw"
    with open(made[1], "rb") as file, open(bad, "wb") as out:
        head, codes, constants = bundle.contents(
            file, True, {bundle.RANGED: ranged_bundle._check}
        )
        head = json.loads(json.dumps(head))
        DAMAGES[damage](head)
        for name in ("members", "constants_offset"):
            del head[name]
        bundle.pack(out, [constants.data], codes, head)
    with pytest.raises(ArtifactError):
        tw.load(bad)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.99])
def test_changed_bytes_are_refused(
    made: tuple[Any, Path], tmp_path: Path, part: float
) -> None:
    data = bytearray(made[1].read_bytes())
    with zipfile.ZipFile(made[1]) as archive:
        covered = [i for i in archive.infolist() if i.file_size]
    info = covered[int(part * len(covered))]
    data[info.header_offset + 30 + len(info.filename) + len(info.extra) + 3] ^= 1
    (tmp_path / "bad.tw").write_bytes(data)
    with pytest.raises(ArtifactError):
        tw.load(tmp_path / "bad.tw", verify=True)
    (tmp_path / "cut.tw").write_bytes(data[: int(part * len(data))])
    with pytest.raises(ArtifactError):
        tw.load(tmp_path / "cut.tw")


def test_formulas() -> None:
    sizes = {"n": 7, "m": 2}
    given = ["max", ["-", ["*", "n", 3], ["%", "n", 4]], ["+", ["//", "n", 2], "m"]]
    assert formulas.value(given, sizes) == max(21 - 3, 3 + 2)
    formulas.check(given, sizes)
    for wrong in ("k", True, 1.5, None, ["^", 1, 2], ["//", 1, "n"], ["+", 1], 1 << 70):
        with pytest.raises(ValueError, match="is not an extent"):
            formulas.check(wrong, sizes)
    deep: Any = 1
    for _ in range(100):
        deep = ["+", deep, 1]
    with pytest.raises(ValueError, match="is not an extent"):
        formulas.check(deep, sizes)
