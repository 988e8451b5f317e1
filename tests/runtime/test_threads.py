"""How many threads: the caller, the environment, then what the machine really gives."""

import os

import pytest

from tilewright.base.errors import ArtifactError, FlagError, InputError
from tilewright.runtime import machine, threads


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in ("TILEWRIGHT_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


def test_who_is_asked_first(monkeypatch):
    assert threads.thread_count() == threads.available() >= 1
    monkeypatch.setenv("OMP_NUM_THREADS", "5,2")
    assert threads.thread_count() == 5
    monkeypatch.setenv("TILEWRIGHT_NUM_THREADS", "7")
    assert threads.thread_count() == 7
    assert threads.thread_count(3) == 3


def test_an_artifact_is_asked_last_and_bounded_by_the_machine(monkeypatch):
    monkeypatch.setattr(threads, "available", lambda: 4)
    meta = threads.keep_threads({"name": "m"}, 2)
    assert dict(meta) == {"name": "m", "threads": 2}
    assert threads.thread_count(None, meta) == 2
    assert threads.thread_count(None, {"threads": 64}) == 4
    assert threads.thread_count(64, meta) == 64
    assert threads.keep_threads({}, None) == {}
    assert threads.thread_count(None, {}) == 4
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads.thread_count(None, meta) == 3


@pytest.mark.parametrize("count", [0, -1, 100_000, "2", 1.5, True, None])
def test_an_absurd_count_in_an_artifact_is_refused(count):
    with pytest.raises(ArtifactError, match=f"asks for {count!r} threads"):
        threads.thread_count(None, {"threads": count})


@pytest.mark.parametrize("count", [0, -1, 100_000])
def test_absurd_counts_are_refused(count):
    with pytest.raises(
        InputError, match=f"{count} threads requested. Ask for 1 to 1024"
    ):
        threads.thread_count(count)


def test_a_bad_variable_is_refused_by_name(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "all")
    with pytest.raises(FlagError, match="OMP_NUM_THREADS"):
        threads.thread_count()


def test_affinity_is_obeyed():
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert threads.available() == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """A false /proc/self/cgroup and /sys/fs/cgroup: the text of the one, files of the other."""

    def make(membership, files):
        (tmp_path / "self").write_text(membership)
        for name, text in files.items():
            path = tmp_path / "fs" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        monkeypatch.setattr(threads, "_MEMBERSHIP", tmp_path / "self")
        monkeypatch.setattr(threads, "_CGROUP", tmp_path / "fs")

    return make


V1 = {"cpu/a/cpu.cfs_quota_us": "150000\n", "cpu/a/cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        ("0::/\n", {}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "400000 100000\n"}, 4.0),
        (
            "0::/a/b\n",
            {"a/b/cpu.max": "400000 100000\n", "a/cpu.max": "50000 100000\n"},
            0.5,
        ),
        ("0::/host/path\n", {"cpu.max": "250000 100000\n"}, 2.5),
        ("0::/../../escape\n", {"cpu.max": "250000 100000\n"}, 2.5),
        ("3:cpuset:/\n1:cpu:/a\n", V1, 1.5),
        (
            "1:cpu:/\n",
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "1\n"},
            None,
        ),
        ("0::/\n", {"cpu.max": "garbage\n"}, None),
        ("nonsense", {}, None),
    ],
)
def test_cgroup_quotas(groups, membership, files, quota):
    groups(membership, files)
    assert threads.cgroup_quota() == quota
    if quota is not None:
        assert threads.available() <= max(1, int(quota))


def test_the_kernels_names_of_this_processors_features():
    """Every feature that LLVM sees here is one that the runtime finds without LLVM."""
    import llvmlite.binding as llvm

    features = [f for f, on in llvm.get_host_cpu_features().items() if on]
    assert machine.missing_features(features) == ()
    assert machine.missing_features(["sse2", "nonsense"]) == ("nonsense",)


def test_without_cpuinfo_nothing_is_there(monkeypatch, tmp_path):
    machine.cpu_flags.cache_clear()
    monkeypatch.setattr(machine, "_CPUINFO", tmp_path / "none")
    try:
        assert machine.missing_features(["sse2"]) == ("sse2",)
    finally:
        machine.cpu_flags.cache_clear()
