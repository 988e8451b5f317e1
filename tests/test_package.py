"""The package as a whole: light to import, its public names, house rules no linter can see."""

import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

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
    "Expr": "Halide's own word",
    "Func": "Halide's own word: the definition, and the user's handle on it",
    "Operation": "TVM's own word",
    "Parameter": "of a schedule, and of the search spaces that users declare",
    "Partition": "Halide's own word",
    "Pipeline": "Halide's own word",
    "Rule": "each IR has its rewrite rules",
    "Schedule": "TVM's own word",
    "Stage": "TVM's and Halide's own word",
    "Target": "Halide's own word",
}
# Class names defined in more than one module, counted after the first. May only fall.
USED_AGAIN = 39
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


class Statement(NamedTuple):
    """A logical line: where it is, and its tokens without comments."""

    column: int
    first: int
    last: int
    lines: int  # with a token, or within one
    tokens: list[str]
    is_prose: bool  # strings alone, as docstrings are


_STRING = r"""[a-zA-Z]{0,2}(?:\"{3}(?:[^"\\]|\\.|"(?!""))*\"{3}|\'{3}(?:[^'\\]|\\.|'(?!''))*\'{3}"""
_STRING += r"""|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
_NUMBER = r"0[xXoObB]\w+|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][-+]?\d+)?[jJ]?"
_OPERATOR = r"\.\.\.|->|:=|(?:\*\*|//|>>|<<|[-+*/%&|^@=<>!])=?|[~.,:;]"
# One expression for a whole file: `tokenize` takes four times as long for the same.
_TOKEN = re.compile(
    rf"(?P<space>[ \t\f]+|\\\n|#[^\n]*)|(?P<end>\n)|(?P<string>{_STRING})|(?P<open>[(\[{{])"
    rf"|(?P<close>[)\]}}])|(?P<other>{_NUMBER}|\w+|{_OPERATOR})",
    re.DOTALL,
)


def _statements(source: str) -> Iterator[Statement]:
    """The logical lines of a file. An f-string is one token, as in every version of Python."""
    tokens: list[str] = []
    row, depth, place = 1, 0, 0
    column = first = last = lines = 0
    is_prose = True
    for m in _TOKEN.finditer(source):
        assert m.start() == place, source[place : m.start()]
        place, kind, text = m.end(), m.lastgroup, m[0]
        if kind == "end" and not depth and tokens:
            yield Statement(column, first, last, lines, tokens, is_prose)
            tokens, lines, is_prose = [], 0, True
        elif kind not in ("end", "space"):
            if not tokens:
                column = m.start() - source.rfind("\n", 0, m.start()) - 1
                first = row
            tokens.append(text)
            is_prose = is_prose and kind == "string"
            depth += (kind == "open") - (kind == "close")
            lines += (row != last) + text.count("\n")
            last = row + text.count("\n")
        row += text.count("\n")


class Measured(NamedTuple):
    """The tokens and the lines of code, without docstrings, and the functions that are too long."""

    tokens: int
    lines: int
    long: dict[str, int]


def _measured(source: str) -> Measured:
    """The lines of a function are those with its docstring, without decorators."""
    tokens = lines = last = 0
    long: dict[str, int] = {}
    around: list[tuple[int, int, str]] = []

    def end(column: int) -> None:
        while around and column <= around[-1][0]:
            _, first, name = around.pop()
            if (length := last - first + 1) > LONGEST_FUNCTION:
                long[f"{name}:{first}"] = length

    for s in _statements(source):
        end(s.column)
        if not s.is_prose:
            tokens += len(s.tokens)
            lines += s.lines
        words = [t for t in s.tokens[:3] if t != "async"]
        if words[0] == "def":
            around.append((s.column, s.first, words[1]))
        last = s.last
    end(0)
    return Measured(tokens, lines, long)


@cache
def _sources() -> dict[str, Measured]:
    """The files of the package, by where they are in it."""
    package = ROOT / "src/tilewright"
    return {
        str(path.relative_to(package)): _measured(path.read_text())
        for path in _tracked("src/tilewright/*.py")
    }


def test_a_function_that_is_too_long_is_found():
    longest = "@decorator\ndef f():\n" + "    x()\n" * (LONGEST_FUNCTION - 1)
    assert _measured(longest).long == {}
    assert _measured(longest + "    x()\n").long == {"f:2": LONGEST_FUNCTION + 1}
    assert _measured(longest + '    """x\n    y"""\n\n\nz = 1\n').long == {
        "f:2": LONGEST_FUNCTION + 2
    }
    method = "class A:\n    async def f(self):\n" + "        x()\n" * LONGEST_FUNCTION
    assert _measured(method).long == {"f:2": LONGEST_FUNCTION + 1}


def test_functions_can_be_seen_whole():
    long = {path: m.long for path, m in _sources().items() if m.long}
    assert long == {}, "give the steps of each a name"


def test_tokens_and_lines_of_code_are_counted_without_prose():
    source = """
'''A module.

More of it.'''

x = f(  # why
    1
)
y = f"{x + 1} and {y!r:>{x}}"
"""
    assert _measured(source)[:2] == (9, 4)


def test_no_room_is_denser_than_one_can_read():
    tokens: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for path, found in _sources().items():
        room = path.partition("/")[0]
        tokens[room] += found.tokens
        lines[room] += found.lines
    density = {room: tokens[room] / lines[room] for room in tokens if lines[room]}

    too_dense = {room: d for room, d in density.items() if d > DENSEST_ROOM}
    assert too_dense == {}, "name intermediate values, one step per line"


# What only the standard decorator does.
_STANDARD_OPTIONS = re.compile(r"@dataclass\([^)]*\b(order|unsafe_hash|init)=")
_STANDARD = re.compile(r"^from dataclasses import [^\n]*\bdataclass\b", re.MULTILINE)


def test_dataclasses_are_the_quick_ones():
    found = []
    for path in sorted((ROOT / "src/tilewright").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if _STANDARD.search(text) and not _STANDARD_OPTIONS.search(text):
            found.append(str(path))
    assert found == [], "take `dataclass` from tilewright.base.dataclass"


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
