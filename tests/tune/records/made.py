"""Records for tests: keys, trials and choices of nothing in particular."""

from __future__ import annotations

from tilewright.tune.base import Candidate, Measurement, Status, Trial
from tilewright.tune.records.key import Key
from tilewright.tune.records.rows import Choice, Features, Record, TunerRun

KEY = Key(
    operator="0123456789abcdef",
    family="matmul(cc cc pw) relu(cc cc)",
    shapes="[32, 40] [40, 24] -> [32, 24]",
    dtypes="float32 float32 -> float32",
    layouts="[i, k] [k, j] -> [i, j]",
    constants="-c-",
    target="cpu",
    machine="cpu of a test",
    processor="Brand 9000",
    threads=2,
    math="default",
)
RUN = TunerRun("run1", "model.onnx", 1000.0, "0.1 abc", "evolutionary")


def candidate(number: int = 0) -> Candidate:
    return Candidate("tiled", {"matmul.tile": [number, 2], "pack.tensor1": True})


def trial(number: int = 0, seconds: float = 1e-3) -> Trial:
    rounds = (seconds, seconds * 1.5, seconds * 0.5)
    measured = Measurement(Status.OK, rounds, "", 1.25, 0.5, 0.25)
    return Trial(candidate(number), measured, 2e-3, "evolutionary")


def failed(number: int = 0, status: Status = Status.CRASH) -> Trial:
    measured = Measurement(status, (), "signal 11: «null»", 1.0, 0.5, 0.25)
    return Trial(candidate(number), measured)


def record(number: int = 0, run: TunerRun = RUN, key: Key = KEY) -> Record:
    return Record(key, "matmul+relu", run, 2000.0 + number, trial(number))


ROWS = [
    record(0),
    Record(
        KEY, "matmul+relu", RUN, 2001.0, failed(1), Features("fast", 3, b"\0\1\xff")
    ),
    *(
        Record(KEY, "matmul+relu", RUN, 2010.0 + n, failed(10 + n, s))
        for n, s in enumerate(Status)
    ),
    Choice(KEY, "matmul+relu", RUN, 2002.0, candidate(0), 1e-3, 1.5e-3),
    Choice(KEY, "matmul+relu", RUN, 2003.0, None),
]
