"""Names in a model are names: they get into assembler text, Python source, pages and files nowhere.

Each name of the model below would make a file, or end the text that it is written into.
"""

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest

import tilewright as tw
from tests.robust.models import FLOAT, model, node
from tilewright.base import flags
from tilewright.cli import app
from tilewright.driver.compile import text
from tilewright.driver.show import KINDS
from tilewright.runtime import elf

X = np.random.default_rng(0).standard_normal((2, 6), dtype=np.float32)
W = np.random.default_rng(1).standard_normal((6, 5), dtype=np.float32)


def hostile(marker, way):
    """A name that is code in some language."""
    return {
        "python": f"x'];open({str(marker)!r},'w')#",
        "python 2": f'x"\n__import__("os").mknod("{marker}")\n"',
        "llvm": '"\n}\ndefine void @evil() { ret void }\n;',
        "page": "</title></style></script><script>alert(1)</script><img src=x onerror=alert(1)>",
        "file": "../../../" * 3 + "tmp/evil",
        "format": "{0.__class__.__mro__}%s%n{x!r}",
        "markup": "[red]x[/red][link=file:///etc/passwd]",
        "terminal": "\x1b]0;evil\x07\x1b[2J\u202e",
        "long": "x" * 20_000,
    }[way]


WAYS = (
    "python",
    "python 2",
    "llvm",
    "page",
    "file",
    "format",
    "markup",
    "terminal",
    "long",
)


@pytest.fixture(params=WAYS)
def named(request, tmp_path, monkeypatch):
    """A model's file, all of whose names are hostile; what they would make is not there after."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv(flags.DUMP.name, str(tmp_path / "dump"))
    marker = tmp_path / "ran"
    name = hostile(marker, request.param)
    i, w, h, s, y = (f"{name}{n}" for n in range(5))
    nodes = [
        node("MatMul", [i, w], [h], name=f"{name}a"),
        node("Softmax", [h], [s], name=f"{name}b"),
        node("Unique", [s], [y], name=f"{name}c"),
    ]
    made = model(nodes, {i: (FLOAT, [2, 6])}, [y, s], {w: W})
    made.graph.name = name
    made.producer_name = made.doc_string = made.domain = name
    path = tmp_path / "m.onnx"
    onnx.save(made, path)
    yield path
    assert not marker.exists()
    assert not os.path.exists("/tmp/evil") and not list(tmp_path.parent.glob("evil*"))


@pytest.mark.sampled(9)
@pytest.mark.filterwarnings("ignore::tilewright.base.errors.TilewrightWarning")
def test_names_stay_names(named, tmp_path, capsys):
    exe = tw.compile(named)
    unique, softmax = exe(X)
    product = np.exp(X @ W)
    expected = product / product.sum(1, keepdims=True)
    np.testing.assert_allclose(softmax, expected, rtol=1e-4)
    np.testing.assert_allclose(unique, np.unique(softmax))
    str(exe.profile(X))
    assert all(text(named, kind) for kind in KINDS)
    symbols = {s.name for code in exe.model.objects for s in elf.parse(code).symbols}
    assert symbols and not any("evil" in symbol for symbol in symbols)
    assert app.run(["verify", str(named)]) == 0
    assert app.run(["check", str(named)]) == 0
    page = tmp_path / "page.html"
    assert app.run(
        ["explore", str(named), "--pes", "2", "--opaque", "--report", str(page)]
    ) in (
        0,
        1,
    )
    if page.exists():
        assert (
            "<script>alert" not in page.read_text()
            and "<img src=x" not in page.read_text()
        )
    said = capsys.readouterr()
    assert "\x1b]0;" not in said.out + said.err


@pytest.mark.parametrize("verb", ["explain", "compile"])
def test_names_of_files_in_a_locale_without_their_letters(tmp_path, verb):
    """Python then has their bytes as surrogates, which no encoding writes."""
    path = tmp_path / "日本.onnx"
    relu = model([node("Relu", ["x"], ["y"])], {"x": (FLOAT, [5])})
    onnx.save(relu, path)
    out = tmp_path / ("日.html" if verb == "explain" else "日.so")
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "tilewright", verb, path, "-o", out],
        env={**os.environ, **locale},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    name = "日本.onnx" if verb == "explain" else "日.so"
    assert name.encode() in out.read_bytes()
