"""Writing a small file so that it is whole at any moment: the old one or the new one, whatever happens in between.

Every small file of ours that must not be found half written goes through `atomic_write`. Must never be used for what
several processes write: the one in between has a fixed name, so that a killed writer leaves one file behind, not many.
"""

import os
from contextlib import suppress
from pathlib import Path


def atomic_write(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace a file, or make it. Blocks until the disk has it. Raises OSError where what was there is untouched.

    Nobody can have opened it before it had its rights: it is a secret from its first byte where `mode` says so.
    """
    beside = path.with_name(f"{path.name}.new")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """A new name in it survives a loss of power, too; where a disk has no word for that, or a folder cannot be read, it
    is there all the same."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
