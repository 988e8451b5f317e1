"""The short form of the soak: `make soak SECONDS=3600` is the long one."""

import pytest

from tests.robust import soak

# Minutes of a server, and every object of a process counted.
pytestmark = pytest.mark.slow


def test_a_server_s_life_in_little(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    lengths = (lambda turn, n=n: turn < n for n in (1, 1, 1))
    calls, wrong = soak.soak(tmp_path, lengths)
    assert not wrong
    assert calls >= soak.THREADS * 3 * 20


def test_it_notices_what_grows_and_what_is_wrong(tmp_path):
    before = soak.Level.now()
    file = (tmp_path / "f").open("w")
    more = [(tmp_path / f"f{n}").open("w") for n in range(2)]
    kept = bytearray(soak.SLACK_BYTES * 2)
    objects = [[] for _ in range(soak.SLACK_OBJECTS * 2)]
    found = soak.Level.now().grown(before)
    for name in ("memory", "files", "objects"):
        assert name in found
    for each in (file, *more):
        each.close()
    del kept, objects
    assert not soak.Level.now().grown(before)
    assert (
        soak._done(soak.Work("w", lambda: [1], [2])) == "another result than at first"
    )
    assert soak._done(soak.Work("w", lambda: [1], None)) == "it was not refused"
    assert "ZeroDivisionError" in soak._done(soak.Work("w", lambda: [1 / 0], [1]))
