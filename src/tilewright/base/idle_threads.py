"""NumPy's threads go to sleep soon after their work.

OpenBLAS, which NumPy multiplies matrices with, starts its threads when it is loaded, and a thread
without work polls for it: for 2^28 cycles, a tenth of a second, in which a compilation in several
processes has one processor less. It reads how long from the environment, once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

TIMEOUT: Final = "OPENBLAS_THREAD_TIMEOUT"
# The logarithm of the cycles, which are 3 ms: calls that follow one another find threads awake.
SHORT: Final = "23"


@contextmanager
def soon_asleep() -> Iterator[None]:
    """If NumPy is loaded meanwhile, its idle threads sleep after 3 ms.

    What the user has set stays, and so does a NumPy that is there already.
    """
    if "numpy" in sys.modules or TIMEOUT in os.environ:
        yield
        return
    os.environ[TIMEOUT] = SHORT
    try:
        yield
    finally:
        os.environ.pop(TIMEOUT, None)
