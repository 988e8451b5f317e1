"""The command line: one file per command."""

from __future__ import annotations

import atexit
import gc
import sys
from typing import NoReturn


def main() -> NoReturn:
    """The ``tilewright`` command: runs ``sys.argv`` and exits with 0 ok, 1 failed, 2 usage."""
    from tilewright.cli import interrupt

    # Python would look through all objects four times before it ends, for cycles whose objects have
    # something left to do. The command's have not: 0.3 s behind a compile of ResNet-50.
    atexit.register(gc.freeze)
    loaded = False
    try:
        # Imported here: click is needed by the command only, and `import tilewright.cli` is light.
        from tilewright.cli.app import run

        loaded = True
        raise SystemExit(run())
    except BaseException as error:
        # While the command was being loaded, or while it reported the interrupt.
        if interrupt.behind(error) and not isinstance(error, SystemExit):
            if not loaded:
                print("tilewright: interrupted", file=sys.stderr)
            raise SystemExit(1) from None
        raise
