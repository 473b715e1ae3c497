"""Small files, read and written so that nothing on disk can hurt us: bounded, never a pipe, replaced whole or not.

Must never follow a link out of the data directory, and never wait for whoever writes into a pipe.
"""

import errno
import json
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

MOST_BYTES = 2**18
"""What a configuration or a state file may have, as the gateway takes it."""


def read(path: Path, most_bytes: int = MOST_BYTES, *, follow: bool = False) -> bytes:
    """A regular file. Raises OSError, EFBIG for one that is larger and ESPIPE for what is none."""
    with _opened(path, 0 if follow else os.O_NOFOLLOW) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.ESPIPE, "it is no regular file", str(path))
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", str(path))
    return data


def _opened(path: Path, more: int) -> BinaryIO:
    """Open for reading, never waiting for a writer. Through an opener: `fdopen` of a folder raises and leaves the
    descriptor open, and we look once a second for as long as somebody's folder is in a file's place."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | more
    return open(path, "rb", opener=lambda name, _: os.open(name, flags))


def read_tail(path: Path, most_bytes: int, begin: int | None = None) -> bytes:
    """The end of a regular file, or what it has from `begin` on. Raises OSError."""
    with _opened(path, os.O_NOFOLLOW) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.ESPIPE, "it is no regular file", str(path))
        file.seek(max(0, found.st_size - most_bytes) if begin is None else begin)
        return file.read(most_bytes)


def read_object(path: Path, *, follow: bool = False) -> dict[str, Any]:
    """A JSON object; empty for a file that is missing, too large, damaged or something else."""
    try:
        told = json.loads(read(path, follow=follow))
    except (OSError, ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def write(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace a file whole: whoever reads sees the old one or the new one, also after a power cut. Raises OSError."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
    with suppress(OSError):
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make a renaming last. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def require_ours(folder: Path) -> None:
    """Make a folder if it is missing. Raises OSError, with a sentence, for one that is not ours alone to write."""
    if folder.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link; name the folder itself", str(folder))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.geteuid():
        raise OSError(errno.EPERM, f"it belongs to another user (uid {found.st_uid})", str(folder))
    if found.st_mode & stat.S_IWOTH:
        raise OSError(errno.EPERM, "every user may write to it; take that right away (chmod o-w)", str(folder))
