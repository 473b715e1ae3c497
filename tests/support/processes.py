"""Who was started by whom, read off /proc: for tests that must leave nobody behind."""

from contextlib import suppress
from pathlib import Path


def children_of(pid: int | str) -> list[int]:
    """The living children of a process, of all its threads; a thread that ends meanwhile has none."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, (task / "children").read_text(encoding="ascii").split())
    return found


def engines_of(pid: int) -> list[int]:
    """The same without the guard, which every server has that has ever started an engine."""
    return [child for child in children_of(pid) if b"guard_program" not in _command_line(child)]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
