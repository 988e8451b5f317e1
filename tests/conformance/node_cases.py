"""Where ONNX's node tests are kept from one run of the tests to the next."""

from __future__ import annotations

from pathlib import Path

# Said by tests/conftest.py. None: they are made in each process.
folder: Path | None = None


def keep() -> None:
    """From now on ONNX's loader takes its node cases from there, or writes them there."""
    from tilewright.frontends.onnx.conformance import keep_node_cases

    if folder is not None:
        keep_node_cases(folder)
