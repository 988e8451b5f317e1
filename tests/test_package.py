"""The package as a whole: light to import, its public names, house rules no linter can see."""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

import tilewright

ROOT = Path(__file__).parent.parent
LONGEST_FILE = 600
# Lines of a function that one sees whole, from its `def` to its end.
LONGEST_FUNCTION = 60
# Tokens per line of code in a room, the mean of its files. Code that is denser is read twice.
DENSEST_ROOM = 9.0
# Names that were once several classes, besides the terms of the glossary.
ONE_MEANING = {
    "Candidate",
    "Choice",
    "Machine",
    "Pass",
    "Place",
    "Program",
    "Stage",
    "Step",
}
# Terms that several classes may be called by, and why.
SHARED_NAMES = {
    "Buffer": "Halide's own word",
    "Event": "of the compiler's log, and CUDA's own word for the end of a command",
    "Expr": "Halide's own word",
    "Func": "Halide's own word: the definition, and the user's handle on it",
    "Operation": "TVM's own word",
    "Parameter": "of a schedule, and of the search spaces that users declare",
    "Partition": "Halide's own word",
    "Pipeline": "Halide's own word",
    "Rule": "each IR has its rewrite rules",
    "Schedule": "TVM's own word",
    "Stage": "TVM's and Halide's own word",
    "Store": "an instruction of VTA and a statement of loops",
    "Target": "Halide's own word",
}
# Class names defined in more than one module, counted after the first. May only fall.
USED_AGAIN = 143
HEAVY = (
    "llvmlite",
    "onnx",
    "onnxruntime",
    "torch",
    "islpy",
    "rich",
    "click",
    "ml_dtypes",
    "numpy",
)


def _python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def _tracked(pattern: str) -> list[Path]:
    try:
        done = subprocess.run(
            ["git", "ls-files", "-z", pattern],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in done.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def test_importing_loads_nothing_heavy():
    code = f"import tilewright, sys; print([m for m in {HEAVY} if m in sys.modules])"
    assert _python(code) == "[]"


def test_importing_takes_under_a_fifth_of_a_second():
    code = (
        "import time; start = time.process_time(); import tilewright;"
        "print(time.process_time() - start)"
    )
    assert min(float(_python(code)) for _ in range(3)) < 0.2


def test_the_version_is_one():
    assert version("tilewright") == tilewright.__version__


def test_the_public_names_are_listed():
    assert set(tilewright.__all__) == {"__version__", *tilewright._PUBLIC}
    assert set(dir(tilewright)) >= set(tilewright.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = tilewright.no_such_name


@pytest.mark.parametrize("name", tilewright._PUBLIC)
def test_each_public_name_can_be_had(name):
    module = tilewright._PUBLIC[name].split(":")[0]
    if find_spec(module) is None:
        pytest.skip(f"{module} is not written yet")
    assert getattr(tilewright, name) is not None


def test_a_public_name_is_not_replaced_by_a_subpackage_of_the_same_name():
    code = (
        "import tilewright.lift.nodes, tilewright.lang.lift as language;"
        "from tilewright import lift; import tilewright.lift.rules;"
        "print(lift is language, tilewright.lift is language, language.Map.__name__)"
    )
    assert _python(code) == "True True Map"


def test_no_file_is_longer_than_one_can_read():
    lengths = {path: len(path.read_text().splitlines()) for path in _tracked("*.py")}
    assert {
        str(p.relative_to(ROOT)): n for p, n in lengths.items() if n > LONGEST_FILE
    } == {}


def _long_functions(source: str) -> dict[str, int]:
    """The lines of each function that is too long: with its docstring, without decorators."""
    functions = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    lengths = {f"{f.name}:{f.lineno}": f.end_lineno - f.lineno + 1 for f in functions}
    return {name: n for name, n in lengths.items() if n > LONGEST_FUNCTION}


def test_a_function_that_is_too_long_is_found():
    longest = "@decorator\ndef f():\n" + "    x()\n" * (LONGEST_FUNCTION - 1)
    assert _long_functions(longest) == {}
    assert _long_functions(longest + "    x()\n") == {"f:2": LONGEST_FUNCTION + 1}
    method = "class A:\n    async def f(self):\n" + "        x()\n" * LONGEST_FUNCTION
    assert _long_functions(method) == {"f:2": LONGEST_FUNCTION + 1}


def test_functions_can_be_seen_whole():
    long = {
        str(path.relative_to(ROOT)): found
        for path in _tracked("src/tilewright/*.py")
        if (found := _long_functions(path.read_text()))
    }
    assert long == {}, "give the steps of each a name"


_LAYOUT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


def _statements(source: str) -> Iterator[list[tokenize.TokenInfo]]:
    """The tokens of each logical line. An f-string is one token, as in every version of Python."""
    statement = []
    inside = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        name = tokenize.tok_name[token.type]
        inside -= name == "FSTRING_END"
        if token.type == tokenize.NEWLINE:
            yield statement
            statement = []
        elif token.type not in _LAYOUT and not inside and name != "FSTRING_END":
            statement.append(token)
        inside += name == "FSTRING_START"


def _size(source: str) -> tuple[int, int]:
    """The tokens and the lines of code, without comments and docstrings."""
    tokens = 0
    lines = set()
    for statement in _statements(source):
        is_prose = all(token.type == tokenize.STRING for token in statement)
        if is_prose:
            continue
        tokens += len(statement)
        for token in statement:
            lines.update(range(token.start[0], token.end[0] + 1))
    return tokens, len(lines)


def test_tokens_and_lines_of_code_are_counted_without_prose():
    source = """
'''A module.

More of it.'''

x = f(  # why
    1
)
y = f"{x + 1} and {y!r:>{x}}"
"""
    assert _size(source) == (9, 4)


def test_no_room_is_denser_than_one_can_read():
    package = ROOT / "src/tilewright"
    tokens = defaultdict(int)
    lines = defaultdict(int)
    for path in _tracked("src/tilewright/*.py"):
        room = path.relative_to(package).parts[0]
        of_file = _size(path.read_text())
        tokens[room] += of_file[0]
        lines[room] += of_file[1]
    density = {room: tokens[room] / lines[room] for room in tokens if lines[room]}

    too_dense = {room: d for room, d in density.items() if d > DENSEST_ROOM}
    assert too_dense == {}, "name intermediate values, one step per line"


def _classes() -> dict[str, list[str]]:
    """The modules in which each public class name is defined."""
    found = defaultdict(list)
    package = ROOT / "src/tilewright"
    for path in _tracked("src/tilewright/*.py"):
        for name in re.findall(r"^class ([A-Z]\w*)", path.read_text(), re.MULTILINE):
            found[name].append(str(path.relative_to(package)))
    return found


def _shared(classes: dict[str, list[str]], terms: set[str]) -> dict[str, list[str]]:
    """The terms that are the names of classes in several modules."""
    return {name: classes[name] for name in terms if len(classes[name]) > 1}


def test_a_term_of_the_glossary_is_the_name_of_one_class():
    glossary = (ROOT / "docs/glossary.md").read_text()
    terms = set(re.findall(r"`[\w.]*\.([A-Z][a-z]\w+)(?:\.\w+)?` \|", glossary))
    assert len(terms) > 40
    shared = _shared(_classes(), terms | ONE_MEANING)
    assert set(shared) == set(SHARED_NAMES), shared
    # What the check is for: a second `Plan` in another room.
    assert _shared({"Plan": ["plan/nodes.py", "runtime/call.py"]}, {"Plan"})


def test_fewer_and_fewer_class_names_are_used_again():
    again = sum(len(modules) - 1 for modules in _classes().values())
    assert again <= USED_AGAIN, "give the new class a name of its own"
    assert again > USED_AGAIN - 10, "lower USED_AGAIN"


def test_no_path_of_a_machine_is_in_the_repository():
    # Split, so that this file does not contain them.
    forbidden = [f"/{name}/".encode() for name in ("work", "root")]
    found = {
        str(path.relative_to(ROOT))
        for path in _tracked("*")
        if any(word in path.read_bytes() for word in forbidden)
    }
    assert found == set()


def test_every_module_says_what_it_does():
    silent = []
    for path in _tracked("src/*.py"):
        first = path.read_text().lstrip()
        if not first.startswith('"""'):
            silent.append(str(path.relative_to(ROOT)))
    assert silent == []
