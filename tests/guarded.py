"""Arrays between pages that nobody may touch: an access outside of them ends the process."""

import ctypes
import faulthandler
import mmap
import os
import pickle
import traceback

import numpy as np

_libc = ctypes.CDLL(None, use_errno=True)
_held = []  # regions live as long as the process: nothing else is put where an array was


def guarded(array, at_end=True):
    """A copy that ends where a protected page begins (or begins where one ends).

    at_end: which; the other side has up to a page of bytes of 0xA5.
    """
    array = np.asarray(array, order="C")
    page = mmap.PAGESIZE
    body = -(-max(array.nbytes, 1) // page) * page
    region = mmap.mmap(-1, body + 2 * page)
    _held.append(region)
    start = ctypes.addressof(ctypes.c_char.from_buffer(region))
    for side in (start, start + page + body):
        if _libc.mprotect(ctypes.c_void_p(side), page, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    ctypes.memset(start + page, 0xA5, body)
    offset = page + (body - array.nbytes if at_end else 0)
    found = np.frombuffer(region, array.dtype, array.size, offset).reshape(array.shape)
    found[...] = array
    return found


def in_a_child(work):
    """What `work()` gives in a forked process; what it raises is raised here.

    Fails the test where a signal ends the process: it touched what is protected.
    """
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        faulthandler.disable()  # it would tell of the end that a test provokes
        try:
            answer = pickle.dumps((work(), None))
        except BaseException as error:
            answer = pickle.dumps((traceback.format_exc(), error))
        with os.fdopen(write, "wb") as file:
            file.write(answer)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        answer = file.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0 and answer, f"the process was ended by signal {status & 127}"
    result, error = pickle.loads(answer)
    if error is not None:
        raise error
    return result
