"""The local admin token: a file that only the server's user can read, and that commands on the same machine use (H6).

Must never say the token anywhere else. One that others could have read is no secret any more: another takes its place.
"""

import os
import secrets
import stat
from pathlib import Path

from gridsched.files import atomic_write

FILE = "admin.token"
SECRET_BYTES = 32
SHORTEST, LONGEST = 32, 1024
"""Characters. A person may write a token of their own; a shorter one could be guessed."""


def make_admin_token(data_dir: Path) -> str:
    """The token of a data directory that this process owns; a new one where there is none. Raises OSError."""
    if token := read_admin_token(data_dir):
        return token
    token = secrets.token_hex(SECRET_BYTES)
    atomic_write(data_dir / FILE, f"{token}\n".encode())
    return token


def read_admin_token(data_dir: Path) -> str | None:
    """The token of a data directory; None where there is none that is a secret of this user's alone."""
    try:
        with open(data_dir / FILE, "rb", opener=_without_waiting) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                return None
            said = file.read(LONGEST + 2)
    except OSError:  # a folder, too
        return None
    token = said.decode("ascii", "replace").strip()
    return token if SHORTEST <= len(token) <= LONGEST and token.isascii() and token.isprintable() else None


def _without_waiting(path: str, flags: int) -> int:
    """A pipe in the file's place would have its reader wait for a writer; what a link leads to is not ours."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
