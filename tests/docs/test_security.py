"""The page on security: each test that it names exists, in the file that it names."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/security.md").read_text(encoding="utf-8")


def test_every_file_that_it_names_exists():
    named = set(re.findall(r"`((?:tests|src)/[\w/]+\.py)`", PAGE))
    assert len(named) >= 8
    assert not [path for path in named if not (ROOT / path).is_file()]


def test_every_test_that_it_names_exists():
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    files = [ROOT / path for path in set(re.findall(r"`(tests/[\w/]+\.py)`", PAGE))]
    defined = {
        name
        for path in files
        for name in re.findall(
            r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    }
    assert len(named) >= 8
    assert not named - defined
