"""ONNX's node tests on an OpenCL device: which pass, and which of them run there.

python -m tests.conformance.on_opencl            all of them; a line for each that fails
python -m tests.conformance.on_opencl 3/8        every eighth, from the third on
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from typing import Any

import numpy as np
from onnx.backend.test import BackendTest

import tilewright as tw
from tilewright.base.errors import TilewrightWarning
from tilewright.frontends.onnx.conformance import ConformanceCase, cases
from tilewright.targets.opencl.device import OpenCLQueue

# What a case came to: on the device, on the host alone, or wrong.
DEVICE, HOST, FAILED = "device", "host", "failed"
GOAL = 1880  # that pass, of 1,884


def judged(case: ConformanceCase) -> tuple[str, str]:
    """What a case came to, and why where it failed."""
    launches = 0
    plain = OpenCLQueue.launch

    def counted(*args: Any) -> Any:
        nonlocal launches
        launches += 1
        return plain(*args)

    OpenCLQueue.launch = counted  # type: ignore[method-assign]
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", TilewrightWarning)
            # Cases share programs, and this compiler's are found again the next time.
            exe = tw.compile(case.model, target="opencl", threads=1, cache=True)
            for inputs, expected in case.data:
                compare(exe(*inputs), expected, case)
    except Exception as error:
        return FAILED, f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
    finally:
        OpenCLQueue.launch = plain  # type: ignore[method-assign]
    return (DEVICE if launches else HOST), ""


def compare(found: Any, expected: Any, case: ConformanceCase) -> None:
    """Raise AssertionError for results that ONNX's own runner would not take for the expected."""
    results = list(found) if isinstance(found, tuple) else [found]
    assert len(results) == len(expected), f"{len(results)} results"
    for got, want in zip(results, expected):
        if isinstance(want, list | tuple):
            compare(tuple(got), want, case)
        elif want is None or case.random:
            assert (got is None) == (want is None)
        else:
            BackendTest.assert_similar_outputs([want], [got], case.rtol, case.atol)


def main(part: str = "0/1") -> None:
    """Run every n-th case and say what came of it."""
    first, step = map(int, part.split("/"))
    counts: Counter[str] = Counter()
    for case in cases("node")[first::step]:
        what, why = judged(case)
        counts[what] += 1
        if what != DEVICE:
            print(f"{what:8}{case.name}  {why}", flush=True)
    passed = counts[DEVICE] + counts[HOST]
    total = sum(counts.values())
    print(
        f"{passed} of {total} pass, {counts[DEVICE]} of them with kernels on the device"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
