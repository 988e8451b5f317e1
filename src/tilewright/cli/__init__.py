"""The command line: one file per verb."""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """The ``tilewright`` command: runs ``sys.argv`` and exits with 0 ok, 1 failed, 2 usage."""
    try:
        # Imported here: click is needed by the command only, and `import tilewright.cli` is light.
        from tilewright.cli.app import run

        raise SystemExit(run())
    except KeyboardInterrupt:
        # While the command itself was being loaded, or while it said that it was interrupted.
        raise SystemExit(1) from None
