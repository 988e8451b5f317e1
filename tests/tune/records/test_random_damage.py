"""Databases damaged anywhere: each is mended or refused, and no trial becomes another."""

from __future__ import annotations

import random
import shutil
import warnings
from pathlib import Path

import pytest

from tests.tune.records.made import KEY, ROWS, RUN, record, trial
from tilewright.base.errors import InputError
from tilewright.tune.records.database import Records

ORIGINALS = [*ROWS, *(record(n) for n in range(100, 160))]
DAMAGES = 40


def garbage(data: bytearray, chance: random.Random) -> bytearray:
    """Bytes of another value in a few places."""
    for _ in range(chance.choice((1, 3, 30))):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return data


def shorter(data: bytearray, chance: random.Random) -> bytearray:
    """Without its end."""
    return data[: chance.randrange(len(data))]


def hole(data: bytearray, chance: random.Random) -> bytearray:
    """Zeros for a part that begins anywhere, as of a sector that was never written."""
    at = chance.randrange(len(data))
    size = min(chance.choice((16, 512, 4096)), len(data) - at)
    data[at : at + size] = bytes(size)
    return data


def swapped(data: bytearray, chance: random.Random) -> bytearray:
    """Two pages in each other's place."""
    a, b = (4096 * chance.randrange(len(data) // 4096) for _ in range(2))
    data[a : a + 4096], data[b : b + 4096] = data[b : b + 4096], data[a : a + 4096]
    return data


WAYS = (garbage, shorter, hole, swapped)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database whose last trials are in its journal only."""
    folder = tmp_path_factory.mktemp("whole")
    living, path = folder / "living", folder / "records.sqlite"
    with Records(living) as records:
        records.merge(ORIGINALS[:-10])
    with Records(living) as records:
        for row in ORIGINALS[-10:]:
            records.merge([row])
        shutil.copy(living, path)
        shutil.copy(f"{living}-wal", f"{path}-wal")
        shutil.copy(f"{living}.best", f"{path}.best")
    return path


def damaged(whole: Path, folder: Path, chance: random.Random) -> Path:
    """A copy of it that is damaged in one way, or its journal is."""
    path = folder / whole.name
    for suffix in ("", "-wal", ".best"):
        shutil.copy(f"{whole}{suffix}", f"{path}{suffix}")
    target = Path(f"{path}{chance.choice(('', '', '-wal'))}")
    data = bytearray(target.read_bytes())
    target.write_bytes(chance.choice(WAYS)(data, chance))
    return path


def test_the_whole_one_is_read(whole: Path, tmp_path: Path) -> None:
    for suffix in ("", "-wal"):
        shutil.copy(f"{whole}{suffix}", f"{tmp_path / whole.name}{suffix}")
    with Records(tmp_path / whole.name) as records:
        found = [*records.records(), *records.choices()]
    assert sorted(map(repr, found)) == sorted(map(repr, ORIGINALS))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(DAMAGES))
def test_damage_anywhere(whole: Path, tmp_path: Path, seed: int) -> None:
    path = damaged(whole, tmp_path, random.Random(seed))
    rows = {(r.time, type(r)): r for r in ORIGINALS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            records = Records(path)
        except InputError:
            return  # its header says that it is newer, or something else
        with records:
            for found in (*records.records(), *records.choices()):
                original = rows[found.time, type(found)]
                assert found.key == original.key
                assert getattr(found, "trial", 0) == getattr(original, "trial", 0)
                assert getattr(found, "candidate", 0) == getattr(
                    original, "candidate", 0
                )
            records.add(RUN, KEY, "k", trial(9999))
            assert records.trials(KEY)[-1] == trial(9999)


def test_most_of_them_keep_most(whole: Path, tmp_path: Path) -> None:
    """Mending is of use: half of the damaged databases keep three quarters of their trials."""
    kept = []
    for seed in range(DAMAGES):
        folder = tmp_path / str(seed)
        folder.mkdir(mode=0o700)
        path = damaged(whole, folder, random.Random(seed))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with Records(path) as records:
                    kept.append(len(records.records()) / (len(ORIGINALS) - 2))
            except InputError:
                kept.append(0.0)
    assert sorted(kept)[DAMAGES // 2] >= 0.75
