"""P2: however a server dies, nothing of its engines outlives it. Real processes, killed for real."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import trio

from gridsched.engine.child import Child
from gridsched.engine.guard import PROGRAM
from gridsched.engine.identity import ProcessId
from gridsched.engine.logs import RotatedLog
from gridsched.engine.roster import Roster
from tests.engine.conftest import PATIENCE_SECONDS
from tests.support.processes import gone, watched

WITHIN_SECONDS = 1.0

# A server in miniature: children as the engine folder starts them, and what they print; then it stays, or ends.
SERVER = """
import signal, sys, trio
from functools import partial
from pathlib import Path
from gridsched.engine.child import Child
from gridsched.engine.guard import guard
from gridsched.engine.identity import ProcessId
from gridsched.engine.logs import RotatedLog
from gridsched.engine.roster import Roster

LINES = {
    "plain": "exec sleep 60",
    "stopped": "exec sleep 60",
    "wrapper": "(trap '' TERM; sleep 60; sleep 60) & echo $!; trap '' TERM; wait",
    "left its group": "setsid sleep 60 & echo $!; wait",
}

async def main(folder, stay, outside):
    (folder / "data" / "run").mkdir(parents=True)
    roster = Roster(folder / "data" / "run")
    children = []
    for name, line in LINES.items():
        env = {"PATH": "/usr/bin:/bin", **roster.environment("spawn")}
        log = RotatedLog(folder / "log")
        child = await Child.spawn(["/bin/sh", "-c", line], env, log, partial(roster.enter, name, "spawn"))
        while "echo" in line and not child.tail():
            await trio.sleep(0.01)
        if name == "stopped":
            child.signal(signal.SIGSTOP)
        children.append(child)
    if outside:
        guard().watch(ProcessId.of_child(int(outside)))
    grandchildren = [pid for child in children for pid in child.tail()]
    first = guard().pid
    print(first, *(child.pid for child in children), *grandchildren, flush=True)
    if stay:
        while guard().pid in (first, None):
            await trio.sleep(0.01)
        print(guard().pid, flush=True)
        await trio.sleep_forever()
    for child in children:
        await child.end(0.0)

trio.run(main, Path(sys.argv[1]), sys.argv[2] == "stay", sys.argv[3])
"""


@contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process of nobody's concern, in a group of its own."""
    process = subprocess.Popen(["/bin/sleep", "60"], process_group=0)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def said(process: subprocess.Popen[str]) -> list[int]:
    """The numbers of the next line, which does not take for ever."""
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], PATIENCE_SECONDS)[0]
    return [int(word) for word in process.stdout.readline().split()]


@contextmanager
def server(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A server in miniature, and its guard, its children and their children."""
    argv = [sys.executable, "-W", "error", "-c", SERVER, str(folder), *words]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL) as process:
        try:
            yield process, said(process)
        finally:
            process.kill()


def open_files(pid: int) -> Iterator[str]:
    """What a process has open; what it closes while it is looked at is left out."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            yield str(descriptor.readlink())


@pytest.mark.slow
def test_P2_whatever_a_killed_server_had_started_is_gone_within_a_second(tmp_path: Path) -> None:
    """A plain child, one that stands still, a wrapper and what it started deaf to SIGTERM, and what left its group. The
    guard was killed before, too: the next one knows all that it knew, and is no child that a signal to us reaches."""
    with sleeper() as outside, server(tmp_path, "stay", str(outside.pid)) as (process, (first, *pids)):
        assert len(pids) == 6
        os.kill(first, signal.SIGKILL)
        (second,) = said(process)
        assert os.getsid(second) == second
        assert [file for file in open_files(second) if file.startswith(("socket:", str(tmp_path)))] == []
        os.kill(second, signal.SIGTERM)
        os.kill(second, signal.SIGINT)
        with watched([*pids, second, outside.pid]) as pidfds:
            assert not gone(pidfds[-2:-1], 0.05)
            process.kill()
            assert gone(pidfds, WITHIN_SECONDS)


@pytest.mark.slow
def test_P2_the_guard_ends_with_a_server_that_ends_well(tmp_path: Path) -> None:
    """Nothing is left of either, and nothing is said to be running."""
    with server(tmp_path, "end", "") as (process, (guard, *pids)), watched([guard]) as pidfds:
        assert process.wait(PATIENCE_SECONDS) == 0
        assert gone(pidfds, PATIENCE_SECONDS)
        assert [pid for pid in pids if (found := ProcessId.of(pid)) and found.alive()] == []
        assert b'"children": []' in (tmp_path / "data" / "run" / "children.json").read_bytes()


@contextmanager
def bare_guard(owner: str = "1-1") -> Iterator[subprocess.Popen[bytes]]:
    """The program alone, told what a test tells it."""
    argv = [sys.executable, "-I", "-S", str(PROGRAM), owner]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as process:
        yield process


def tell(process: subprocess.Popen[bytes], *lines: str) -> None:
    """Say so and be gone."""
    assert process.stdin is not None
    process.stdin.write("".join(f"{line}\n" for line in lines).encode())
    process.stdin.close()
    assert process.wait(PATIENCE_SECONDS) == 0


def test_B11_a_number_that_belongs_to_another_process_now_harms_nobody() -> None:
    """Its start is another. One that has been taken back is not touched either; the one that is meant is ended, with
    its group, whatever it has done to its environment."""
    with sleeper() as other, sleeper() as taken_back, sleeper() as meant:
        named = {each.pid: ProcessId.of_child(each.pid).start_ticks for each in (other, taken_back, meant)}
        lines = [f"+{other.pid} {named[other.pid] - 1}", f"+{taken_back.pid} {named[taken_back.pid]}"]
        lines += [f"-{taken_back.pid}", f"+{meant.pid} {named[meant.pid]}", "+999999999 1", "-5"]
        with bare_guard() as process:
            tell(process, *lines)
        assert meant.wait(PATIENCE_SECONDS) == -signal.SIGKILL
        assert (other.poll(), taken_back.poll()) == (None, None)


@pytest.mark.parametrize(
    ("token", "killed"),
    [
        ("1:5-5:77-88:s", True),
        ("1:5-5:77-89:s", False),
        ("1:5-5:177-88:s", False),
        ("1:77-88:5-5:s", False),  # a data directory whose device and inode are our number and start
        ("", False),
    ],
)
def test_P2_only_what_carries_this_servers_token_is_ended(token: str, killed: bool) -> None:
    """Another server's engines carry another owner; most processes carry nothing."""
    env = {"GRIDSCHED_ENGINE": token, "OTHER": ":77-88:"}
    with subprocess.Popen(["/bin/sleep", "60"], env=env) as process:
        with bare_guard("77-88") as guard:
            tell(guard)
        with watched([process.pid]) as pidfds:
            assert gone(pidfds, 0.0) == killed
        process.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start another user's process")
def test_P2_another_users_process_is_left_alone_whatever_token_it_carries() -> None:
    """Anybody can write anything into their own environment, and a server that root runs could end everybody's."""
    nobody = {"user": 65534, "group": 65534, "extra_groups": ()}
    env = {"GRIDSCHED_ENGINE": "1:5-5:77-88:s"}
    with subprocess.Popen(["/bin/sleep", "60"], env=env, **nobody) as process:
        with bare_guard("77-88") as guard:
            tell(guard)
        assert process.poll() is None
        process.kill()


async def test_P2_what_left_its_group_ends_with_the_rest_of_its_spawn(tmp_path: Path) -> None:
    """A script's daemon is in no group of ours, and would keep its memory until the next start."""
    (tmp_path / "run").mkdir()
    roster = Roster(tmp_path / "run")
    env = {"PATH": "/usr/bin:/bin", **roster.environment("spawn-1")}
    with sleeper() as other:
        line = "setsid sleep 60 & echo $!; exec sleep 60"
        register = partial(roster.enter, "m", "spawn-1")
        child = await Child.spawn(["/bin/sh", "-c", line], env, RotatedLog(tmp_path / "log"), register)
        with trio.fail_after(PATIENCE_SECONDS):
            while not child.tail():  # noqa: ASYNC110 - a thread fills it
                await trio.sleep(0.01)
        with watched([int(child.tail()[0]), other.pid]) as pidfds:
            await child.end(PATIENCE_SECONDS)
            assert gone(pidfds[:1], PATIENCE_SECONDS)
            assert not gone(pidfds[1:], 0.0)


ODD_GUARDS = """
import os, select, signal
from pathlib import Path
from gridsched.engine import guard as module
from gridsched.engine.identity import ProcessId

def wait_while(holds):
    for _ in range(3000):
        if not holds():
            return
        select.select([], [], [], 0.01)
    raise SystemExit("waited too long")

us, guard = ProcessId.of_child(os.getpid()), module.guard()
guard.watch(us)
first = guard.pid
os.kill(first, signal.SIGSTOP)
while guard.pid == first:  # and not once more: the next one takes a while to listen
    guard.watch(us)
print("another")
module.PROGRAM, second = Path(os.devnull), guard.pid
module.SHORT_SECONDS = 60.0  # on a busy machine an interpreter takes its time to fail
os.kill(second, signal.SIGKILL)
wait_while(lambda: guard.pid is not None or guard._short_lives < module.SHORT_LIVES)
print("none")
module.PROGRAM = Path(module.__file__).with_name("guard_program.py")
guard.watch(us)
print("another" if guard.pid is not None else "none")
"""


def test_P2_a_guard_that_does_not_listen_is_replaced_and_one_that_cannot_live_is_done_without() -> None:
    """It stands still until its pipe is full; or it dies as soon as it is started. Nothing is kept from starting."""
    argv = [sys.executable, "-c", ODD_GUARDS]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    assert done.stdout.split() == ["another", "none", "another"]
    assert done.stderr.count("has died; another one is started") >= 2
    assert done.stderr.count("dies as soon as it is started; going on without") == 1
