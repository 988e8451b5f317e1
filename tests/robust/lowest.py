"""The least versions of the dependencies that pyproject.toml declares work, in small.

`python tests/robust/lowest.py` prints them as pip takes them; `make lowest` installs them and runs
`python -m tests.robust.lowest smoke`: three networks agree with float64, every verb has its help, a
tuning record is written and used, an artifact gives what the model gave.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
NETWORKS = ("lenet", "mobilenet_v2", "bert")
_BOUNDED = re.compile(r"([\w.-]+)>=([\w.]+),<[\w.]+")


def least(dependencies: list[str]) -> dict[str, str]:
    """The least version of each package. Raises ValueError for one without two bounds."""
    found = {}
    for text in dependencies:
        match = _BOUNDED.fullmatch(text)
        if match is None:
            raise ValueError(f"{text}: expected NAME>=VERSION,<VERSION")
        found[match[1]] = match[2]
    return found


def declared() -> dict[str, str]:
    """The least versions of what every installation has."""
    return least(tomllib.loads(PROJECT.read_text())["project"]["dependencies"])


def tilewright(*arguments: object, code: int = 0) -> str:
    """What the command prints. Raises SystemExit with its output for another exit code."""
    words = [sys.executable, "-W", "error", "-m", "tilewright", *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != code:
        raise SystemExit(f"{words[4:]}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def expect(good: object, what: str) -> None:
    """Raise SystemExit unless it is good."""
    if not good:
        raise SystemExit(f"not as expected: {what}")
    print(f"ok: {what}", flush=True)


def check_versions() -> None:
    """The packages in use are the least ones: a newer one would prove nothing."""
    from importlib.metadata import version

    for name, wanted in declared().items():
        found = version(name)
        expect(f"{found}.".startswith(f"{wanted}."), f"{name} {found} for {wanted}")


def check_networks(folder: Path) -> None:
    """Networks agree with float64, and so does what an artifact gives."""
    import numpy as np

    import tilewright as tw
    from tilewright.frontends.onnx.save import save_onnx
    from tilewright.testing.networks import NETWORKS as MADE

    for name in NETWORKS:
        case = MADE[name]()
        path = folder / f"{name}.onnx"
        save_onnx(case.graph, path)
        tilewright("verify", path)
        expect(True, f"{name} agrees with float64")
        exe = tw.compile(path, threads=1)
        arrays = [case.inputs[t.name] for t in exe.inputs]
        exe.save(path.with_suffix(".tw"))
        loaded = tw.load(path.with_suffix(".tw"), threads=1)
        results = (exe(*arrays), loaded(*arrays))
        alike = all(
            np.array_equal(a, b)
            for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in results))
        )
        expect(alike, f"{name} as an artifact")


def check_records(folder: Path) -> None:
    """A tuning run records its trials, which are listed, and later compilations find them."""
    model, records = folder / f"{NETWORKS[0]}.onnx", folder / "records.sqlite"
    tilewright("tune", model, "--trials", 3, "--threads", 1, "--records", records)
    listed = json.loads(tilewright("records", "list", "--records", records, "--json"))
    expect(sum(task["trials"] for task in listed) >= 3, "tuning records")
    tilewright("run", model, "--threads", 1, "--records", records)
    expect(True, "a run with records")


def check_help() -> None:
    """Every verb has its help, and a misspelled one is told the nearest."""
    from tilewright.cli.app import VERBS

    for verb in VERBS:
        expect("Usage:" in tilewright(verb, "--help"), f"help of {verb}")
    expect("Did you mean" in tilewright("compil", code=2), "a misspelled verb")
    wrong = tilewright("run", "m.onnx", "--thread", 1, code=2)
    expect("--threads" in wrong, "a misspelled option")


def smoke() -> None:
    """All checks. Raises SystemExit at the first that fails."""
    check_versions()
    check_help()
    with tempfile.TemporaryDirectory() as folder:
        check_networks(Path(folder))
        check_records(Path(folder))


if __name__ == "__main__":
    if sys.argv[1:] == ["smoke"]:
        smoke()
    else:
        print("\n".join(f"{name}=={version}" for name, version in declared().items()))
