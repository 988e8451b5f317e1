"""Kills and full disks at every place where something is written: nothing half-written is read."""

import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.kills import at_many_kills
from tests.runtime import native
from tests.waiting import PATIENCE
from tilewright.base import files
from tilewright.base.files import write_whole
from tilewright.base.store import FileStore
from tilewright.dataflow.results import ExploredPoint
from tilewright.dataflow.results import ResultStore as Results
from tilewright.runtime import bundle

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # of a fork among threads

X = np.linspace(-1, 1, 100).astype(np.float32)


def left(folder):
    """Unfinished files, which nothing reads and which cleaning finds by their name."""
    return [p for p in folder.rglob("*") if p.name.startswith(files.UNFINISHED)]


# Every so many instructions; each of them, or nearly so, in the slow tests.
FINE = pytest.mark.parametrize("coarse", [17, pytest.param(1, marks=pytest.mark.slow)])


@FINE
def test_a_file_is_the_old_one_or_the_new_one(tmp_path, coarse):
    path = tmp_path / "f"
    seen = set()

    def action():
        write_whole(
            path, lambda file: [file.write(b"new") for _ in range(3)], durable=True
        )

    path.write_bytes(b"old")
    for _ in at_many_kills((write_whole,), action, coarse):
        seen.add(path.read_bytes())
        path.write_bytes(b"old")
        rest = [p for p in tmp_path.iterdir() if p != path]
        assert rest == left(tmp_path)
    assert seen == {b"old", b"newnewnew"}


@FINE
def test_an_entry_of_the_cache_is_whole_or_absent(tmp_path, coarse):
    root, seen = tmp_path / "store", set()
    data = os.urandom(30_000)

    def action():
        FileStore(root, 40_000).put("key", data)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in at_many_kills(
            (write_whole, FileStore.put, FileStore._keep, FileStore._account),
            action,
            5 * coarse,
        ):
            disk = FileStore(root, 40_000)
            seen.add(disk.get("key"))
            assert disk.stats().corrupted == 0
            disk.clear()
    assert seen == {None, data}


@FINE
def test_evicting_is_given_up_at_any_moment(tmp_path, coarse):
    def action():
        disk = FileStore(tmp_path, 20_000)
        for n in range(12):
            disk.put(f"key{n}", bytes([n]) * 3000)

    for _ in at_many_kills((FileStore._evict, FileStore._scan), action, 97 * coarse):
        disk = FileStore(tmp_path, 20_000)
        for entry in disk.entries():
            assert disk.get(entry.key) == bytes([int(entry.key[3:])]) * 3000
        disk.put("key99", bytes([99]) * 3000)
        assert disk.get("key99") == bytes([99]) * 3000


@FINE
def test_an_artifact_is_the_old_one_or_the_new_one(tmp_path, coarse):
    path = tmp_path / "m.tw"
    bundle.save(native.model(50), path)
    old, shapes = path.read_bytes(), set()

    def action():
        bundle.save(native.model(), path)

    for _ in at_many_kills(
        (write_whole, bundle.write_to, bundle._add), action, 13 * coarse
    ):
        shapes.add(bundle.load(path, verify=True).inputs[0].shape)
        path.write_bytes(old)
    assert shapes == {(50,), (100,)}


def point(n):
    return ExploredPoint(
        (f"c{n}",), 16, "work", ("work",), n, 1, 1, 1, 1.0, 1.0, 1.0, 1.0
    )


@FINE
def test_results_that_were_found_are_found_again(tmp_path, coarse):
    path = tmp_path / "r.jsonl"

    def action():
        store = Results(path)
        store.open({"s": 1})
        for n in range(4):
            if (point(n).choice, 16) not in store.known:
                store.add(point(n))

    most = 0
    for _ in at_many_kills(
        (Results.add, Results.open, write_whole), action, 3 * coarse
    ):
        store = Results(path)
        store.open({"s": 1})
        assert list(store.known.values()) == [point(n) for n in range(len(store.known))]
        assert len(store.known) >= most
        most = len(store.known)
    assert most == 4


def test_results_cut_off_anywhere_go_on(tmp_path):
    path = tmp_path / "r.jsonl"
    store = Results(path)
    store.open({"s": 1})
    for n in range(3):
        store.add(point(n))
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        again = Results(path)
        again.open({"s": 1})
        known = len(again.known)
        assert list(again.known.values()) == [point(n) for n in range(known)]
        again.add(point(9))
        last = Results(path)
        last.open({"s": 1})
        assert len(last.known) == known + 1


def limited_to(body, *arguments):
    """Python that runs `body`, where `limit(n)` ends every file at n bytes."""
    head = """
    import os, resource, sys, warnings
    from pathlib import Path
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    def limit(n):
        resource.setrlimit(resource.RLIMIT_FSIZE, (n, hard))
    """
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            textwrap.dedent(head) + textwrap.dedent(body),
            *arguments,
        ],
        env={**os.environ, "PYTHONPATH": f"{root}:{root}/src"},
        capture_output=True,
        timeout=PATIENCE,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_an_artifact_on_a_disk_that_is_full_at_any_byte(tmp_path):
    """One error that says so, the old file as it was, and nothing beside it."""
    limited_to(
        """
        import dataclasses, numpy as np
        from tests.runtime import native
        from tilewright.base.errors import ArtifactError
        from tilewright.runtime import bundle
        path = Path(sys.argv[1]) / "m.tw"
        large = dataclasses.replace(native.model(), constants=np.ones(100_000, np.uint8))
        for model in (native.model(), large):
            limit(hard)
            bundle.save(model, path)
            old = path.read_bytes()
            for n in (0, 1, 30, 4096, 9000, 70_000, 104_000, *range(len(old) - 900, len(old), 50)):
                if not n < len(old):
                    continue
                limit(max(n, 0))
                try:
                    bundle.save(model, path)
                except ArtifactError as error:
                    assert "cannot be written: File too large" in str(error), error
                else:
                    raise AssertionError(n)
                assert path.read_bytes() == old and len(list(path.parent.iterdir())) == 1
        """,
        str(tmp_path),
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("full", ["at once", "after the kernels"])
def test_compiling_on_a_disk_that_is_full_is_one_warning(tmp_path, full):
    """Where the kernels fit and the whole model does not, that is not a failure of compiling."""
    said = limited_to(
        """
        import numpy as np
        from tests.robust.test_processes import X, convolutions
        import tilewright as tw
        folder = Path(sys.argv[1])
        source = convolutions(2).SerializeToString()
        os.environ["TILEWRIGHT_CACHE_DIR"] = str(folder / "large")
        expected = tw.compile(source)(X)
        sizes = {p: p.stat().st_size for p in (folder / "large").rglob("*-*") if p.is_file()}
        model = max(size for p, size in sizes.items() if p.name.startswith("model-"))
        kernel = max(p.stat().st_size for p in (folder / "large").rglob("*")
                     if p.is_file() and p not in sizes)
        assert kernel < model - 1
        os.environ["TILEWRIGHT_CACHE_DIR"] = str(folder / "small")
        limit(model - 1 if sys.argv[2] == "after the kernels" else 0)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for _ in range(2):
                assert (tw.compile(source)(X) == expected).all()
        print(len([w for w in seen if "writing failed" in str(w.message)]))
        """,
        str(tmp_path),
        full,
    )
    assert said.split() == ["1"]
    assert not left(tmp_path)
