"""The command line: one file per verb."""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """The ``tilewright`` command: runs ``sys.argv`` and exits with 0 ok, 1 failed, 2 usage."""
    # Imported here: click is needed by the command only, and `import tilewright.cli` stays light.
    from tilewright.cli.app import run

    raise SystemExit(run())
