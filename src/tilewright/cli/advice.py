"""Rules that find what slows down this machine, in the report of `tilewright doctor`.

A rule is a function of the report; it returns what is slow and what to do, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tilewright.base.text import plural

Report = Mapping[str, Any]

# The share of the processors that other programs may use before timings become unreliable.
_BUSY: Final = 0.5
_SMALL: Final = 4 << 30  # bytes of memory


def advice(report: Report) -> list[str]:
    """Advice on a machine: what is slow, and what to do."""
    found = (rule(report) for rule in RULES)
    return [text for text in found if text is not None]


def one_thread(report: Report) -> str | None:
    """Fewer threads than processors."""
    used, have = report["threads"]["used"], len(report["threads"]["processors"])
    if used is None or used >= have:
        return None
    return (
        f"models run on {used} of {have} processors: set TILEWRIGHT_NUM_THREADS, or raise "
        "the control group's quota"
    )


def busy(report: Report) -> str | None:
    """Other programs run."""
    load, have = report["processor"]["load"], len(report["threads"]["processors"])
    if load < _BUSY * have:
        return None
    on = plural(have, "processor")
    return f"the load is {load:.1f} on {on}: times will be too long, and vary"


def shared_cores(report: Report) -> str | None:
    """Two processors that are one core."""
    cores = report["threads"]["cores"]
    have = len(report["threads"]["processors"])
    if cores is None or cores >= have:
        return None
    return (
        f"{plural(have, 'processor')} are {plural(cores, 'core')}: products are often faster with "
        f"TILEWRIGHT_NUM_THREADS={cores}"
    )


def narrow_vectors(report: Report) -> str | None:
    """An x86 processor without vectors of 32 or 64 bytes."""
    processor = report["processor"]
    if processor["arch"] not in ("x86_64", "AMD64") or not processor["features"]:
        return None
    for feature, name, part in (("avx2", "AVX2", "a half"), ("avx512f", "AVX-512", "")):
        if feature not in processor["features"]:
            rate = f", {part} of AVX2's rate" if part else ""
            return f"the processor has no {name}: kernels use shorter vectors{rate}"
    return None


def slow_half(report: Report) -> str | None:
    """No arithmetic for 16-bit floats."""
    processor = report["processor"]
    native = {"avx512bf16", "amx-bf16", "avx512fp16", "fullfp16", "bf16"}
    if not processor["features"] or native.intersection(processor["features"]):
        return None
    return (
        "the processor computes 16-bit floats in float32: they save memory, but no time"
    )


def governor(report: Report) -> str | None:
    """A processor that is kept slow."""
    found = report["threads"]["governor"]
    if found not in ("powersave", "conservative"):
        return None
    return f"the frequency governor is {found}: choose performance (cpupower frequency-set)"


def small_pages(report: Report) -> str | None:
    """Huge pages are disabled even on request."""
    if report["huge_pages"] != "never":
        return None
    return (
        "transparent huge pages are off: models that read each weight once take up to half as long "
        "again (write madvise to /sys/kernel/mm/transparent_hugepage/enabled)"
    )


def little_memory(report: Report) -> str | None:
    """Memory only for small models."""
    have = report["memory_bytes"]
    if have is None or have >= _SMALL:
        return None
    return "there are less than 4 GiB of memory: compiling large models may need more"


def no_cache(report: Report) -> str | None:
    """The cache is off."""
    if report["cache"] is not None:
        return None
    return "the cache is off: every start recompiles"


RULES: Final[tuple[Callable[[Report], str | None], ...]] = (
    one_thread,
    busy,
    shared_cores,
    narrow_vectors,
    slow_half,
    governor,
    small_pages,
    little_memory,
    no_cache,
)


def cores(system: Path, processors: list[int]) -> int | None:
    """The number of cores that the processors belong to; None if unknown."""
    names = set()
    for n in processors:
        path = system / f"cpu{n}" / "topology" / "thread_siblings_list"
        try:
            names.add(path.read_text().strip())
        except OSError:
            return None
    return len(names)
