"""Shared parts of the benchmarks: rows that survive an interruption, options, the machine."""

from __future__ import annotations

import compileall
import fnmatch
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks import models
from tilewright.cli.rounds import RoundTable
from tilewright.runtime.machine import processor_name
from tilewright.runtime.threads import choose_cpus

ROOT = Path(__file__).resolve().parent.parent


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This environment with the repository and its `src` importable, and `extra`."""
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    joined = os.pathsep.join(p for p in paths if p)
    return {**os.environ, "PYTHONPATH": joined, **(extra or {})}


def compile_byte_code() -> None:
    """Byte code of the sources, as an installed package has: an import then compiles nothing."""
    compileall.compile_dir(ROOT / "src", quiet=2)


class Rows:
    """Finished rows in a file of JSON lines: an interrupted run resumes where it stopped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, RoundTable] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    row = RoundTable(**json.loads(line))
                except (json.JSONDecodeError, TypeError):
                    continue  # the line being written when the run was broken off
                self.rows[row.key] = row

    def get(self, key: str) -> RoundTable | None:
        """The finished row of this key; one with a failed engine is measured again."""
        row = self.rows.get(key)
        return row if row is not None and not row.failed else None

    def add(self, row: RoundTable) -> None:
        """Appends a row."""
        self.rows[row.key] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")


def source_hash() -> str:
    """A digest of the package's sources: rows of other sources are outdated."""
    import hashlib

    digest = hashlib.sha256()
    for path in sorted((ROOT / "src" / "tilewright").rglob("*.py")):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def provenance(version: str) -> dict[str, str]:
    """The origin of a row: commit (`+` with changes), sources, processor, day, packages."""
    found = versions()
    packages = [
        f"{name} {found[name]}" for name in ("onnxruntime", "openvino", "torch")
    ]
    return {
        "commit": _commit(),
        "sources": version,
        "processor": processor_name(),
        "cpus": str(len(os.sched_getaffinity(0))),
        "day": time.strftime("%Y-%m-%d", time.gmtime()),
        "packages": ", ".join(packages),
    }


def _commit() -> str:
    """The short name of the commit that the sources are of; "unknown" outside a clone."""
    git = ["git", "-C", str(ROOT)]
    try:
        name = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
        )
        changed = subprocess.run(
            [*git, "status", "--porcelain", "src"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name.stdout.strip() + ("+" if changed.stdout.strip() else "")


def served(
    module: str, arguments: Sequence[str], threads: int, extra: Mapping[str, str]
) -> dict[str, Any]:
    """What `python -m module arguments --serve` prints in its own process, on as many
    processors as threads and with an empty cache; `error` is what went wrong there.

    extra: variables of its environment.
    """
    command = [sys.executable, "-m", module, *arguments, "--serve"]
    cpus = ",".join(map(str, choose_cpus(threads)))
    with tempfile.TemporaryDirectory() as cache:
        found = subprocess.run(
            ["taskset", "-c", cpus, *command],
            env=child_environment({**extra, "TILEWRIGHT_CACHE_DIR": cache}),
            capture_output=True,
            text=True,
        )
    if found.returncode:
        lines = found.stderr.strip().splitlines() or [f"status {found.returncode}"]
        return {"error": lines[-1]}
    result: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return result


def beside(other: str, names: Iterable[str], run: Callable[[str], Any]) -> None:
    """Prints a table of programs that two packages run: milliseconds, ratio, compile time.

    other: the other package. run: returns for a program `ms` and `compile` as pairs (ours first),
    the `ratio` of its times, and the `difference` of results, which must be below its `tolerance`;
    or `error`.
    """
    print(f"{'':26} {'ms':>9} {other:>9} {'ratio':>6} {'compile':>7} {other:>7} s")
    ratios = []
    for name in names:
        result = run(name)
        if "error" in result:
            print(f"{name:26} {result['error']}", flush=True)
            continue
        mine, theirs = result["ms"]
        first, second = result["compile"]
        line = f"{name:26} {mine:9.3f} {theirs:9.3f} {result['ratio']:6.2f}"
        line += f" {first:7.2f} {second:7.2f}"
        if result["difference"] <= result["tolerance"]:
            ratios.append(result["ratio"])
        else:
            line += f"  WRONG: differs by {result['difference']:.1e}"
        print(line, flush=True)
    if ratios:
        mean = statistics.geometric_mean(ratios)
        print(f"geometric mean of {len(ratios)}: {mean:.2f}, least {min(ratios):.2f}")


PACKAGES = ("onnxruntime", "openvino", "torch", "onnx", "numpy", "llvmlite", "jax", "apache-tvm",
            "iree-base-compiler")  # fmt: skip


def versions() -> dict[str, str | None]:
    """The installed version of each package that the figures depend on."""
    found: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """The machine of the measurements."""
    facts: dict[str, Any] = {"system": platform.platform(), "python": platform.python_version(),
                             "processor": processor_name()}  # fmt: skip
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("flags"):
            wide = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")
            facts["features"] = [f for f in wide if f in line.split()]
    facts["cpus"] = sorted(os.sched_getaffinity(0))
    facts["load"] = os.getloadavg()[0]
    return facts | versions()


def inputs_of(model: Path) -> Path:
    """The file of a model's inputs (`in.<name>`), and of its outputs (`out.<number>`) if known."""
    return model.with_name(f"{model.stem}.inputs.npz")


def prepare(name: str, directory: Path) -> tuple[Path, Path]:
    """The model file and the file of its inputs, created if missing."""
    path = models.build(name, directory)
    inputs = inputs_of(path)
    np.savez(inputs, **{f"in.{k}": v for k, v in models.inputs(name).items()})  # type: ignore[arg-type]
    return path, inputs


def chosen(patterns: str, known: Sequence[str]) -> list[str]:
    """The known names that comma-separated patterns match; BadParameter if a pattern matches
    none."""
    result: list[str] = []
    for pattern in patterns.split(","):
        found = fnmatch.filter(known, pattern)
        if not found:
            raise click.BadParameter(f"no {pattern}; there are {', '.join(known)}")
        result += [name for name in found if name not in result]
    return result


def names_option(flag: str, known: Sequence[str], **more: Any) -> Callable[..., Any]:
    """An option that takes names or patterns of `known`; its value is a list, or None if
    omitted."""

    def parse(
        _context: object, _parameter: object, value: str | None
    ) -> list[str] | None:
        return None if value is None else chosen(value, known)

    text = "Names or patterns, commas between them ('*': all)."
    return click.option(flag, callback=parse, help=text, **more)


networks_option = names_option("--networks", tuple(models.RECIPES), default="*")

directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=models.default_directory,
    help="Directory of the model files.",
)


def rounds_option(default: int) -> Callable[..., Any]:
    """`--rounds`: how many times what is compared takes its turn."""
    number = click.IntRange(min=1)
    text = "Interleaved rounds."
    return click.option(
        "--rounds", default=default, show_default=True, type=number, help=text
    )


def threads_option(default: int = 1) -> Callable[..., Any]:
    """`--threads`: a number of threads."""
    return click.option(
        "--threads", default=default, show_default=True, type=click.IntRange(min=1)
    )


def _counts(_context: object, _parameter: object, value: str) -> list[int]:
    try:
        numbers = [int(v) for v in value.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: expected numbers like 1,2") from error
    if min(numbers) < 1:
        raise click.BadParameter(f"{value!r}: a thread count is at least 1")
    return numbers


def thread_counts_option(default: str = "1,2") -> Callable[..., Any]:
    """`--threads`: several numbers of threads; its value is a list."""
    text = "Numbers of threads, commas between them."
    return click.option(
        "--threads", default=default, callback=_counts, show_default=True, help=text
    )
