"""P2, B10, B11: at the start only what is proven to be ours is ended; everybody else is named, or not even that."""

import json
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gridsched.engine.identity import NAME, STATE, ProcessId, Token, boot_id, directory_id, stat_fields
from gridsched.engine.roster import LONGEST_BYTES, Entry, Roster, empty_roster, read_roster
from gridsched.engine.sweep import Here, Kind, Seen, classify, others, read_processes, stale, sweep
from tests.engine.conftest import PATIENCE_SECONDS
from tests.engine.test_guard import server, sleeper
from tests.support.processes import gone, watched

BOOT = "b0"
HERE = "1-1"
US = ProcessId(100, 50, BOOT)
GONE, LIVE = (90, 10), (91, 11)  # a server that is gone, and one that lives


def seen(pid: int, name: str = "llama-server", parent: int = 1, token: str = "", uid: int = 7, ticks: int = 60) -> Seen:
    """A process in few words."""
    return Seen(ProcessId(pid, ticks, BOOT), parent, name, Token.read(token), uid)


def token(owner: tuple[int, int], directory: str = HERE) -> str:
    """What an engine of a server carries."""
    return str(Token(directory, *owner, "s"))


def entry(pid: int, owner: tuple[int, int] = GONE, ticks: int = 60, boot: str = BOOT) -> Entry:
    """A process as it was noted."""
    return Entry(ProcessId(pid, ticks, boot), ProcessId(*owner, boot), "m", "s")


PROCESSES = {
    each.id.pid: each
    for each in (
        seen(1, "systemd", 0),
        seen(LIVE[0], "gridsched", 1, ticks=LIVE[1]),
        seen(99, "bash", token=token(GONE)),  # has started us
        seen(US.pid, "gridsched", 99, token=token(GONE), ticks=US.start_ticks),
        seen(101, parent=US.pid),
        seen(102, parent=1, token=token((US.pid, US.start_ticks))),
        seen(103, token=token(GONE)),
        seen(104, "sh", token=token(GONE)),
        seen(105, parent=104, token=token(GONE)),
        seen(106, token=token(GONE), uid=8),
        seen(107, token=token(GONE, "1-2")),
        seen(108, token=token(LIVE)),
        seen(109, token=token(LIVE, "1-2")),
        seen(110, parent=LIVE[0]),
        seen(111, parent=1),
        seen(112, "llama-server", parent=112),
        seen(113, "python", parent=1),
        seen(114, "Xorg", parent=1),
        seen(115, "engine", parent=1),
        seen(116, "engine", parent=1, uid=8),
        seen(117, "sleep", parent=1),
        seen(118, token=token((GONE[0], GONE[1] + 1))),
        seen(119, token=token(GONE).replace("90", "x")),
    )
}
WHOSE = {
    101: Kind.OURS,
    102: Kind.OURS,
    103: Kind.ORPHAN,
    104: Kind.ORPHAN,
    105: Kind.ORPHAN,
    106: Kind.FOREIGN,  # another user's: anybody may write anything into an environment of their own
    107: Kind.FOREIGN,  # of another directory, whose next server will see to it
    108: Kind.ANOTHER_INSTANCE,
    109: Kind.ANOTHER_INSTANCE,
    110: Kind.CHILD_OF_LIVE,
    111: Kind.FOREIGN,
    112: Kind.CHILD_OF_LIVE,
    114: Kind.FOREIGN,
    115: Kind.ORPHAN,
    116: Kind.FOREIGN,
    118: Kind.ORPHAN,
    119: Kind.FOREIGN,
}


def test_P2_only_a_proven_orphan_is_one() -> None:
    """By token or by note, of this directory and user, of a server that is gone; never we, nor who has started us."""
    notes = (entry(115), entry(116), entry(117, ticks=61), entry(US.pid, ticks=US.start_ticks), entry(99), entry(1))
    found = classify(PROCESSES, Here(US, 7, HERE, notes), {114: 5 << 30})
    assert {each.seen.id.pid: each.kind for each in found} == WHOSE
    assert {each.seen.id.pid: each.held_bytes for each in found if each.held_bytes is not None} == {114: 5 << 30}


def test_B11_an_entry_of_a_server_that_lives_is_no_proof() -> None:
    """Whatever the file says, and whoever wrote it."""
    found = classify(PROCESSES, Here(US, 7, HERE, (entry(115, LIVE),)))
    assert {each.kind for each in found if each.seen.id.pid == 115} == {Kind.ANOTHER_INSTANCE}


def test_B11_a_number_that_another_process_has_now_is_told() -> None:
    """Another start, another boot, another user; one that is merely gone is not worth a line."""
    notes = (entry(115), entry(111, ticks=61), entry(111, boot="b1"), entry(116), entry(5000))
    assert list(stale(notes, PROCESSES, 7)) == [notes[1], notes[2], notes[3]]


def laid_out(proc: Path, pid: int, stat: str, environ: bytes = b"", uid: int = 7) -> None:
    """A process in a /proc of the test's."""
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(stat, encoding="utf-8")
    (folder / "environ").write_bytes(environ)
    (folder / "status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n", encoding="utf-8")


def test_P4_a_process_is_read_as_the_kernel_shows_it(tmp_path: Path) -> None:
    """Names with brackets and spaces, no environment, a zombie, one that ends meanwhile, one that ends thread by
    thread: the first is a zombie, and the others still hold what it holds."""
    boot = tmp_path / "sys" / "kernel" / "random"
    boot.mkdir(parents=True)
    (boot / "boot_id").write_text(f"{BOOT}\n", encoding="utf-8")
    rest = "3 3 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 77 0 0"
    mark = f"A=1\0GRIDSCHED_ENGINE={token(GONE)}\0B=\xff".encode("latin-1")
    laid_out(tmp_path, 10, f"10 (a) b (c)) S 9 {rest}", mark)
    laid_out(tmp_path, 11, f"11 (z) Z 9 {rest}")
    laid_out(tmp_path, 12, "")
    laid_out(tmp_path, 13, f"13 (plain) R 9 {rest}", b"XGRIDSCHED_ENGINE=1\0", uid=8)
    laid_out(tmp_path, 15, f"15 (ends) Z 9 {rest.replace(' 20 0 1 ', ' 20 0 2 ')}")
    found = read_processes({13}, tmp_path)
    assert found == {
        10: Seen(ProcessId(10, 77, BOOT), 9, "a) b (c)", Token.read(token(GONE)), 7),
        13: Seen(ProcessId(13, 77, BOOT), 9, "plain", None, 8),
        15: Seen(ProcessId(15, 77, BOOT), 9, "ends", None, -1),
    }
    assert ProcessId(15, 77, BOOT).alive(tmp_path)
    assert [ProcessId(10, 77, boot).alive(tmp_path) for boot in (BOOT, "b1")] == [True, False]
    assert [ProcessId(pid, 77, BOOT).alive(tmp_path) for pid in (11, 12, 14)] == [False] * 3


@pytest.mark.parametrize("text", ["", "1", "2:1-1:1-1:s", "1:1-1:1-1:", "1:1-1:1:s", "1:-1-1:1-1:s", "1:1-1:1-1:s\n"])
def test_a_token_that_is_none_is_no_proof(text: str) -> None:
    """Of another format, or not whole."""
    assert Token.read(text) is None


# --- the file -----------------------------------------------------------------------------------------------------


def roster(*children: object, **changes: object) -> str:
    """A file's text."""
    return json.dumps({"boot_id": BOOT, "owner": {"pid": 90, "start_ticks": 10}, "children": children} | changes)


CHILD = {"pid": 3000, "start_ticks": 60, "model": "m", "spawn": "s"}


@pytest.mark.parametrize(
    ("text", "believed", "said"),
    [
        ("", 0, "is damaged"),
        ("{", 0, "is damaged"),
        ("[" * 100_000, 0, "is damaged"),
        ("null", 0, "is damaged"),
        ('"\xff"', 0, "is damaged"),
        (roster(CHILD, owner=None), 0, "is damaged"),
        (roster(CHILD, owner={"pid": -1, "start_ticks": 1}), 0, "is damaged"),
        (roster(children=7), 0, "is damaged"),
        (roster(CHILD), 1, ""),
        (
            roster(CHILD, CHILD | {"pid": 1}, CHILD | {"pid": -3}, CHILD | {"pid": True}),
            1,
            "3 of 4 entries make no sense",
        ),
        (roster(5, None, {}, CHILD | {"start_ticks": "1"}, CHILD | {"pid": 2**70}, CHILD), 1, "5 of 6"),
        (" " * LONGEST_BYTES + roster(CHILD), 0, "longer than any of ours"),
        (roster(*[CHILD] * 20_000), 0, "longer than any of ours"),
    ],
)
def test_B11_a_file_that_makes_no_sense_is_told_and_not_believed(
    tmp_path: Path, text: str, believed: int, said: str
) -> None:
    """Damaged, cut off, negative numbers, process 1, far too long."""
    (tmp_path / "children.json").write_text(text, encoding="latin-1")
    entries, problems = read_roster(tmp_path)
    assert len(entries) == believed
    assert len(problems) == bool(said)
    assert all(said in problem for problem in problems)


def test_a_file_that_is_no_file_is_told(tmp_path: Path) -> None:
    """Missing is nothing to tell."""
    assert read_roster(tmp_path) == ((), ())
    (tmp_path / "children.json").mkdir()
    assert "cannot be read (Is a directory)" in read_roster(tmp_path)[1][0]
    (tmp_path / "children.json").rmdir()
    os.mkfifo(tmp_path / "children.json")
    assert "is damaged" in read_roster(tmp_path)[1][0], "and nobody waits for what is written into a pipe"


def test_what_runs_is_noted_and_struck_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whole at any moment; a disk that refuses is said once, until it takes something again."""
    run = tmp_path / "run"
    run.mkdir()
    noted, us = Roster(run), ProcessId.of_child(os.getpid())
    with sleeper() as first:
        child = ProcessId.of_child(first.pid)
        leave = noted.enter("org/m", "s-1", child)
        assert read_roster(run) == ((Entry(child, us, "org/m", "s-1"),), ())
        leave()
    assert read_roster(run) == ((), ())
    (run / "children.json.new").mkdir()
    noted.write()
    noted.write()
    assert [record.message for record in caplog.records] == [
        f"{run}/children.json cannot be written (Is a directory): it does not say what runs now"
    ]
    (run / "children.json.new").rmdir()
    noted.write()
    (run / "children.json.new").mkdir()
    noted.write()
    assert len(caplog.records) == 2


# --- real processes -----------------------------------------------------------------------------------------------


def _is_there(pid: int) -> bool:
    """Whether it has become what its line says, or stands. Before that it is a shell, and in between it shows no
    environment."""
    fields = stat_fields(pid)
    return fields is None or fields[STATE] == "T" or fields[NAME] not in {"sh", "setsid"}


@contextmanager
def orphaned(line: str, env: dict[str, str]) -> Iterator[int]:
    """A process whose parent has gone, and that stands still or not as its line says; killed at the end."""
    argv = ["/bin/sh", "-c", f"setsid /bin/sh -c '{line}' </dev/null >/dev/null 2>&1 & echo $!"]
    pid = int(subprocess.run(argv, env={"PATH": "/usr/bin:/bin", **env}, capture_output=True, check=True).stdout)
    handle = os.pidfd_open(pid)
    try:
        for _ in range(round(PATIENCE_SECONDS / 0.01)):
            if "exec" not in line or _is_there(pid):
                break
            threading.Event().wait(0.01)
        yield pid
    finally:
        if not gone([handle], 0.0):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)


def test_B10_B11_orphans_are_ended_and_nobody_else(tmp_path: Path) -> None:
    """One that stands still, one noted without a token; left alone: a reused number, ours, another directory's."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "gridsched-0123456789abcdef.sock").touch()
    (run / "gridsched-folder.sock").mkdir()
    (run / "notes.txt").touch()
    former = subprocess.Popen(["/bin/true"])
    former_id = ProcessId.of_child(former.pid)
    former.wait()
    ours = str(Token(directory_id(tmp_path), former_id.pid, former_id.start_ticks, "s"))
    others_ = str(Token("9-9", former_id.pid, former_id.start_ticks, "s"))
    with (
        orphaned("kill -STOP $$; exec sleep 60", {"GRIDSCHED_ENGINE": ours}) as standing,
        orphaned("exec sleep 60", {}) as noted,
        orphaned("exec sleep 60", {"GRIDSCHED_ENGINE": others_}) as foreign,
        sleeper() as innocent,
        watched([standing, noted, foreign, innocent.pid]) as pidfds,
    ):
        owner = {"pid": former_id.pid, "start_ticks": former_id.start_ticks}
        facts = [(noted, 0), (innocent.pid, -1), (os.getpid(), 0), (os.getppid(), 0)]
        children = [
            CHILD | {"pid": pid, "start_ticks": ProcessId.of_child(pid).start_ticks + off} for pid, off in facts
        ]
        (run / "children.json").write_text(roster(*children, owner=owner, boot_id=boot_id()), encoding="utf-8")
        said: list[str] = []
        sweep(tmp_path, run, said.append)
        assert [gone([pidfd], 0.0) for pidfd in pidfds] == [True, True, False, False]
        left = f"was ended: it was left by a server (process {former.pid}) that is gone"
        assert said[0] == f"process {innocent.pid} is another one than was noted for m in {run}: it is left alone"
        assert [sentence.partition(" (")[2] for sentence in said[1:]] == [
            f"process {pid}) {left}" for pid in sorted((standing, noted))
        ]
        assert sorted(path.name for path in run.iterdir()) == ["children.json", "gridsched-folder.sock", "notes.txt"]
        assert read_roster(run) == ((), ())


def test_P2_a_living_servers_engines_keep_their_sockets_where_its_lock_was_taken_away(tmp_path: Path) -> None:
    """Its chats go on; the next server says whose the directory is."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "gridsched-1.sock").touch()
    said: list[str] = []
    with sleeper() as owner:
        them = ProcessId.of_child(owner.pid)
        carried = str(Token(directory_id(tmp_path), them.pid, them.start_ticks, "s"))
        with orphaned("exec sleep 60", {"GRIDSCHED_ENGINE": carried}) as engine, watched([engine]) as pidfds:
            sweep(tmp_path, run, said.append)
            assert not gone(pidfds, 0.0)
    assert (run / "gridsched-1.sock").exists()
    assert ["another server serves" in sentence for sentence in said] == [True]
    sweep(tmp_path, run, said.append)
    assert not (run / "gridsched-1.sock").exists()


def _gone_owner(data_dir: Path) -> str:
    """What an engine of a server of that directory carries, which is gone."""
    former = subprocess.Popen(["/bin/true"])
    owner = ProcessId.of_child(former.pid)
    former.wait()
    return str(Token(directory_id(data_dir), owner.pid, owner.start_ticks, "s"))


def test_B10_many_orphans_are_ended_with_few_descriptors(tmp_path: Path) -> None:
    """As of a wrapper that has gone wild; a start is not buried under its lines either."""
    (tmp_path / "run").mkdir()
    line = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sleep 60 & done; echo >$READY; wait"
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    carried = {"GRIDSCHED_ENGINE": _gone_owner(tmp_path), "READY": str(ready)}
    with orphaned(line, carried) as wild:
        ready.read_text(encoding="ascii")
        pids = [pid for pid, each in read_processes().items() if each.parent == wild]
        with watched([wild, *pids]) as pidfds:
            said: list[str] = []
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(pidfds) + 5, hard))
            try:
                sweep(tmp_path, tmp_path / "run", said.append)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert len(pidfds) == 21
            assert gone(pidfds, 0.0)
    assert said[-1] == "and 13 more of that kind"


def test_B10_what_an_orphan_starts_at_its_end_is_ended_too(tmp_path: Path) -> None:
    """A wrapper that answers SIGTERM with another engine."""
    (tmp_path / "run").mkdir()
    mark = _gone_owner(tmp_path)
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    line = 'trap "setsid sleep 60 & exit" TERM; echo >$READY; while :; do sleep 0.01; done'
    with orphaned(line, {"GRIDSCHED_ENGINE": mark, "READY": str(ready)}):
        ready.read_text(encoding="ascii")
        said: list[str] = []
        sweep(tmp_path, tmp_path / "run", said.append)
    assert [each for each in read_processes().values() if str(each.token) == mark] == []
    assert len(said) > 1


def test_B10_who_is_becoming_another_program_is_still_known(tmp_path: Path) -> None:
    """In the middle of that the kernel shows no environment; the one that was there before it is there behind it."""
    again = tmp_path / "again"
    again.write_text(f"exec /bin/sh {again}\n", encoding="utf-8")
    carried = token(GONE)
    with subprocess.Popen(["/bin/sh", again], env={"GRIDSCHED_ENGINE": carried}) as restless:
        try:
            looks = {str(Token.of(restless.pid)) for _ in range(2000)}
        finally:
            restless.kill()
    assert looks == {carried}


def test_P4_another_namespaces_proc_proves_nothing(tmp_path: Path) -> None:
    """Its numbers are other processes' here: nobody is found, and so nobody is signalled."""
    (tmp_path / "self").symlink_to("1")
    rest = "1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 77 0 0"
    laid_out(tmp_path, 10, f"10 (engine) S 1 {rest}")
    assert ProcessId.of(10, tmp_path) is None
    assert not ProcessId(10, 77, "").alive(tmp_path)
    (tmp_path / "self").unlink()
    (tmp_path / "self").symlink_to(str(os.getpid()))
    assert ProcessId.of(10, tmp_path) == ProcessId(10, 77, "")
    assert ProcessId(10, 77, "").alive(tmp_path)


@pytest.mark.slow
def test_B10_what_outlives_server_and_guard_is_ended_at_the_next_start(tmp_path: Path) -> None:
    """Both are killed, as a service manager may. The kernel has ended the children; what they started is left."""
    with server(tmp_path, "stay", "") as (process, (guard, *pids)), watched([guard, *pids]) as pidfds:
        os.kill(guard, signal.SIGSTOP)
        process.kill()
        process.wait()
        os.kill(guard, signal.SIGKILL)
        assert gone(pidfds[:5], PATIENCE_SECONDS)
        assert not gone(pidfds[5:], 0.05)
        said: list[str] = []
        sweep(tmp_path / "data", tmp_path / "data" / "run", said.append, grace_seconds=0.1)
        assert gone(pidfds, 0.0)
    assert sum("was killed" in sentence for sentence in said) == 2  # deaf to SIGTERM, and what that one started
    assert all(f"left by a server (process {process.pid}) that is gone" in sentence for sentence in said)


def test_who_else_is_there_is_named(tmp_path: Path) -> None:
    """An engine of somebody else's, and what holds a card's memory; nobody of ours."""
    engine = tmp_path / "llama-server"
    engine.symlink_to("/bin/sleep")
    with subprocess.Popen([engine, "60"], process_group=0) as ours, orphaned(f"exec {engine} 60", {}) as foreign:
        named = others(tmp_path, {foreign: 3 << 30})
        assert f"(process {foreign}) is of nobody that is known and holds 3.0 GiB of the cards" in named[0]
        assert f"process {ours.pid})" not in str(named)
        end = f"(process {foreign}) is of nobody that is known and uses the cards: it is left alone"
        assert others(tmp_path, {foreign: 0})[0].endswith(end)
        ours.kill()


def test_what_one_owner_has_is_one_line(tmp_path: Path) -> None:
    """With how many they are and what they hold together; of nobody's processes each has its own."""
    proc = tmp_path / "proc"
    rest = "3 3 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {ticks} 0 0"
    (proc / "sys" / "kernel" / "random").mkdir(parents=True)
    (proc / "sys" / "kernel" / "random" / "boot_id").write_text(BOOT, encoding="utf-8")
    laid_out(proc, LIVE[0], f"{LIVE[0]} (gridsched) S 1 {rest.format(ticks=LIVE[1])}")
    for pid, name in ((200, "sh"), (201, "llama-server"), (202, "llama-server")):
        laid_out(proc, pid, f"{pid} ({name}) S 1 {rest.format(ticks=60)}", f"GRIDSCHED_ENGINE={token(LIVE)}".encode())
    for pid in (300, 301):
        laid_out(proc, pid, f"{pid} (llama-server) S 1 {rest.format(ticks=60)}")
    many = "they are left alone"
    assert others(tmp_path, {201: 1 << 30, 202: 2 << 30, 301: 5 << 30}, proc) == [
        "llama-server (process 301) is of nobody that is known and holds 5.0 GiB of the cards: it is left alone",
        "3 processes (llama-server, sh) are of the server of process 91 and hold 3.0 GiB of the cards: " + many,
        "llama-server (process 300) is of nobody that is known: it is left alone",
    ]


def test_an_empty_file_says_that_nothing_runs(tmp_path: Path) -> None:
    """Which is what the next start begins with."""
    (tmp_path / "run").mkdir()
    empty_roster(tmp_path / "run")
    assert read_roster(tmp_path / "run") == ((), ())
