"""The command line: one file per command."""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """The ``tilewright`` command: runs ``sys.argv`` and exits with 0 ok, 1 failed, 2 usage."""
    from tilewright.cli import interrupt

    try:
        # Imported here: click is needed by the command only, and `import tilewright.cli` is light.
        from tilewright.cli.app import run

        raise SystemExit(run())
    except BaseException as error:
        # While the command was being loaded, or while it reported the interrupt.
        if interrupt.behind(error) and not isinstance(error, SystemExit):
            raise SystemExit(1) from None
        raise
