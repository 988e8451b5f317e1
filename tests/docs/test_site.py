"""The documentation as a site: every page is in its navigation, and it builds without a warning."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import tilewright

ROOT = Path(__file__).parent.parent.parent


def test_every_page_is_in_the_navigation_once() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"([\w/-]+)\.md$", navigation, re.MULTILINE)
    own = [name for name in listed if "/" not in name]
    above = ["start", "changelog", "contributing"]  # the hooks of the site add them
    assert sorted(own) == sorted(
        [*(p.stem for p in (ROOT / "docs").glob("*.md")), *above]
    )
    modules = {name for name, place in tilewright._PUBLIC.items() if ":" not in place}
    modules |= {"index", "tilewright", "operators", "rules", "onnx_backend"}
    reference = [n.partition("/")[2] for n in listed if n.startswith("reference/")]
    assert sorted(reference) == sorted(modules)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="`make docs` installs mkdocs")
def test_it_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "reference" / "tilewright.html").read_text()
    for name in ("compile", "load", "Executable", "quantize"):
        assert re.search(rf"<h2 id=\"tilewright\.[\w.]+\.{name}\"", page), name
    table = (tmp_path / "errors.html").read_text()
    pages = sorted((tmp_path / "errors").glob("*.html"))
    assert len(pages) > 80
    assert all(f'href="errors/{p.name}"' in table for p in pages)
    assert "got shape [4, 2]" in (tmp_path / "errors" / "TW-SHAPE.html").read_text()
