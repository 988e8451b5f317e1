"""The number of threads: requested by the caller, by the environment or by who compiled the
artifact, or else the available cores."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tilewright.base import flags
from tilewright.base.errors import ArtifactError, InputError
from tilewright.base.numbers import whole
from tilewright.base.text import plural

_CPU = Path("/sys/devices/system/cpu")
_CGROUP = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")

MAX_THREADS = 1024
THREAD_FLAGS: Final = (
    flags.NUM_THREADS,
    flags.OMP_NUM_THREADS,
)  # the first that is set
_KEY: Final = "threads"  # in `meta` of a saved model


def thread_count(
    requested: int | None = None, meta: Mapping[str, Any] | None = None
) -> int:
    """Threads to use, at least 1.

    The first of: `requested`; TILEWRIGHT_NUM_THREADS; OMP_NUM_THREADS; the least of the processors
    that the process may run on, its control group's quota, and the physical cores among them, and
    of what `keep_threads` left in the `meta` of an artifact's model.
    Raises InputError for a count below 1 or absurdly large, FlagError for a bad variable, and
    ArtifactError for a bad count in `meta`.
    """
    asked = requested
    for flag in THREAD_FLAGS:
        asked = flag.get() if asked is None else asked
    if asked is None:
        return min(available(), _kept(meta or {}))
    count = whole(asked, 1)
    if count is None or count > MAX_THREADS:
        raise InputError(
            f"{asked} threads requested",
            code="TW-THREADS",
            hint=f"Ask for 1 to {MAX_THREADS}",
        )
    return count


def keep_threads(meta: Mapping[str, Any], requested: int | None) -> Mapping[str, Any]:
    """`meta` of a model that is to run on `requested` threads where it is loaded, if not None."""
    return meta if requested is None else {**meta, _KEY: int(requested)}


def has_threads(meta: Mapping[str, Any]) -> bool:
    """Whether `keep_threads` left a number in it."""
    return _KEY in meta


def _kept(meta: Mapping[str, Any]) -> int:
    found = meta.get(_KEY, MAX_THREADS)
    count = whole(found, 1)
    if count is None or count > MAX_THREADS:
        raise ArtifactError(f"the artifact asks for {found!r} threads")
    return count


def available() -> int:
    """Threads that this process can use without getting in its own way."""
    usable = affinity()
    limits = [len(usable), _physical_cores(usable)]
    quota = cgroup_quota()
    if quota is not None:
        limits.append(max(1, int(quota)))
    return max(1, min(limits))


def affinity() -> frozenset[int]:
    """The processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def choose_cpus(count: int) -> list[int]:
    """`count` of the processors this process may use, different physical cores first.

    Raises InputError where there are not as many.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if count > len(allowed):
        raise InputError(
            f"{plural(count, 'thread')} requested, but only CPUs {allowed} may be used",
            code="TW-THREADS",
            hint=f"Ask for {len(allowed)} at most",
        )
    seen: set[str] = set()
    first: list[int] = []
    for cpu in allowed:
        siblings = Path(
            f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        )
        core = siblings.read_text(encoding="ascii") if siblings.exists() else str(cpu)
        if core not in seen:
            seen.add(core)
            first.append(cpu)
    return (first + [cpu for cpu in allowed if cpu not in first])[:count]


def cgroup_quota() -> float | None:
    """Processors' worth of time that the control group grants (version 1 or 2), or None."""
    quotas = [quota for folder in _groups() if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def _groups() -> Iterator[Path]:
    """The folders that may limit us: our group's and all above it, in either version."""
    try:
        lines = _MEMBERSHIP.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = _CGROUP / controllers
        # In a container the path may be the host's; then only the mount itself is visible.
        folder = root / path.strip("/")
        while folder != root and root in folder.parents:
            yield folder
            folder = folder.parent
        yield root


def _quota(folder: Path) -> float | None:
    try:
        quota, _, period = (folder / "cpu.max").read_text().strip().partition(" ")
    except OSError:
        try:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    try:
        granted, each = int(quota), int(period or 100_000)
    except ValueError:  # "max"
        return None
    return granted / each if granted > 0 and each > 0 else None


def _physical_cores(usable: frozenset[int]) -> int:
    cores = set()
    for number in usable:
        topology = _CPU / f"cpu{number}" / "topology"
        try:
            package = (topology / "physical_package_id").read_text()
            cores.add((package, (topology / "core_id").read_text()))
        except OSError:
            cores.add(("", str(number)))
    return len(cores)
