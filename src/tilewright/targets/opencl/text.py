"""Lines of OpenCL C with unique names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.expr.nodes import Buffer
from tilewright.targets.opencl.helpers import HelperFunctions


class FunctionText:
    """Lines of one function. buffers: the names of those that it may use."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.helpers = HelperFunctions()
        self.buffers: dict[Buffer, str] = {}
        self._depth = 1
        self._taken: set[str] = set()

    def line(self, text: str) -> None:
        """A line at the current depth."""
        self.lines.append("    " * self._depth + text)

    @contextmanager
    def braces(self, head: str) -> Iterator[None]:
        """A block after `head`."""
        self.line(f"{head} {{")
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self.line("}")

    def fresh(self, wanted: str) -> str:
        """A name like the one wanted, that is neither a word of OpenCL C nor taken."""
        word = re.sub(r"\W", "_", wanted)
        stem = word if word[:1].isalpha() else f"v{word}"
        # Built-in functions and types are words without an underscore or a number at the end.
        n = 0
        while (name := f"{stem}_{n}") in self._taken:
            n += 1
        self._taken.add(name)
        return name
