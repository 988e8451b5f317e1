"""ONNX's node tests, which take seconds to make, kept from one run of the tests to the next.

ONNX computes their expected outputs in Python whenever it is asked for them, in every process.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from tilewright.base.files import write_whole

# Where they are kept; none: they are made each time. tests/conftest.py says it.
folder: Path | None = None


def keep() -> None:
    """From now on ONNX's loader takes its node cases from `folder`, or writes them there.

    Other versions of onnx and NumPy have files of their own; of several processes, one makes them.
    """
    from onnx.backend.test import loader

    make = loader.load_node_model_tests
    if folder is not None and make.__module__ == loader.__name__:
        place = folder
        loader.load_node_model_tests = lambda: kept(place, make)


def kept(place: Path, make: Callable[[], list[Any]]) -> list[Any]:
    """What `make` gives, from the file in `place` if there is one."""
    import onnx

    name = f"node-cases-onnx-{onnx.__version__}-numpy-{np.__version__}"
    path = place / f"{name}.pickle"
    with FileLock(place / f"{name}.lock"):
        if not path.exists():
            whole = pickle.dumps(make())
            write_whole(path, lambda file: file.write(whole))
    return pickle.loads(path.read_bytes())
