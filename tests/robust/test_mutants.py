"""Damaged files of every kind that is read: each mutant is read, or refused by a TilewrightError.

`python -m tilewright.testing.mutate_artifacts FIRST COUNT` runs as many as are wanted.
"""

import json
from contextlib import suppress
from random import Random

import numpy as np
import pytest

from tests.limits import limited
from tilewright.base.errors import ArtifactError, TilewrightError
from tilewright.driver.options import read_scales
from tilewright.runtime import bundle
from tilewright.runtime.executable import Executable
from tilewright.testing import mutate_artifacts
from tilewright.testing.mutate_json import ODD, mutated, written


@pytest.fixture(autouse=True)
def cached(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("part", range(4))
def test_every_mutant_is_read_or_refused_by_name(part):
    mutate_artifacts._artifacts()
    with limited(4 << 30):
        failures = [
            f
            for seed in range(part * 200, part * 200 + 200)
            if (f := mutate_artifacts.run(seed))
        ]
    assert not failures, "\n".join(f"{f.seed} {f}" for f in failures)


def test_mutants_are_of_every_kind_and_not_all_refused(tmp_path):
    """The generator reaches behind the first checks."""
    kinds, read = set(), 0
    for seed in range(300):
        rng = Random(seed)
        names = list(mutate_artifacts._KINDS)
        kind = rng.choices(names, [w for *_, w in mutate_artifacts._KINDS.values()])[0]
        kinds.add(kind)
        if kind == "artifact":
            path = tmp_path / "m.tw"
            path.write_bytes(mutate_artifacts._artifact(rng)[0])
            with suppress(ArtifactError):
                read += bundle.load(path) is not None
    assert kinds == set(mutate_artifacts._KINDS)
    assert read > 20


def test_the_unharmed_files_are_read(tmp_path):
    for members in mutate_artifacts._artifacts():
        path = tmp_path / "m.tw"
        head = json.loads(members["manifest.json"])
        path.write_bytes(mutate_artifacts._zipped(members, head))
        exe = Executable(bundle.load(path, verify=True), threads=1)
        assert exe.outputs


def test_damage_is_done_to_a_copy_and_says_itself():
    data = {"a": [1, "x", {"b": 2.5}], "c": True}
    before = json.dumps(data)
    seen = set()
    for seed in range(200):
        made, damage = mutated(Random(seed), data, most=1)
        seen.add(damage.split()[0])
        assert (made, damage) == mutated(Random(seed), data, most=1) or "nan" in repr(
            made
        )
    assert json.dumps(data) == before
    assert seen == {"retype", "remove", "double", "move", "nudge", "nest"}
    assert written(json.dumps(ODD[-3:])).count(b"[" * 20_000) <= 1


def test_damaged_scales(tmp_path):
    path = tmp_path / "m.scales.json"
    valid = {"machine": "vta", "by": "shift", "scales": {"x": 0.25, "y": 1.0}}
    for seed in range(200):
        path.write_bytes(written(json.dumps(mutated(Random(seed), valid)[0])))
        with suppress(TilewrightError):
            read_scales(path)
    path.write_text(json.dumps(valid))
    assert read_scales(path)["scales"] == {"x": 0.25, "y": 1.0}


# ------------------------------------------------------------------- distinct ones, found so


def crafted(tmp_path, change):
    """The artifact without native code, with its manifest changed."""
    members = mutate_artifacts._artifacts()[2]
    head = json.loads(members["manifest.json"])
    change(head)
    path = tmp_path / "crafted.tw"
    path.write_bytes(mutate_artifacts._zipped(members, head))
    return path


def test_an_artifact_cannot_ask_for_endless_objects(tmp_path):
    path = crafted(tmp_path, lambda head: head.update(object_slots=1 << 62))
    with pytest.raises(ArtifactError, match="objects, of which it names 2"):
        bundle.load(path)


def test_an_artifact_of_endless_depth(tmp_path):
    path = crafted(tmp_path, lambda head: head.update(meta="@deep@"))
    with pytest.raises(ArtifactError, match="malformed"):
        bundle.load(path)


def test_what_copies_only_gives_back_what_it_got(tmp_path):
    exe = Executable(bundle.load(crafted(tmp_path, lambda head: None)))
    x, y = np.ones(3, np.float32), np.array(["a", "b"], object)
    first, _, last = exe(x, y)
    assert (first == x).all() and (last == y).all()
