"""A fault put into a process that has imported its file: functions are given their other code."""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType

# Where in a file a code is: its name and the positions of its instructions.
_Key = tuple[str, tuple[object, ...]]


class Functions:
    """The functions of a process, by their file, as they are when it is made."""

    def __init__(self) -> None:
        self._of: dict[str, list[FunctionType]] = {}
        gc.unfreeze()  # frozen objects are not listed
        for found in gc.get_objects():
            if type(found) is FunctionType:
                self._of.setdefault(found.__code__.co_filename, []).append(found)
        files = (getattr(m, "__file__", None) for m in sys.modules.values())
        self._imported = {file for file in files if file is not None}

    def replace(
        self,
        path: str,
        before: str,
        after: str,
    ) -> bool:
        """Replace the code of a file's functions, imported as `before`, by that in `after`.

        False if that is impossible: then the state of the process is unknown. Code that ran at
        import is not run again. A file that is imported later is imported with the fault.
        """
        if path not in self._of:
            return before == after or path not in self._imported
        old = _numbered(_compiled(before, path))
        same = _numbered(_compiled(_laid_out(before), path))
        new = _numbered(_compiled(_laid_out(after), path))
        if old.keys() != same.keys():
            return False  # equal functions on one line are one code
        numbers = {_key(code): number for number, code in old.items()}
        for function in self._of.get(path, ()):
            number = numbers.get(_key(function.__code__))
            if number is None or number not in new:
                continue  # made at run time, or gone with what was around it
            try:
                function.__code__ = new[number]
            except ValueError:  # it reads other variables of the functions around it
                return False
        return True


def _laid_out(source: str) -> str:
    return ast.unparse(ast.parse(source))


def _key(code: CodeType) -> _Key:
    return code.co_qualname, tuple(code.co_positions())


def _compiled(source: str, path: str) -> CodeType:
    code: CodeType = compile(source, path, "exec", dont_inherit=True)
    return code


def _numbered(code: CodeType) -> dict[tuple[str, int], CodeType]:
    """The code objects nested in `code`, by name and number among those of the same name."""
    seen: dict[str, int] = {}
    found: dict[tuple[str, int], CodeType] = {}
    for inner in _inside(code):
        number = seen[inner.co_qualname] = seen.get(inner.co_qualname, 0) + 1
        found[inner.co_qualname, number] = inner
    return found


def _inside(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inside(constant)
