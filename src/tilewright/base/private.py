"""Files and folders that only the user can have written, since their contents are executed.

A folder is private if the user owns it and nobody else may write to it, and nobody else can put
another one in its place: each folder above it belongs to the user or the system, and others may
write there only if they cannot rename what is not theirs (the sticky bit, as on /tmp).
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final, Literal

_KINDS: Final = {"file": stat.S_ISREG, "folder": stat.S_ISDIR}
_OVERFLOW: Final = Path("/proc/sys/kernel/overflowuid")


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, closed to others. One that exists stays unchanged."""
    if path.is_dir():
        return
    make_folder(path.parent)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)


def close_folder(path: Path) -> None:
    """Take from others what rights they have to read a folder of the user's. Raises OSError."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        path.chmod(mode & ~0o077)


def objection(path: Path) -> str:
    """Why an existing folder is not private; empty if it is. Raises OSError."""
    found = objection_to(path.stat(), "folder")
    if found:
        return f"{path} {found}"
    # For a symbolic link, both its own location and its target's count.
    above = dict.fromkeys((*path.absolute().parents, *path.resolve().parents))
    return next((f"{p} {why}" for p in above if (why := _objection_above(p))), "")


def objection_to(found: os.stat_result, kind: Literal["file", "folder"]) -> str:
    """Why what `stat` or `fstat` found is not a file or folder of the user's own, else empty."""
    if not _KINDS[kind](found.st_mode):
        return f"is not a {kind}"
    if found.st_uid not in (os.geteuid(), 0):
        return f"belongs to the user {found.st_uid}"
    return "can be written by others" if _is_open(found) else ""


def _objection_above(folder: Path) -> str:
    found = folder.stat()
    if found.st_uid not in (os.geteuid(), 0, _overflow()):
        return f"belongs to the user {found.st_uid}"
    sticky = found.st_mode & stat.S_ISVTX
    return "can be written by others" if _is_open(found) and not sticky else ""


def _is_open(found: os.stat_result) -> bool:
    """Others may write to it."""
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and not _is_own_group(found.st_gid)


@cache
def _overflow() -> int:
    """The user whom files of users outside a container's seem to belong to."""
    try:
        return int(_OVERFLOW.read_text())
    except (OSError, ValueError):
        return 0


@cache
def _is_own_group(group: int) -> bool:
    """The user is alone in this group, as many systems make one for each user."""
    import grp
    import pwd

    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
        found = grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == name and set(found.gr_mem) <= {name}
