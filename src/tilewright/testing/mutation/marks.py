"""Sources that say which of their lines run: a mark before each statement as they are imported.

A mark is one addition to a set, in the files asked for only. A tracer would be asked about every
line of every library, and takes several times as long.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, Final

MARK: Final = "__reached__"  # the name of the function in a marked module

# A file and a line.
Line = tuple[str, int]


class LineMarks:
    """reached: the lines of `files` that ran since it was cleared last.

    imported: lines that run when their module is imported, whenever that is.
    """

    def __init__(self, files: Collection[str]) -> None:
        self.files = frozenset(files)
        self.reached: set[Line] = set()
        self.imported: set[Line] = set()

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """The loader that marks, for one of the files."""
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.origin not in self.files:
            return None
        spec.loader = _Loader(name, spec.origin, self)
        return spec

    def install(self) -> None:
        """Mark the files from here on. Those that are imported already stay unchanged."""
        sys.meta_path.insert(0, self)


class _Loader(SourceFileLoader):
    def __init__(
        self,
        name: str,
        path: str,
        marks: LineMarks,
    ) -> None:
        super().__init__(name, path)
        self._marks = marks

    def get_code(self, fullname: str) -> CodeType:
        """The code of the source: a cached one has no marks."""
        source = self.get_data(self.path)
        tree = marked(ast.parse(source), self.path)
        code: CodeType = compile(tree, self.path, "exec", dont_inherit=True)
        return code

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, MARK, self._marks.reached.add)
        tree = ast.parse(self.get_data(self.path))
        self._marks.imported |= {(self.path, n) for n in _imported(tree)}
        super().exec_module(module)


def marked(tree: ast.Module, file: str) -> ast.Module:
    """The tree with a call of `MARK` before each statement, and first in each lambda."""
    changed: ast.Module = ast.fix_missing_locations(_Marker(file).visit(tree))
    return changed


def _imported(node: ast.AST) -> set[int]:
    """Lines of statements that are in no function."""
    found: set[int] = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            found.add(child.lineno)
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            found |= _imported(child)
    return found


class _Marker(ast.NodeTransformer):
    def __init__(self, file: str) -> None:
        self._file = file

    def _mark(self, node: ast.stmt | ast.expr) -> ast.Call:
        line = ast.Tuple(
            [ast.Constant(self._file), ast.Constant(node.lineno)], ast.Load()
        )
        call = ast.Call(ast.Name(MARK, ast.Load()), [line], [])
        return ast.fix_missing_locations(ast.copy_location(call, node))

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        """The mark returns None, so that `or` evaluates the body."""
        mark = self._mark(node.body)
        self.generic_visit(node)
        node.body = ast.BoolOp(ast.Or(), [mark, node.body])
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(node, name, self._block(value))
        return super().generic_visit(node)

    def _block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for statement in body:
            if not _leads(statement):
                mark = ast.copy_location(ast.Expr(self._mark(statement)), statement)
                found.append(mark)
            found.append(statement)
        return found


def _leads(statement: ast.stmt) -> bool:
    """What has to stay first: docstrings and imports from the future."""
    if isinstance(statement, ast.ImportFrom):
        return statement.module == "__future__"
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
