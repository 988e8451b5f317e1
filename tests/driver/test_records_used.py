"""Records are used by `compile` where they belong, and said; trouble with them fails nothing."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright import driver
from tilewright.base import events
from tilewright.base.errors import InputError, ScheduleError, TilewrightWarning
from tilewright.driver.tasks import tasks
from tilewright.driver.validate import validate_model
from tilewright.runtime.bundle import load, save
from tilewright.tune.base import Candidate
from tilewright.tune.records import published
from tilewright.tune.records.database import Records
from tilewright.tune.records.key import Key

W = np.random.default_rng(0).standard_normal((40, 40)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((24, 40)).astype(np.float32)
Y = np.maximum(np.maximum(X @ W, 0) @ W, 0)


def model(names: str = "x a h b r y", layers: int = 2) -> bytes:
    """Layers of one kind: a product with a constant and a ReLU."""
    x, *made, y = names.split()
    nodes = []
    given = x
    for n in range(layers):
        product, result = made[2 * n], made[2 * n + 1] if n < layers - 1 else y
        nodes.append(helper.make_node("MatMul", [given, "w"], [product]))
        nodes.append(helper.make_node("Relu", [product], [result]))
        given = result
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, (24, 40))],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, (24, 40))],
        [numpy_helper.from_array(W, "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    made_model: onnx.ModelProto = helper.make_model(
        graph, opset_imports=opset, ir_version=8
    )
    return made_model.SerializeToString()


def task(**options: Any) -> tuple[Key, list[Candidate]]:
    """The key of the model's kernel, and candidates that are not the default."""
    (found,) = tasks(model(), cache=False, records=False, **options)
    default, chance = found.space.default(), Random(0)
    candidates: list[Candidate] = []
    while len(candidates) < 5:
        near = found.space.neighbor(default, chance)
        if near != default and near not in candidates:
            with contextlib.suppress(ScheduleError):
                candidates.append(Candidate.of(found.schedule(near)))
    return Key.parse(found.key), candidates


KEY, CANDIDATES = task(threads=2)


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "data" / "records.sqlite"
    monkeypatch.setenv("TILEWRIGHT_RECORDS", str(path))
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TILEWRIGHT_NUM_THREADS", "2")
    yield path


def choose(
    path: Path, candidate: Candidate = CANDIDATES[0], key: Key = KEY, gain: float = 1.5
) -> None:
    with Records(path) as records:
        run = records.begin("model.onnx")
        records.choose(run, key, "matmul+relu", candidate, 1e-3, gain * 1e-3)
        records.end(run)


def compiled(source: bytes = model(), **options: Any) -> tuple[Any, list[events.Event]]:
    with events.record() as log:
        exe = tw.compile(source, **options)
    return exe, log


def of_kind(log: list[events.Event], kind: str) -> list[events.Event]:
    return [e for e in log if e.kind == kind]


def right(exe: Any) -> bool:
    return bool(np.allclose(exe(X), Y, rtol=1e-4, atol=1e-4))


@pytest.mark.parametrize("number", [0, 1, -1])
def test_the_best_record_is_used_and_said(path: Path, number: int) -> None:
    plain, log = compiled()
    assert not of_kind(log, "record-used")
    assert "tuned" not in plain.model.meta
    choose(path, CANDIDATES[number])
    exe, log = compiled()
    said = of_kind(log, "record-used")
    assert [e.fields["gain"] for e in said] == [1.5, 1.5]
    assert [t["gain"] for t in exe.model.meta["tuned"]] == [1.5, 1.5]
    assert right(plain) and right(exe)
    # Both layers are one kernel, with other code than before.
    symbols = {k.symbol for k in exe.model.kernels}
    assert len(symbols) == 1
    assert symbols != {k.symbol for k in plain.model.kernels}
    for record in driver.schedules(model()):
        values = {p.name: p.value for p in record.parameters}
        candidate = CANDIDATES[number]
        assert record.sketch == candidate.sketch
        found = json.loads(json.dumps(list(values.values())))
        wanted = json.loads(json.dumps(list(candidate.values.values())))
        assert found == wanted
        assert any("1.50x of default" in line for line in record.reasons)
        assert record.to_dict()["tuned"]["candidate"] == candidate.key


def test_a_record_is_used_under_other_names(path: Path) -> None:
    choose(path)
    exe, log = compiled(model("relu tensor3 i matmul.j tensor0 conv/out:0"))
    assert len(of_kind(log, "record-used")) == 2
    assert len({k.symbol for k in exe.model.kernels}) == 1
    assert right(exe)


def test_what_schedules_shows_can_be_asked_for(path: Path) -> None:
    choose(path)
    values = {r.kernel: r.to_dict()["values"] for r in driver.schedules(model())}
    tuned, _ = compiled()
    asked, log = compiled(schedules=values, records=False)
    assert not of_kind(log, "record-used")
    texts = [
        driver.text(model(), "kernel"),
        driver.text(model(), "kernel", schedules=values, records=False),
    ]
    assert texts[0] == texts[1]
    assert texts[0] != driver.text(model(), "kernel", records=False)
    assert right(tuned) and right(asked)


def test_what_is_verified_is_what_runs(path: Path) -> None:
    usual = {v.kernel for v in validate_model(model(), records=False)}
    choose(path)
    with events.record() as log:
        found = validate_model(model())
    assert of_kind(log, "record-used")
    assert all(v.ok for v in found)
    assert {v.kernel for v in found} == usual
    choose(path, IMPOSSIBLE["sketch"], gain=9.0)
    with pytest.warns(TilewrightWarning, match="is not used"):
        assert all(v.ok for v in validate_model(model()))


def test_who_asks_for_a_schedule_gets_it(path: Path) -> None:
    choose(path)
    names = {r.kernel for r in driver.schedules(model())}
    found = driver.schedules(model(), schedules={name: {} for name in names})
    assert [r.tuned for r in found] == [None] * len(found)


OTHERS = {
    "threads": task(threads=1)[0],
    "math": task(threads=2, math="exact")[0],
    "processor": replace(KEY, processor="another"),
    "machine": task(threads=2, mcpu="x86-64-v2")[0],
    "dtypes": replace(KEY, dtypes="float64 float64 -> float64"),
    "layouts": replace(KEY, layouts="[k, i] [k, j] -> [i, j]"),
    "constants": replace(KEY, constants="---"),
    "operator": replace(KEY, operator="0" * 32),
    "schedules": replace(KEY, schedules=KEY.schedules + 1),
}


@pytest.mark.parametrize("part", OTHERS)
def test_a_record_of_something_else_is_not_used(path: Path, part: str) -> None:
    choose(path, key=OTHERS[part])
    exe, log = compiled()
    assert not of_kind(log, "record-used")
    assert "tuned" not in exe.model.meta
    choose(path)
    assert len(of_kind(compiled()[1], "record-used")) == 2


def test_weights_that_are_not_constant_have_no_record_of_constant_ones(
    path: Path,
) -> None:
    choose(path)
    proto = onnx.load_from_string(model())
    del proto.graph.initializer[:]
    proto.graph.input.append(
        helper.make_tensor_value_info("w", TensorProto.FLOAT, (40, 40))
    )
    exe, log = compiled(proto.SerializeToString())
    assert not of_kind(log, "record-used")
    assert np.allclose(exe(X, W), Y, rtol=1e-4, atol=1e-4)


# -------------------------------------------------------------------------- the model cache


def test_a_new_best_record_makes_a_new_model(path: Path) -> None:
    def cached() -> bool:
        return bool(of_kind(compiled()[1], "model-cached"))

    assert not cached()
    assert cached()
    with Records(path) as records:  # no record that is used: as before
        run = records.begin("m")
        assert cached()
        records.choose(run, KEY, "k", CANDIDATES[0], 1.0, 1.01)
        assert cached()
        records.choose(run, KEY, "k", CANDIDATES[0], 1.0, 1.2)
        assert not cached()
        assert cached()
        records.withdraw(run, KEY, "k")
        assert cached()
    path.unlink()
    published.place(path).unlink()
    assert cached()


def test_a_model_from_the_cache_says_so_as_well(path: Path, tmp_path: Path) -> None:
    choose(path)
    compiled()
    exe, log = compiled()
    assert of_kind(log, "model-cached")
    assert [t["gain"] for t in exe.model.meta["tuned"]] == [1.5, 1.5]
    save(exe.model, tmp_path / "m.tw")
    assert load(tmp_path / "m.tw").meta["tuned"] == exe.model.meta["tuned"]


# ---------------------------------------------------------------------------------- trouble

IMPOSSIBLE = {
    "value": Candidate("tiled", {"matmul.tile": [97, 3]}),
    "parameter": Candidate(CANDIDATES[0].sketch, {"no_such.parameter": 1}),
    "sketch": Candidate("no such sketch", {}),
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_a_record_that_is_not_possible_is_passed_over(path: Path, kind: str) -> None:
    plain, _ = compiled(records=False)
    choose(path, IMPOSSIBLE[kind])
    with pytest.warns(
        TilewrightWarning, match=r"the tuning record of 20.* is not used"
    ) as said:
        exe, log = compiled()
    assert len(said) == 1
    assert len(of_kind(log, "record-refused")) == 1
    assert "tuned" not in exe.model.meta
    assert {k.symbol for k in exe.model.kernels} == {
        k.symbol for k in plain.model.kernels
    }
    assert right(exe)
    with pytest.warns(TilewrightWarning, match="is not used"):
        assert [r.tuned for r in driver.schedules(model())] == [None, None]
    with pytest.warns(TilewrightWarning, match="is not used"):
        text = driver.text(model(), "kernel")
    assert text == driver.text(model(), "kernel", records=False)


def test_a_choice_of_the_callers_is_not_withdrawn(path: Path) -> None:
    choose(path)
    names = {r.kernel for r in driver.schedules(model())}
    with pytest.raises(ScheduleError, match="no sketch"):
        compiled(schedules={name: {"sketch": "none"} for name in names})


@pytest.mark.parametrize("damage", ["the file for compile", "the database", "both"])
def test_damage_fails_no_compilation(path: Path, damage: str) -> None:
    choose(path)
    there = published.place(path)
    if damage != "the database":
        there.write_bytes(b"\xff" * 50)
    if damage != "the file for compile":
        path.write_bytes(b"\xa5" * 9000)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        exe, log = compiled()
    assert right(exe)
    assert bool(of_kind(log, "record-used")) == (damage != "both")
    assert bool(said) == (damage == "both")


def test_records_of_others_are_not_used(path: Path) -> None:
    choose(path)
    published.place(path).chmod(0o666)
    with pytest.warns(
        TilewrightWarning, match="others could have written.*No tuning records are used"
    ):
        exe, log = compiled()
    assert not of_kind(log, "record-used")
    assert right(exe)


def test_which_records_are_used(path: Path, tmp_path: Path, monkeypatch: Any) -> None:
    other = tmp_path / "data" / "other.sqlite"
    choose(other)
    assert not of_kind(compiled()[1], "record-used")
    assert of_kind(compiled(records=other)[1], "record-used")
    assert of_kind(compiled(records=str(other), cache=False)[1], "record-used")
    monkeypatch.setenv("TILEWRIGHT_RECORDS", str(other))
    assert of_kind(compiled(cache=False)[1], "record-used")
    assert not of_kind(compiled(cache=False, records=False)[1], "record-used")
    monkeypatch.setenv("TILEWRIGHT_RECORDS", "off")
    assert not of_kind(compiled(cache=False)[1], "record-used")
    with pytest.raises(InputError, match="there are no tuning records"):
        tw.compile(model(), records=tmp_path / "none.sqlite")
    with pytest.raises(InputError, match="records=True"):
        tw.compile(model(), records=True)


def test_nothing_of_it_is_loaded_where_it_is_not_needed(
    path: Path, tmp_path: Path
) -> None:
    """Neither SQLite nor the compiler for a model from the cache; nor SQLite to compile."""
    # A processor by name: these tests, but not their processes, describe this one as usual.
    key, candidates = task(threads=2, mcpu="x86-64-v2")
    choose(path, candidates[0], key)
    file = tmp_path / "m.onnx"
    file.write_bytes(model())
    code = (
        "import sys, tilewright as tw; print('sqlite3' in sys.modules, end=' ');"
        f"exe = tw.compile({str(file)!r}, mcpu='x86-64-v2');"
        "print('sqlite3' in sys.modules, 'tilewright.tune.base' in sys.modules, end=' ');"
        "print(exe.model.meta['tuned'][0]['gain'])"
    )
    done = [
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        )
        for _ in range(2)
    ]
    assert done[0].stdout.split() == ["False", "False", "True", "1.5"]
    assert done[1].stdout.split() == ["False", "False", "False", "1.5"]
