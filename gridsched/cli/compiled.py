"""What dataclasses compile while a command is imported, kept beside the bytecode of modules.

A dataclass writes its methods as text and has them compiled whenever its module is imported; Python keeps the bytecode
of modules, and not theirs. For the four hundred of a server's start that is a third of what all imports take.

Owns the file. What is in it is found by the whole text of a method and was made by the same interpreter, so that it is
never out of date. It lies where Python puts bytecode, may be deleted at any time, and whoever could change it could
change the modules beside it. Must never keep a command from starting, and never be written where bytecode is not.
"""

import dataclasses
import importlib.util
import marshal
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType
from typing import Any

_RUN = "exec"
"""The built-in that `dataclasses` calls; a name of its own in that module goes before the built-in one."""

_HASH_BYTES = 8


def beside_bytecode() -> Path | None:
    """The file, for this interpreter; nowhere for one that keeps no bytecode."""
    if sys.implementation.cache_tag is None:
        return None
    return Path(importlib.util.cache_from_source(__file__)).with_suffix(".methods")


@contextmanager
def kept(path: Path | None) -> Iterator[None]:
    """Within the block, methods that were compiled in an earlier run are not compiled again, and those of this run are
    in the file afterwards."""
    before = _load(path) if path is not None else {}
    used: dict[str, CodeType] = {}

    def run(text: str, names: dict[str, Any], made: Mapping[str, object]) -> None:
        code = used[text] = before.get(text) or compile(text, "<string>", "exec")
        exec(code, names, made)  # noqa: S102 - as `dataclasses` does: the text is its own

    vars(dataclasses)[_RUN] = run
    try:
        yield
    finally:
        del vars(dataclasses)[_RUN]
    if path is not None and used.keys() != before.keys() and not sys.dont_write_bytecode:
        _save(path, used)


def _load(path: Path) -> dict[str, CodeType]:
    """Nothing where the file is not there, not whole, or another interpreter's."""
    try:
        data = path.read_bytes()
    except OSError:
        return {}
    head = len(importlib.util.MAGIC_NUMBER) + _HASH_BYTES
    if data[:head] != _head(data[head:]):
        return {}
    found: dict[str, CodeType] = marshal.loads(data[head:])  # noqa: S302 - as modules' bytecode is, see above
    return found


def _save(path: Path, used: Mapping[str, CodeType]) -> None:
    """Replace it whole: two commands may start at once. Where it cannot be, the next start takes as long as this."""
    body = marshal.dumps(dict(used))
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(_head(body) + body)
        beside.replace(path)
    except OSError:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def _head(body: bytes) -> bytes:
    return importlib.util.MAGIC_NUMBER + importlib.util.source_hash(body)
