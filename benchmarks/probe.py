"""One-shot measurements, each in a fresh process: `python -m benchmarks.probe VERB …` prints JSON.

Only what a verb needs is imported, so that the memory and the times are the engine's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tilewright.cli.worker import private_output, read_feeds


def peak_megabytes() -> float:
    """Peak resident memory of this process (VmHWM: ru_maxrss would include the parent's)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status has no VmHWM line")


def load(engine: str, model: str, inputs: str, threads: str) -> dict[str, Any]:
    """Loads a model or artifact and runs it once: times in seconds, peak memory in megabytes."""
    from tilewright.cli.engines import ENGINES

    # Read the file once in advance, so that loading is timed and not the disk.
    start = time.perf_counter()
    with open(model, "rb") as file:
        while file.read(1 << 20):
            pass
    read = time.perf_counter() - start
    start = time.perf_counter()
    __import__(engine)
    imported = time.perf_counter() - start
    before = peak_megabytes()
    start = time.perf_counter()
    run = ENGINES[engine](Path(model), int(threads))
    loaded = time.perf_counter() - start
    feeds = read_feeds(Path(inputs))
    start = time.perf_counter()
    run(feeds)
    first = time.perf_counter() - start
    return {"read_seconds": read, "import_seconds": imported, "load_seconds": loaded,
            "first_call_seconds": first, "import_megabytes": before,
            "peak_megabytes": peak_megabytes(),
            "llvm_loaded": any(m.startswith("llvmlite") for m in sys.modules)}  # fmt: skip


def compile(model: str, threads: str, artifact: str) -> dict[str, Any]:
    """Compiles with Tilewright: seconds, processor seconds in total, and peak memory; saves the
    artifact unless its name is -."""
    import tilewright as tw

    before = processor_seconds()
    start = time.perf_counter()
    exe = tw.compile(Path(model), threads=int(threads))
    seconds = time.perf_counter() - start
    used = processor_seconds() - before
    peak = peak_megabytes()
    if artifact != "-":
        exe.save(Path(artifact))
    return {
        "compile_seconds": seconds,
        "processor_seconds": used,
        "peak_megabytes": peak,
    }


def processor_seconds() -> float:
    """Processor seconds of this process and its finished children so far."""
    return sum(os.times()[:4])


def stages(model: str, threads: str) -> dict[str, Any]:
    """Compiles with Tilewright: seconds of each stage. Those of kernels are of all processes."""
    import tilewright as tw
    from tilewright.base import events

    start = time.perf_counter()
    with events.record() as happened:
        tw.compile(Path(model), threads=int(threads))
    total = time.perf_counter() - start
    spans = [e for e in happened if e.elapsed is not None]
    lowered = next(e.start for e in spans if e.kind == "lower")

    def seconds(*kinds: str) -> float:
        return sum(e.elapsed or 0.0 for e in spans if e.kind in kinds)

    graph = [e for e in spans if e.kind == "pass" and e.start < lowered]
    read, lower, kernels, assembled = map(
        seconds, ("import", "lower", "kernels", "assemble")
    )
    rewritten = sum(e.elapsed or 0.0 for e in graph)
    planned = lower + seconds("pass") - rewritten
    return {
        "total": total,
        "read": read,
        "graph": rewritten,
        "plan": planned,
        "kernels": kernels,
        "assemble": assembled,
        "rest": total - read - rewritten - planned - kernels - assembled,
        "schedules": seconds("schedule"),
        "emission": seconds("emit"),
        "LLVM": seconds("llvm"),
    }


def tiers(model: str, inputs: str, threads: str) -> dict[str, Any]:
    """Compiles in tiers, with one call before the code is ready: seconds until there is something
    to call, the first result, and the code; of a call in each tier; of all processors together."""
    import tilewright as tw

    feeds = read_feeds(Path(inputs))
    before, start = processor_seconds(), time.perf_counter()
    exe: Any = tw.compile(Path(model), threads=int(threads), tiered=True)
    callable_at = time.perf_counter()
    exe.run(feeds)
    first = time.perf_counter()
    exe.wait()
    ready = time.perf_counter()
    used = processor_seconds() - before
    calls = []
    for _ in range(20):
        began = time.perf_counter()
        exe.run(feeds)
        calls.append(time.perf_counter() - began)
    return {
        "callable": callable_at - start,
        "first result": first - start,
        "ready": ready - start,
        "interpreted call": first - callable_at,
        "compiled call": sorted(calls)[len(calls) // 2],
        "processor": used,
    }


VERBS: dict[str, Callable[..., dict[str, Any]]] = {
    "load": load,
    "compile": compile,
    "stages": stages,
    "tiers": tiers,
}


class ProbeFailed(RuntimeError):
    """A probe's process failed; the text is its last line of error output."""


def fresh(
    verb: str, *arguments: object, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Runs a verb in its own process and returns its output. Raises ProbeFailed."""
    from benchmarks.harness import ROOT, child_environment

    command = [sys.executable, "-m", "benchmarks.probe", verb, *map(str, arguments)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=child_environment(env),
        cwd=ROOT,
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise ProbeFailed(lines[-1][:500])
    result: dict[str, Any] = json.loads(done.stdout)
    return result


if __name__ == "__main__":
    CHANNEL = private_output()
    print(json.dumps(VERBS[sys.argv[1]](*sys.argv[2:])), file=CHANNEL)
