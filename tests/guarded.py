"""Arrays between pages that nobody may touch: an access outside of them ends the process."""

import numpy as np

from tilewright.base.guarded import Guarded
from tilewright.driver.guard.process import apart

_held = []  # regions live as long as the process: nothing else is put where an array was


def guarded(array, at_end=True):
    """A copy that ends where protected pages begin (or begins where some end).

    at_end: which.
    """
    array = np.asarray(array, order="C")
    held = Guarded(f"array {len(_held)}", array.nbytes, at_end)
    _held.append(held)
    found = held.bytes.view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


def in_a_child(work):
    """What `work()` gives in a forked process; what it raises is raised here.

    Fails the test where the process is ended: it touched what is protected.
    """
    return apart(work, lambda: _held, _fail)


def _fail(text):
    raise AssertionError(text)
