"""Readable files: the loops, the program, LLVM assembly and machine code of a scheduled
pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from tilewright.base.errors import UnsupportedError
from tilewright.driver.c_library import header, object_file
from tilewright.lang.function import Function
from tilewright.loops.nodes import Kernel
from tilewright.targets.base import Target


class StmtOutputFormat(Enum):
    """How a program is written: as text."""

    Text = 0
    HTML = 1


class FileVerbs:
    """Halide's verbs that write a file, of the sizes of `set_estimates` or `bound`.

    arguments, fn_name and target are taken as Halide has them; they change nothing here. Each
    raises InputError where the sizes are not known.
    """

    def expected_sizes(self) -> list[tuple[int, int]]:
        """What is likely to be computed: a (min, extent) per dimension."""
        raise NotImplementedError

    def compile_jit(
        self, sizes: Any, target: str = "cpu", threads: int | None = None
    ) -> Function:
        """A function on arrays."""
        raise NotImplementedError

    def loop_nest(self, sizes: Any = None) -> str:
        """The loops as Halide prints them."""
        raise NotImplementedError

    def compile_to_lowered_stmt(
        self,
        filename: str,
        arguments: Sequence[Any] = (),
        fmt: StmtOutputFormat = StmtOutputFormat.Text,
        target: Any = None,
    ) -> None:
        """Write the scheduled kernel."""
        _check_format(fmt)
        self._write(filename, "kernel")

    def compile_to_conceptual_stmt(
        self,
        filename: str,
        arguments: Sequence[Any] = (),
        fmt: StmtOutputFormat = StmtOutputFormat.Text,
        target: Any = None,
    ) -> None:
        """Write the loops, as `print_loop_nest` shows them."""
        _check_format(fmt)
        Path(filename).write_text(self.loop_nest() + "\n")

    def compile_to_llvm_assembly(
        self, filename: str, arguments: Sequence[Any] = (), *rest: Any
    ) -> None:
        """Write the LLVM assembly that is passed to LLVM."""
        self._write(filename, "llvm")

    def compile_to_assembly(
        self, filename: str, arguments: Sequence[Any] = (), *rest: Any
    ) -> None:
        """Write the machine code as text."""
        self._write(filename, "asm")

    def compile_to_header(
        self,
        filename: str,
        arguments: Sequence[Any] = (),
        fn_name: str = "",
        target: Any = None,
    ) -> None:
        """Write the header of `compile_to_object`, which has plain arrays as parameters."""
        self._c_part(filename, fn_name, lambda *of: header(*of).encode())

    def compile_to_object(
        self,
        filename: str,
        arguments: Sequence[Any] = (),
        fn_name: str = "",
        target: Any = None,
    ) -> None:
        """Write an object file with a C function, named `fn_name` or as the file is."""
        self._c_part(filename, fn_name, object_file)

    def compile_to_file(
        self,
        filename_prefix: str,
        arguments: Sequence[Any] = (),
        fn_name: str = "",
        target: Any = None,
    ) -> None:
        """Write both: the prefix and .h, and the prefix and .o."""
        function = self.compile_jit(self.expected_sizes())
        function.export_c(filename_prefix, fn_name or None)

    def _c_part(
        self, filename: str, name: str, made: Callable[[Kernel, Target, str], bytes]
    ) -> None:
        """Write one of the files that a C program needs."""
        function = self.compile_jit(self.expected_sizes())
        path = Path(filename)
        path.write_bytes(made(function.kernel, function.machine, name or path.stem))

    def _write(self, filename: str, kind: str) -> None:
        function = self.compile_jit(self.expected_sizes())
        Path(filename).write_text(function.source(kind) + "\n")


def _check_format(fmt: StmtOutputFormat) -> None:
    if fmt is not StmtOutputFormat.Text:
        raise UnsupportedError(
            "a program as HTML",
            where="StmtOutputFormat",
            hint="StmtOutputFormat.Text; compile_jit(sizes).explain() is a report",
        )
