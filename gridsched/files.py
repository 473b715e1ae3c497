"""Writing a small file so that it is whole at any moment: the old one or the new one, whatever happens in between.

Every small file of ours that must not be found half written goes through `atomic_write`. Must never be used for what
several processes write: the one in between has a fixed name, so that a killed writer leaves one file behind, not many.
"""

import os
from pathlib import Path


def atomic_write(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace a file, or make it. Blocks until the disk has it. Raises OSError; what was there is then untouched."""
    beside = path.with_name(f"{path.name}.new")
    try:
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with open(fd, "wb") as file:  # noqa: PTH123 - it takes a descriptor
            os.fchmod(fd, mode)
            file.write(data)
            file.flush()
            os.fsync(fd)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """The new name survives a loss of power, too."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
