"""Seconds that `import tilewright` takes in a fresh process (python -m benchmarks.import_time)."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from typing import Any

import click

from benchmarks.harness import ROOT, child_environment, compile_byte_code

BAR = 0.2

# Runs in a fresh interpreter: this file's own imports must not make the import cheaper.
PROBE = """
import sys
from time import perf_counter
known = set(sys.modules)
start = perf_counter()
__import__(sys.argv[1])
seconds = perf_counter() - start
new = set(sys.modules) - known
import json
packages = sorted({n.partition(".")[0] for n in new} - sys.stdlib_module_names)
print(json.dumps({"import_seconds": seconds, "modules": len(new), "packages": packages}))
"""


def measure(module: str) -> dict[str, Any]:
    """Seconds, number of modules and the packages of one import in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, module],
        capture_output=True, text=True, env=child_environment(), cwd=ROOT, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise click.ClickException(done.stderr.strip().splitlines()[-1])
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@click.command(epilog="Example: python -m benchmarks.import_time --check")
@click.option("--module", default="tilewright", show_default=True)
@click.option("--repeats", default=7, show_default=True, type=click.IntRange(min=1))
@click.option("--check", is_flag=True, help=f"Exit with 1 if it takes {BAR} s or more.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(module: str, repeats: int, check: bool, as_json: bool) -> None:
    """Median import time over fresh processes, after one that warms the file cache."""
    compile_byte_code()
    runs = [measure(module) for _ in range(repeats + 1)][1:]
    seconds = statistics.median(run["import_seconds"] for run in runs)
    facts = {
        **runs[-1],
        "module": module,
        "import_seconds": seconds,
        "repeats": repeats,
    }
    if as_json:
        click.echo(json.dumps(facts))
    else:
        packages = ", ".join(facts["packages"])
        click.echo(
            f"import {module}: {seconds:.3f} s, {facts['modules']} modules ({packages})"
        )
    sys.exit(1 if check and seconds >= BAR else 0)


if __name__ == "__main__":
    main()
