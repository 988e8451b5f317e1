"""Damaged ONNX files: each compiles and runs, or is rejected with a TilewrightError, in bounded
memory and time.

`run(seed)` makes one mutant of a valid model and compiles it as users do, then calls it once. Any
end but success or a TilewrightError is a failure. A mutant may request any amount of memory or
time, so mutants run in a separate process with limits on both, which is reused until one of them
ends it.

    python -m tilewright.testing.mutate_models 0 1000
"""

from __future__ import annotations

import os
import pickle
import resource
import struct
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np

from tilewright.base.errors import TilewrightError
from tilewright.testing.mutants import MutantFailure
from tilewright.testing.mutate_protos import mutated

MEMORY: Final = 4 << 30  # bytes of address space of the process
MODEL_MEMORY: Final = 64 << 20  # bytes that a mutant may need
SECONDS: Final = 60  # of processor time that a mutant may take
_FOLDED: Final = {
    "TILEWRIGHT_FOLD_LIMIT": "64M",
    "TILEWRIGHT_FOLD_WORK": "50000000",
    "TILEWRIGHT_COMPILE_SECONDS": "30",
    "TILEWRIGHT_CODE_LIMIT": "50000",
    "TILEWRIGHT_NODE_LIMIT": "2000",
}
_LENGTH: Final = struct.Struct("<q")


def mutant(seed: int) -> tuple[bytes, str, str]:
    """The file number `seed`, the name of its original model, and the damage."""
    rng = Random(seed)
    name, base = _base(rng)
    message, damage = mutated(rng, base)
    return message.SerializeToString(), name, damage


def _base(rng: Random) -> tuple[str, Any]:
    """A valid model: one of ONNX's tests of operators, or a random graph."""
    from tilewright.frontends.onnx.export import to_model

    if rng.random() < 0.8:
        case = rng.choice(_cases())
        return case.name, case.model
    from tilewright.testing.random_graphs import random_case

    number = rng.randrange(500)
    return f"graph {number}", to_model(random_case(number, 4).graph)


@cache
def _cases() -> Sequence[Any]:
    """Small ones: large files are large for their data."""
    from tilewright.frontends.onnx.conformance import cases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [c for c in cases("node") if c.model.ByteSize() < 20_000]


def attempt(seed: int) -> MutantFailure | None:
    """Compile and call the mutant number `seed`, in this process."""
    data, name, damage = mutant(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _use(data)
        except TilewrightError:
            return None
        except Exception:
            error = traceback.format_exc(limit=-8)
            return MutantFailure(
                seed=seed,
                base=name,
                damage=damage,
                error=error,
            )
    return None


def _use(data: bytes) -> None:
    from tilewright.driver import compile as compile_model
    from tilewright.runtime.executable import Executable

    made = compile_model(
        data,
        cache=False,
        threads=1,
        memory_limit=MODEL_MEMORY,
    )
    feeds = {v.name: _array(v) for v in made.inputs}
    if isinstance(made, Executable) and all(a is not None for a in feeds.values()):
        with np.errstate(all="ignore"):
            made(feeds)


def _array(tensor: Any) -> Any:
    """Alternating zeros and ones, which are valid indices of most tensors; None if it is not an
    array."""
    from tilewright.base import dtypes

    known = {d.name: d for d in dtypes.ALL}.get(tensor.dtype)
    if known is None:
        return None
    if known.is_string:
        return None
    if tensor.shape is None:
        return None
    if None in tensor.shape:
        return None
    size = int(np.prod(tensor.shape, dtype=np.int64))
    return (np.arange(size) % 2).reshape(tensor.shape).astype(known.numpy)


# ------------------------------------------------------------------------- the other process


class MutantProcess:
    """A process that tries one mutant after another, and is restarted after one that ends it.

    kept: a folder that caches ONNX's cases; without one, each process makes them.
    """

    def __init__(self, kept: Path | None = None) -> None:
        self._kept = kept
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, seed: int) -> MutantFailure | None:
        """The outcome of the mutant number `seed`."""
        if self._process is None:
            self._process = _started(self._kept)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(_LENGTH.pack(seed))
        self._process.stdin.flush()
        try:
            found: MutantFailure | None = pickle.load(self._process.stdout)
            return found
        except (EOFError, pickle.UnpicklingError):
            status = self._process.wait()
            self._process = None
        return MutantFailure(
            seed=seed,
            base="",
            damage="",
            error=f"the process ended with status {status}",
        )

    def close(self) -> None:
        """End the process."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()
            self._process = None


@contextmanager
def worker(kept: Path | None = None) -> Iterator[MutantProcess]:
    """A Worker that is closed in the end."""
    made = MutantProcess(kept)
    try:
        yield made
    finally:
        made.close()


def run(seed: int) -> MutantFailure | None:
    """Make and try the mutant number `seed` in its own process; None if it ended well."""
    with worker() as process:
        return process.run(seed)


def _started(kept: Path | None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tilewright.testing.mutate_models", "serve"]
    if kept is not None:
        command.append(str(kept))
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **_FOLDED},
    )


def _serve(kept: Path | None) -> None:
    """Seeds in, results out, until there are no more."""
    from tilewright.frontends.onnx.conformance import keep_node_cases

    if kept is not None:
        keep_node_cases(kept)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may write between the answers
    _cases()  # not on the time of the first mutant
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while data := sys.stdin.buffer.read(_LENGTH.size):
        used = resource.getrusage(resource.RUSAGE_SELF)
        most = int(used.ru_utime + used.ru_stime) + SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
        seed = _LENGTH.unpack(data)[0]
        pickle.dump(attempt(seed), answers)
        answers.flush()


def main(arguments: Sequence[str]) -> int:
    """Run the seeds from `first` up to `last` and print the failures; 1 if there are any."""
    if arguments[0] == "serve":
        _serve(Path(arguments[1]) if len(arguments) > 1 else None)
        return 0
    first, last = map(int, arguments)
    failures = 0
    with worker() as process:
        for seed in range(first, last):
            found = process.run(seed)
            if found is not None:
                failures += 1
                print(f"--- {seed}: {found}", flush=True)
    print(f"{last - first} mutants, {failures} failures")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
