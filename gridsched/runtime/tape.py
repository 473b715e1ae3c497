"""A run on tape: every event with its time and what the scheduler answered, one JSON object a line.

Owns the format and its one codec, which knows no event by name: dataclasses go in and come out by their fields. A tape
begins with the first event of a run, so that a scheduler that hears it again must answer the same, step by step.

    {"gridsched_tape": 1, "version": "0.1.0", "policy": {…}}
    {"at": 12.5, "heard": "JobSubmitted", "event": {…}, "did": [["GrantStep", {…}], …], "digest": "…"}

`digest` is over all commands; `did` are those that act, without the decision log, which is most of them. `did` is null
where the step never ended: a bug. A recorder must never cost the server more than its own lines: what cannot be written
is said once, and the run goes on without.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from errno import EEXIST
from hashlib import blake2b
from io import FileIO
from pathlib import Path
from typing import Any, get_args

import msgspec

from gridsched import __version__
from gridsched.core.commands import Command, Log
from gridsched.core.events import Event
from gridsched.core.policy import Policy

FORMAT = 1
MARK = b'{"gridsched_tape":'
"""What every tape begins with."""

BUFFERED_BYTES = 64 * 1024
"""What a crash of the machine, or kill -9, may cost at most, with `FLUSH_SECONDS`."""

FLUSH_SECONDS = 1.0
LONGEST_TAPE_BYTES = 2 * 2**30
"""Some hours of a busy card, a week of a quiet one. A guess; a tape that goes on without end fills a disk."""

LONGEST_LINE_BYTES = 64 * 2**20

EVENTS: Mapping[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}


def _plain(value: object) -> object:
    """What JSON has no word for: any mapping as an object, the rest by the name of its type."""
    return dict(value) if isinstance(value, Mapping) else type(value).__name__


ENCODER = msgspec.json.Encoder(enc_hook=_plain)


class TapeError(Exception):
    """A tape that cannot be read: a sentence that begins with file and line."""


class _Head(msgspec.Struct):
    gridsched_tape: int
    version: str = ""
    policy: msgspec.Raw = msgspec.Raw(b"{}")


class _Line(msgspec.Struct):
    at: float
    heard: str
    event: msgspec.Raw
    did: msgspec.Raw
    digest: str


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a tape: what was heard when, and what was answered; `did` is None where the step never ended."""

    line: int
    at: float
    event: Event
    did: list[Any] | None
    digest: str


def answer_of(commands: tuple[Command, ...]) -> tuple[bytes, str]:
    """What of a step's answer does something, as its line has it, and a fingerprint of all of it, the same in every
    process. Commands go by their names: some have the same fields."""
    did = ENCODER.encode([(type(command).__name__, command) for command in commands if not isinstance(command, Log)])
    told = ENCODER.encode([command for command in commands if isinstance(command, Log)])
    return did, blake2b(did + told, digest_size=8).hexdigest()


def _is_tape(path: Path) -> bool:
    """Whether a file begins as a tape does, of any format; an empty one may become one. Raises OSError."""
    with path.open("rb") as file:
        first = file.read(len(MARK))
    return first in (b"", MARK)


class Recorder:
    """Writes a tape. A file of that name is kept beside it as the tape before (`.1`), so that a restart after a crash
    does not take away what led to it; anything else stays as it is. Raises OSError where it cannot be opened."""

    def __init__(self, path: Path, policy: Policy, say: Callable[[str], None]) -> None:
        if path.is_file():
            if not _is_tape(path):
                raise FileExistsError(EEXIST, "what is there is no tape, and stays as it is")
            path.replace(path.with_name(path.name + ".1"))
        self._path = path
        self._say = say
        self._file: FileIO | None = FileIO(path, "w")
        self._buffer = bytearray(ENCODER.encode({"gridsched_tape": FORMAT, "version": __version__, "policy": policy}))
        self._buffer += b"\n"
        self._written = 0
        self._flushed_at = float("-inf")

    def saw(self, event: Event, now: float, commands: tuple[Command, ...] | None) -> None:
        """One step was made; None where it ended in a bug."""
        if self._file is None:
            return
        did, digest = (b"null", "") if commands is None else answer_of(commands)
        raw = msgspec.Raw(did)
        self._buffer += ENCODER.encode(
            {"at": now, "heard": type(event).__name__, "event": event, "did": raw, "digest": digest}
        )
        self._buffer += b"\n"
        if commands is None or len(self._buffer) >= BUFFERED_BYTES or now - self._flushed_at >= FLUSH_SECONDS:
            self._flushed_at = now
            self._flush()

    def close(self) -> None:
        """Write what is left."""
        self._flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _flush(self) -> None:
        file = self._file
        if file is None:
            return
        try:
            while self._buffer:
                count = file.write(self._buffer) or 0
                self._written += count
                del self._buffer[:count]
        except OSError as error:
            self._give_up(f"{self._path} cannot be written ({error.strerror})")
            return
        if self._written > LONGEST_TAPE_BYTES:
            self._give_up(f"{self._path} has its full length of {LONGEST_TAPE_BYTES >> 30} GiB")

    def _give_up(self, why: str) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None
        self._buffer.clear()
        self._say(f"{why}: this run is recorded no further")


class Tape:
    """Reads a tape, line by line. Raises TapeError where it is none, at once or when the line is reached, and OSError.

    `torn` says after reading that the last line was cut off, as a server that was killed leaves it: it is left out.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.torn = False
        with path.open("rb") as file:
            first = file.readline(LONGEST_LINE_BYTES)
        try:
            head = msgspec.json.decode(first, type=_Head)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise self._error(1, "this is no tape of gridsched serve --record") from None
        if head.gridsched_tape > FORMAT:
            raise self._error(1, f"format {head.gridsched_tape} is newer than the {FORMAT} that is read here")
        self.version = head.version
        self.policy: Policy = self._decoded(1, head.policy, Policy)

    def __iter__(self) -> Iterator[Step]:
        """The steps, in order."""
        with self._path.open("rb") as file:
            file.readline(LONGEST_LINE_BYTES)
            for number, text in enumerate(iter(lambda: file.readline(LONGEST_LINE_BYTES), b""), 2):
                if len(text) >= LONGEST_LINE_BYTES:
                    raise self._error(number, f"a line of {LONGEST_LINE_BYTES >> 20} MiB or more")
                if not text.endswith(b"\n"):
                    self.torn = True
                    return
                yield self._step(number, text)

    def _step(self, number: int, text: bytes) -> Step:
        line = self._decoded(number, text, _Line)
        kind = EVENTS.get(line.heard)
        if kind is None:
            raise self._error(number, f"there is no event {line.heard}")
        did = self._decoded(number, line.did, list[Any] | None)
        return Step(number, line.at, self._decoded(number, line.event, kind), did, line.digest)

    def _decoded(self, number: int, text: bytes | msgspec.Raw, kind: Any) -> Any:
        try:
            return msgspec.json.decode(text, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._error(number, str(error)) from None

    def _error(self, number: int, what: str) -> TapeError:
        return TapeError(f"{self._path}:{number}: {what}")
