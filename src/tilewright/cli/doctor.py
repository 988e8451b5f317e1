"""`tilewright doctor`: the machine, causes of slowness, versions, settings, problems."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import tomllib
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from tilewright import __version__
from tilewright.base import flags
from tilewright.base.errors import FlagError, TilewrightError
from tilewright.base.store import default_store
from tilewright.base.text import human_bytes, plural, reason
from tilewright.cli.advice import advice, cores
from tilewright.cli.options import json_option
from tilewright.cli.output import dump, facts, say, table
from tilewright.runtime.devices import present
from tilewright.runtime.machine import processor_name

_SYSTEM: Final = Path("/sys/devices/system/cpu")
_PROJECT: Final = Path(__file__).parents[3] / "pyproject.toml"  # of a source tree
_HUGE_PAGES: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
# Features worth a line; the whole list is in the JSON.
_NOTABLE: Final = (
    "sse4.2 avx avx2 fma f16c avx512f avx512bw avx512vl avx512vnni avx512bf16 avx512fp16 "
    "amx-tile amx-int8 amx-bf16 neon fullfp16 dotprod sve"
).split()


@click.command()
@json_option
def command(as_json: bool) -> int:
    """Print the machine, performance problems, versions and settings; exit with 1 if there is a
    problem.

    \b
    Example:
      tilewright doctor
      tilewright doctor --json > report.json
    """
    problems: list[str] = []
    report: dict[str, Any] = {
        "tilewright": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor(problems),
        "threads": _threads(problems),
        "memory_bytes": _memory(),
        "devices": present(),
        "packages": _packages(problems),
        "flags": _flags(problems),
        "cache": _cache(problems),
    }
    report["huge_pages"] = _huge_pages()
    report["advice"] = advice(report)
    report["problems"] = problems
    if as_json:
        dump(report)
    else:
        _show(report)
    return 1 if problems else 0


def _processor(problems: list[str]) -> dict[str, Any]:
    from tilewright.targets import registry

    facts: dict[str, Any] = {
        "name": processor_name(),
        "arch": platform.machine(),
        "features": [],
    }
    try:
        facts |= registry.target("cpu").requirements
    except (TilewrightError, ImportError, OSError) as error:
        problems.append(f"cannot generate code for this machine: {reason(error)}")
    facts["features"] = list(facts["features"])
    facts["caches"] = caches()
    facts["targets"] = list(registry.names())
    facts["load"] = os.getloadavg()[0]
    return facts


def caches() -> dict[str, int]:
    """Bytes of each cache of the first processor: L1d, L1i, L2, L3."""
    sizes: dict[str, int] = {}
    for folder in sorted((_SYSTEM / "cpu0" / "cache").glob("index*")):
        kind = {"Data": "d", "Instruction": "i"}.get(_text(folder / "type"), "")
        size = _text(folder / "size").removesuffix("K")
        if size.isdigit():
            sizes[f"L{_text(folder / 'level')}{kind}"] = int(size) << 10
    return sizes


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _threads(problems: list[str]) -> dict[str, Any]:
    from tilewright.runtime import threads

    used: int | None = None
    try:
        used = threads.thread_count()
    except TilewrightError as error:
        problems.append(str(error))
    return {
        "used": used,
        "available": threads.available(),
        "processors": sorted(threads.affinity()),
        "cgroup_quota": threads.cgroup_quota(),
        "cores": cores(_SYSTEM, sorted(threads.affinity())),
        "governor": _text(_SYSTEM / "cpu0" / "cpufreq" / "scaling_governor") or None,
    }


def _huge_pages() -> str | None:
    """The policy for huge pages: always, madvise or never; None if unknown."""
    said = re.search(r"\[(\w+)\]", _text(_HUGE_PAGES))
    return said[1] if said else None


def _memory() -> int | None:
    names = os.sysconf_names
    if "SC_PHYS_PAGES" not in names or "SC_PAGE_SIZE" not in names:
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _packages(problems: list[str]) -> list[dict[str, Any]]:
    """Each requirement, with its version and its extras."""
    found: dict[str, dict[str, Any]] = {}
    for requirement in _requirements():
        name = re.match(r"[A-Za-z0-9_.-]+", requirement)
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", requirement)
        if name is None:
            continue
        row = found.setdefault(
            name[0], {"name": name[0], "version": None, "extras": []}
        )
        if extra:
            row["extras"].append(extra[1])
    for row in found.values():
        try:
            row["version"] = importlib.metadata.version(row["name"])
        except importlib.metadata.PackageNotFoundError:
            if not row["extras"]:
                problems.append(f"{row['name']} is missing: pip install {row['name']}")
    return list(found.values())


def _requirements() -> list[str]:
    """The requirements of the installed distribution, or of the sources that run without one."""
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.requires("tilewright") or []
    if not _PROJECT.is_file():
        return []
    project = tomllib.loads(_PROJECT.read_text())["project"]
    always: list[str] = project["dependencies"]
    extras = project["optional-dependencies"].items()
    return always + [
        f"{text}{' and' if ';' in text else ';'} extra == '{extra}'"
        for extra, texts in extras
        for text in texts
    ]


def _flags(problems: list[str]) -> list[dict[str, Any]]:
    rows = []
    for flag in flags.TABLE:
        value: object = None
        origin = "environment" if flag.is_set else "default"
        try:
            value = flag.get()
        except FlagError as error:
            origin = "bad value"
            if str(error) not in problems:
                problems.append(str(error))
        rows.append(
            {"name": flag.name, "value": value, "origin": origin, "doc": flag.doc}
        )
    problems.extend(flags.strangers())
    return rows


def _cache(problems: list[str]) -> dict[str, Any] | None:
    try:
        store = default_store()
    except FlagError:
        return None
    if store is None:
        return None
    stats = store.stats()
    if not stats.writable:
        problems.append(
            f"{stats.root} is not writable: set {flags.CACHE_DIR.name} to a writable folder"
        )
    return asdict(stats)


def _show(report: dict[str, Any]) -> None:
    processor, threads, cache = report["processor"], report["threads"], report["cache"]
    notable = [f for f in _NOTABLE if f in processor["features"]]
    caches = ", ".join(
        f"{level} {human_bytes(n)}" for level, n in processor["caches"].items()
    )
    quota = threads["cgroup_quota"]
    processors = ",".join(map(str, threads["processors"]))
    limits = f"processors {processors}; control-group quota {quota or 'none'}"
    memory = report["memory_bytes"]
    if cache is None:
        kept = "off"
    else:
        size, cap = human_bytes(cache["size"]), human_bytes(cache["max_bytes"])
        entries = plural(cache["entries"], "entry", "entries")
        kept = f"{cache['root']}: {entries}, {size} of at most {cap}"
    say(
        facts(
            [
                ("tilewright", report["tilewright"]),
                ("python", f"{report['python']} on {report['system']}"),
                ("processor", f"{processor['name']} ({processor['arch']})"),
                ("features", " ".join(notable) or "none known"),
                ("caches", caches or "unknown"),
                ("memory", "unknown" if memory is None else human_bytes(memory)),
                ("threads", f"{threads['used']} used by default ({limits})"),
                ("load", f"{processor['load']:.2f}"),
                ("targets", ", ".join(processor["targets"])),
                *(
                    (name, found if isinstance(found, str) else "; ".join(found))
                    for name, found in report["devices"].items()
                ),
                ("kernel cache", kept),
            ]
        )
    )
    for text in report["advice"]:
        say(f"\nslow: {text}")
    packages = [
        [p["name"], p["version"] or "not installed", ", ".join(p["extras"]) or "always"]
        for p in report["packages"]
    ]
    if packages:
        say("\n" + table(["package", "version", "for"], packages))
    else:
        say("\npackages: unknown, because tilewright is not installed")
    settings = [
        [row["name"], flags.Flag.shown(row["value"]), row["origin"], row["doc"]]
        for row in report["flags"]
    ]
    say("\n" + table(["setting", "value", "from", "what it changes"], settings))
    for problem in report["problems"]:
        say(f"\nproblem: {problem}")
