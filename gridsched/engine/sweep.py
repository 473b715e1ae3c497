"""The sweep at the start: what a killed server has left is ended, everybody else's is named and left alone (P2).

Owns the question whose a process is, as a pure function of what /proc shows, and the end of those that are proven to be
orphans of ours: they carry the token of this very data directory, or are in its `run/children.json` with number, start,
boot and user all matching, and the server that spawned them is gone, which owning the directory proves once more.
Must never signal anything else: not what only looks like an engine, no other user's process, not ourselves or those
that have started us.
"""

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from gridsched.engine.identity import (
    NAME,
    PARENT,
    PROC,
    START_TICKS,
    ProcessId,
    Token,
    boot_id,
    directory_id,
    has_ended,
    shows_us,
    stat_fields,
)
from gridsched.engine.roster import Entry, empty_roster, read_roster

Say = Callable[[str], None]

ENGINE_NAME = "llama-server"
"""How the kernel's name of an engine's process begins; it keeps 15 bytes of it."""

INITS = frozenset(("init", "systemd", "tini", "dumb-init", "docker-init", "catatonit", "s6-svscan", "runit", "launchd"))
"""Who takes over processes whose parent has gone: to be their child says nothing of who started them."""

GRACE_SECONDS = 2.0
KILL_SECONDS = 5.0
MORE_ROUNDS = 5
MOST_TOLD = 8
MOST_NAMED = 4


class Kind(Enum):
    """Whose a process is."""

    OURS = "ours"
    ANOTHER_INSTANCE = "of another server"
    CHILD_OF_LIVE = "of another program"
    ORPHAN = "left by a server of this data directory"
    FOREIGN = "of nobody that is known"


OWNED = frozenset((Kind.ANOTHER_INSTANCE, Kind.CHILD_OF_LIVE))
"""Whose owner has a name, and is told once for all that it has."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One process as /proc shows it. `uid` is its real user's, -1 where that cannot be read."""

    id: ProcessId
    parent: int
    name: str
    token: Token | None
    uid: int


@dataclass(frozen=True, slots=True)
class Found:
    """A process that is an engine's or holds device memory, whose it is, and of whom. What it holds is 0 where it uses
    a device and nobody tells how much."""

    seen: Seen
    kind: Kind
    whose: str
    held_bytes: int | None = None

    def __str__(self) -> str:
        return f"{self.seen.name} (process {self.seen.id.pid})"


@dataclass(frozen=True, slots=True)
class Here:
    """Who asks: this process, its user, its data directory (as tokens call it), and what was noted there."""

    us: ProcessId
    uid: int
    directory: str
    entries: tuple[Entry, ...] = ()


def read_processes(noted: Collection[int] = (), proc: Path = PROC) -> dict[int, Seen]:
    """All living processes. Those that end meanwhile are left out; of another user's there is no token. Whose user one
    is is read where it matters: of those that carry a token, or have a noted number."""
    boot = boot_id(proc)
    found = {}
    for folder in proc.glob("[1-9]*"):
        pid = int(folder.name)
        fields = stat_fields(pid, proc)
        if fields is None or has_ended(fields):
            continue
        token = Token.of(pid, proc)
        uid = _uid(folder) if token is not None or pid in noted else -1
        identity = ProcessId(pid, int(fields[START_TICKS]), boot)
        found[pid] = Seen(identity, int(fields[PARENT]), fields[NAME], token, uid)
    return found


def _uid(folder: Path) -> int:
    lines = _read(folder / "status").splitlines()
    return int(next((line for line in lines if line.startswith(b"Uid:")), b"Uid: -1").split()[1])


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


# --- whose it is --------------------------------------------------------------------------------------------------


def classify(processes: Mapping[int, Seen], here: Here, holders: Mapping[int, int] | None = None) -> tuple[Found, ...]:
    """Whose each process is that carries a token, was noted, looks like an engine, or holds device memory (bytes)."""
    holders = holders or {}
    noted = {entry.process: entry for entry in here.entries}
    line = _ancestors(here.us.pid, processes)
    found = []
    for pid, seen in sorted(processes.items()):
        entry = noted.get(seen.id)
        if pid in line or not (seen.token or entry or pid in holders or seen.name.startswith(ENGINE_NAME)):
            continue
        kind, whose = _kind(seen, entry, here, processes)
        found.append(Found(seen, kind, whose, holders.get(pid)))
    return tuple(found)


def _kind(seen: Seen, entry: Entry | None, here: Here, processes: Mapping[int, Seen]) -> tuple[Kind, str]:
    if here.us.pid in _ancestors(seen.id.pid, processes):
        return Kind.OURS, "this server"
    proofs = []
    if seen.token is not None:
        owner = ProcessId(seen.token.owner_pid, seen.token.owner_start_ticks, seen.id.boot_id)
        proofs.append((owner, seen.token.directory == here.directory))
    if entry is not None:
        proofs.append((entry.owner, True))
    for owner, of_this_directory in proofs:
        if owner == here.us:
            return Kind.OURS, "this server"
        if owner.pid in processes and processes[owner.pid].id == owner:
            return Kind.ANOTHER_INSTANCE, f"the server of process {owner.pid}"
        if of_this_directory and seen.uid == here.uid:
            return Kind.ORPHAN, f"a server (process {owner.pid}) that is gone"
    parent = processes.get(seen.parent)
    if parent is not None and parent.id.pid != 1 and parent.name not in INITS:
        return Kind.CHILD_OF_LIVE, f"{parent.name} (process {parent.id.pid})"
    return Kind.FOREIGN, "nobody that is known"


def _ancestors(pid: int, processes: Mapping[int, Seen]) -> frozenset[int]:
    """A process and those above it."""
    line: set[int] = set()
    while pid in processes and pid not in line:
        line.add(pid)
        pid = processes[pid].parent
    return frozenset(line)


def stale(entries: Iterable[Entry], processes: Mapping[int, Seen], uid: int) -> Iterator[Entry]:
    """Entries whose number is another process's now. Those whose process is merely gone say nothing of interest."""
    for entry in entries:
        seen = processes.get(entry.process.pid)
        if seen is not None and (seen.id != entry.process or seen.uid != uid):
            yield entry


# --- what is done about it ----------------------------------------------------------------------------------------


def sweep(data_dir: Path, run_dir: Path, say: Say, grace_seconds: float = GRACE_SECONDS) -> None:
    """End what a killed server of this data directory has left, and tidy up after it; a line for each. Only for the
    directory's owner, before it starts anything. Blocks: for a moment where there is nothing, at most 7 s."""
    if not shows_us():
        say(
            "/proc shows another namespace of processes than this server's: what a killed server left is not looked for"
        )
    entries, problems = read_roster(run_dir)
    processes = read_processes({entry.process.pid for entry in entries})
    here = Here(ProcessId.of_child(os.getpid()), os.geteuid(), directory_id(data_dir), entries)
    for problem in problems:
        say(problem)
    dropped = [
        f"process {entry.process.pid} is another one than was noted for {entry.model} in {run_dir}: it is left alone"
        for entry in stale(entries, processes, here.uid)
    ]
    for sentence in _bounded(dropped):
        say(sentence)
    for sentence in _bounded(_end_all(processes, here, grace_seconds)):
        say(sentence)
    if served_by_another(processes, here):
        say("another server serves from this data directory, whose lock somebody took away: its engines are left alone")
        return
    for left in run_dir.glob("gridsched-*.sock"):
        with suppress(OSError):  # somebody's folder of that name, or a disk that refuses: it is in nobody's way
            left.unlink()
    empty_roster(run_dir)


def served_by_another(processes: Mapping[int, Seen], here: Here) -> bool:
    """Whether a living server that is not us has engines of this very directory: their sockets lie in it."""
    others_found = (found.seen.token for found in classify(processes, here) if found.kind is Kind.ANOTHER_INSTANCE)
    return any(token is not None and token.directory == here.directory for token in others_found)


def _end_all(processes: Mapping[int, Seen], here: Here, grace_seconds: float) -> list[str]:
    """End every orphan, and what they start while they are ended, which has no grace; what cannot be ended is told
    first."""
    ended: list[str] = []
    stuck: list[str] = []
    known: set[ProcessId] = set()
    for grace in (grace_seconds, *(0.0,) * MORE_ROUNDS):
        orphans = [found for found in classify(processes, here) if found.kind is Kind.ORPHAN]
        orphans = [found for found in orphans if found.seen.id not in known]
        if not orphans:
            break
        left, gone = end(orphans, grace)
        stuck += left
        ended += gone
        known |= {found.seen.id for found in orphans}
        processes = read_processes({entry.process.pid for entry in here.entries})
    return [*stuck, *ended]


def end(orphans: Iterable[Found], grace_seconds: float) -> tuple[list[str], list[str]]:
    """TERM, and KILL after the grace, also for those that stand still; what could not be ended and what was, each in a
    sentence. Takes one descriptor at a time, however many there are."""
    alive = [found for found in orphans if found.seen.id.alive()]
    _signal(alive, signal.SIGTERM, signal.SIGCONT)  # one that stands still hears the other only then
    deaf = _left(alive, grace_seconds)
    _signal(deaf, signal.SIGKILL)
    stuck = _left(deaf, KILL_SECONDS)
    gone = [found for found in alive if found not in stuck]
    how = {found: "was killed" if found in deaf else "was ended" for found in gone}
    return (
        [f"{found} cannot be ended, and keeps what memory it has: {_left_by(found)}" for found in stuck],
        [f"{found} {how[found]}: {_left_by(found)}" for found in gone],
    )


def _left_by(found: Found) -> str:
    return f"it was left by {found.whose}"


def _signal(whom: Iterable[Found], *numbers: signal.Signals) -> None:
    for found in whom:
        for number in numbers:
            with suppress(PermissionError):  # what becomes of it is seen at the end
                found.seen.id.signal(number)


def _left(whom: Iterable[Found], seconds: float) -> list[Found]:
    """Those that have not ended in that time, all together."""
    until = time.monotonic() + seconds
    return [found for found in whom if not found.seen.id.ends_within(max(0.0, until - time.monotonic()))]


def others(data_dir: Path, holders: Mapping[int, int] | None = None, proc: Path = PROC) -> list[str]:
    """A sentence for each owner of engines and holders of device memory that are not ours, and for each of them that is
    nobody's: they are left alone. Those that hold most come first."""
    here = Here(ProcessId.of_child(os.getpid()), os.geteuid(), directory_id(data_dir))
    groups: dict[object, list[Found]] = {}
    for found in classify(read_processes((), proc), here, holders):
        if found.kind is not Kind.OURS:
            groups.setdefault(found.whose if found.kind in OWNED else found.seen.id, []).append(found)
    return _bounded([_sentence(group) for group in sorted(groups.values(), key=_order)])


def _order(group: Sequence[Found]) -> int:
    held = _held(group)
    return 1 if held is None else -held


def _held(group: Sequence[Found]) -> int | None:
    told = [found.held_bytes for found in group if found.held_bytes is not None]
    return sum(told) if told else None


def _sentence(group: Sequence[Found]) -> str:
    first, held = group[0], _held(group)
    many = len(group) > 1
    if held:
        holding = f" and {'hold' if many else 'holds'} {held / 2**30:.1f} GiB of the cards"
    else:
        holding = f" and {'use' if many else 'uses'} the cards" if held == 0 else ""
    if not many:
        return f"{first} is of {first.whose}{holding}: it is left alone"
    names = ", ".join(sorted({found.seen.name for found in group})[:MOST_NAMED])
    return f"{len(group)} processes ({names}) are of {first.whose}{holding}: they are left alone"


def _bounded(sentences: list[str]) -> list[str]:
    more = len(sentences) - MOST_TOLD
    return [*sentences[:MOST_TOLD], f"and {more} more of that kind"] if more > 0 else sentences
