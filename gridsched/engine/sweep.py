"""The sweep at the start: what a killed server has left is ended, everybody else's is named and left alone (P2).

Owns the question whose a process is, as a pure function of what /proc shows, and the end of those that are proven to be
orphans of ours: they carry the token of this very data directory, or are in its `run/children.json` with number, start,
boot and user all matching, and the server that spawned them is gone, which owning the directory proves once more.
Must never signal anything else: not what only looks like an engine, no other user's process, not ourselves or those
that have started us.
"""

import os
import select
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
    STATE,
    ProcessId,
    Token,
    boot_id,
    directory_id,
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
MOST_TOLD = 8


class Kind(Enum):
    """Whose a process is."""

    OURS = "ours"
    ANOTHER_INSTANCE = "of another server"
    CHILD_OF_LIVE = "of another program"
    ORPHAN = "left by a server of this data directory"
    FOREIGN = "of nobody that is known"


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
        if fields is None or fields[STATE] in "ZX":
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
    orphans = [found for found in classify(processes, here) if found.kind is Kind.ORPHAN]
    for sentence in end(orphans, grace_seconds):
        say(sentence)
    for left in run_dir.glob("gridsched-*.sock"):
        left.unlink(missing_ok=True)
    empty_roster(run_dir)


def end(orphans: Sequence[Found], grace_seconds: float) -> list[str]:
    """TERM, and KILL after the grace, also for those that stand still; what became of each, in a sentence."""
    handles = {handle: found for found in orphans if (handle := found.seen.id.open()) is not None}
    try:
        _signal(handles.values(), signal.SIGTERM, signal.SIGCONT)  # one that stands still hears the other only then
        deaf = _wait(handles, grace_seconds)
        _signal((handles[handle] for handle in deaf), signal.SIGKILL)
        left = _wait(deaf, KILL_SECONDS)
    finally:
        for handle in handles:
            os.close(handle)
    how = {handle: "was killed" if handle in deaf else "was ended" for handle in handles}
    how |= dict.fromkeys(left, "cannot be ended, and keeps what memory it has")
    return [f"{found} {how[handle]}: it was left by {found.whose}" for handle, found in handles.items()]


def _signal(whom: Iterable[Found], *numbers: signal.Signals) -> None:
    for found in whom:
        for number in numbers:
            with suppress(PermissionError):  # what becomes of it is seen at the end
                found.seen.id.signal(number)


def _wait(handles: Iterable[int], seconds: float) -> list[int]:
    """Those that have not ended in that time."""
    left, until = list(handles), time.monotonic() + seconds
    poll = select.poll()
    for handle in left:
        poll.register(handle, select.POLLIN)
    while left and (rest_seconds := until - time.monotonic()) > 0:
        for handle, _ in poll.poll(rest_seconds * 1000):
            poll.unregister(handle)
            left.remove(handle)
    return left


def others(data_dir: Path, holders: Mapping[int, int] | None = None, proc: Path = PROC) -> list[str]:
    """A sentence for each engine, and each holder of device memory, that is not ours and is therefore left alone; those
    that hold most come first."""
    here = Here(ProcessId.of_child(os.getpid()), os.geteuid(), directory_id(data_dir))
    found = sorted(classify(read_processes((), proc), here, holders), key=_order)
    left_alone = [each for each in found if each.kind is not Kind.OURS]
    return _bounded([f"{each} is of {each.whose}{_holding(each.held_bytes)}: it is left alone" for each in left_alone])


def _order(found: Found) -> int:
    return 1 if found.held_bytes is None else -found.held_bytes


def _holding(held_bytes: int | None) -> str:
    if held_bytes is None:
        return ""
    return f" and holds {held_bytes / 2**30:.1f} GiB of the cards" if held_bytes else " and uses the cards"


def _bounded(sentences: list[str]) -> list[str]:
    more = len(sentences) - MOST_TOLD
    return [*sentences[:MOST_TOLD], f"and {more} more of that kind"] if more > 0 else sentences
