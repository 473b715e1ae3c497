"""The API keys' file in the data directory (H6): what it holds, its changes, and how a running server notices one.

Owns `keys.json`. Of a secret only the SHA-256 is kept: it has 256 random bits, so that no guess meets it, and a slow
hash would only slow each request down. Must never keep or say a secret, replace a file that cannot be read, or take one
that others could have written for no keys at all: that would let everybody in.
"""

import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal

import msgspec
import trio

from gridsched.core.job import JobClass
from gridsched.credentials import ApiKey, Scope
from gridsched.files import atomic_write
from gridsched.threads import in_thread

FILE = "keys.json"
FORMAT = 1
PREFIX = "gs-"
SECRET_BYTES = 32
MOST_KEYS = 256
"""Each request is compared with all of them."""

LOOK_SECONDS = 1.0
"""How often a running server looks whether the file has changed."""

LONGEST_FILE_BYTES = 4 * 2**20
MOST_CONCURRENT = 100_000
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Short and plain, so that a name can stand in a log, a header or a label."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_CLASSES: Final = {job_class.label: job_class for job_class in JobClass}
_ClassWord = Literal["interactive", "background", "batch"]


class KeysError(Exception):
    """The file cannot be used, or a key cannot be one; one sentence."""


class NoSuchChange(KeysError):
    """Key and file are well, but the change cannot be made."""


class _Row(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A key as it is written. What is not known here may be a bound, so it is refused, not overlooked."""

    name: str
    sha256: str
    scopes: tuple[Scope, ...]
    created: str = ""
    default_class: _ClassWord | None = None
    highest_class: _ClassWord | None = None
    models: tuple[str, ...] = ()
    concurrency: int | None = None
    queue_share: float | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    gridsched_keys: int
    keys: list[_Row]


def new_secret() -> str:
    """What a client will show."""
    return PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def digest_of(secret: str) -> str:
    """What is kept of it."""
    return sha256(secret.encode()).hexdigest()


def check_key(key: ApiKey) -> None:
    """Whether a key can be one. Raises KeysError."""
    if not NAME.fullmatch(key.name):
        raise KeysError(f"{key.name!r}: a name has up to 64 letters, digits, dots, dashes or underscores")
    if not _DIGEST.fullmatch(key.sha256):
        raise KeysError(f"{key.name}: its digest is no SHA-256")
    if not key.scopes:
        raise KeysError(f"{key.name}: it has no scope")
    if key.concurrency is not None and not 1 <= key.concurrency <= MOST_CONCURRENT:
        raise KeysError(f"{key.name}: the requests that it may have open are from 1 to {MOST_CONCURRENT}")
    if key.queue_share is not None and not 0 < key.queue_share <= 1:  # false for NaN, too
        raise KeysError(f"{key.name}: its share of a queue is above 0 % and at most 100 %")
    if None not in (key.default_class, key.highest_class) and key.default_class < key.highest_class:  # type: ignore[operator]  # neither is None
        raise KeysError(f"{key.name}: the class of its requests that name none is above the highest that it may use")


def no_such_model(name: str, closest: Sequence[str]) -> str:
    """What is said of a name that a key is bound to and no model has. It is no fault: the model may come yet."""
    hint = f"; did you mean {closest[0]}?" if closest else ""
    return f"there is no model {name!r} now, so the key may ask for it once there is{hint}"


def read_keys(data_dir: Path) -> tuple[ApiKey, ...]:
    """The keys of a data directory, in the order in which they were made; none where there is no file. Raises
    KeysError."""
    path = data_dir / FILE
    try:
        said = _read(path)
    except FileNotFoundError:
        return ()
    except OSError as error:
        why = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise KeysError(f"{path} cannot be read: {why}") from None
    try:
        file = msgspec.json.decode(said, type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise KeysError(f"{path} is damaged: {error}") from None
    if file.gridsched_keys != FORMAT:
        raise KeysError(f"{path} has format {file.gridsched_keys}, and {FORMAT} is read here")
    try:
        keys = tuple(_key(row) for row in file.keys)
        _check_all(keys)
    except KeysError as error:
        raise KeysError(f"{path} is damaged: {error}") from None
    return keys


def add_key(data_dir: Path, key: ApiKey) -> None:
    """Add a key. Raises KeysError where there is one of that name, or the file cannot be read; OSError where it cannot
    be written."""
    check_key(key)
    with _alone(data_dir):
        keys = read_keys(data_dir)
        if any(key.name.lower() == other.name.lower() for other in keys):
            raise NoSuchChange(f"there is a key {key.name} already; revoke it first, or choose another name")
        _write(data_dir, (*keys, key))


def revoke_key(data_dir: Path, name: str) -> int:
    """Take a key away: how many are left. Raises KeysError where there is none of that name, or the file cannot be
    read; OSError where it cannot be written."""
    with _alone(data_dir):
        keys = read_keys(data_dir)
        left = tuple(key for key in keys if key.name != name)
        if len(left) == len(keys):
            there = ", ".join(key.name for key in keys) or "there is none at all"
            raise NoSuchChange(f"there is no key {name!r} ({there})")
        _write(data_dir, left)
    return len(left)


class KeyFile:
    """The keys as a running server knows them: `keys`, None while they could not be read once."""

    def __init__(self, data_dir: Path, say: Callable[[str], None]) -> None:
        self.keys: tuple[ApiKey, ...] | None = None
        self._data_dir = data_dir
        self._say = say
        self._said = ""
        self._seen: object = ...  # what the file was when it was read; nothing yet
        self.look()

    def look(self) -> bool:
        """Read the file if it is another than at the last look: whether the keys are others now. Where it cannot be
        read, or is gone, that is said once and the keys from before hold. Blocks."""
        path, is_first = self._data_dir / FILE, self._seen is ... and not self._said
        stamp = _stamp(path)
        if stamp == self._seen:
            return False
        try:
            keys = read_keys(self._data_dir)
            if stamp is None and not is_first and self.keys != ():
                raise KeysError(f"{path} is gone")  # noqa: TRY301 - one place that says what is wrong
        except KeysError as error:
            self._tell(str(error))
            return False  # it is read at the next look again: what failed may have been the machine, not the file
        self._seen, self._said = stamp, ""
        before, self.keys = self.keys, keys
        return keys != before

    def _tell(self, fault: str) -> None:
        holds = "no API key is taken until that is mended" if self.keys is None else "the API keys from before hold"
        sentence = f"{fault}; {holds}"
        if sentence != self._said:
            self._said = sentence
            self._say(sentence)

    async def follow(self, keep: Callable[[Sequence[ApiKey]], None]) -> None:
        """Tell of the keys whenever they are others, until cancelled."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            if await in_thread(self.look, abandon_on_cancel=True) and self.keys is not None:
                keep(self.keys)


# --- the file -------------------------------------------------------------------------------------------------------


def _read(path: Path) -> bytes:
    """Its bytes. Raises OSError, and KeysError for what is not this user's alone."""
    with open(path, "rb", opener=_without_waiting) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise KeysError(f"{path} is no file")
        if found.st_uid != os.geteuid():
            raise KeysError(f"{path} belongs to another user (uid {found.st_uid})")
        if found.st_mode & 0o077:
            raise KeysError(f"others may read or write {path}; see that nobody changed it, then: chmod 600 {path}")
        said = file.read(LONGEST_FILE_BYTES + 1)
    if len(said) > LONGEST_FILE_BYTES:
        raise KeysError(f"{path} is longer than {LONGEST_FILE_BYTES >> 20} MiB")
    return said


def _without_waiting(path: str, flags: int) -> int:
    """A pipe in the file's place would have its reader wait for a writer; what a link leads to is not ours."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _write(data_dir: Path, keys: tuple[ApiKey, ...]) -> None:
    _check_all(keys)
    said = msgspec.json.encode(_File(FORMAT, [_row(key) for key in keys]))
    atomic_write(data_dir / FILE, msgspec.json.format(said, indent=2) + b"\n")


def _check_all(keys: tuple[ApiKey, ...]) -> None:
    for key in keys:
        check_key(key)
    if len({key.name.lower() for key in keys}) < len(keys) or len({key.sha256 for key in keys}) < len(keys):
        raise KeysError("two keys have the same name, or the same secret")
    if len(keys) > MOST_KEYS:
        raise KeysError(f"there are at most {MOST_KEYS} keys")


def _key(row: _Row) -> ApiKey:
    words = row.default_class, row.highest_class
    default, highest = (None if word is None else _CLASSES[word] for word in words)
    return ApiKey(
        row.name,
        row.sha256,
        row.scopes,
        row.created,
        default,
        highest,
        row.models,
        row.concurrency,
        row.queue_share,
    )


def _row(key: ApiKey) -> _Row:
    return _Row(
        name=key.name,
        sha256=key.sha256,
        scopes=key.scopes,
        created=key.created,
        default_class=_word(key.default_class),
        highest_class=_word(key.highest_class),
        models=key.models,
        concurrency=key.concurrency,
        queue_share=key.queue_share,
    )


def _word(job_class: JobClass | None) -> _ClassWord | None:
    return None if job_class is None else msgspec.convert(job_class.label, _ClassWord)


def _stamp(path: Path) -> object:
    """What changes when the file does; None where there is none."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.errno
    return (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)


@contextmanager
def _alone(data_dir: Path) -> Iterator[None]:
    """Two commands that change the file do so one after the other; readers need not wait. Raises OSError."""
    folder = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
