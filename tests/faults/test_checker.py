"""The check behind every test here sees each fault that it is there for: one that cannot fail is no check."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.bench import (
    MARK,
    Bench,
    Served,
    _wrong_with_processes,
    _wrong_with_status,
    leavings,
    own_children,
    settle,
)
from tests.faults.conftest import Start
from tests.support.gateway import Gateway

pytestmark = pytest.mark.slow


@pytest.fixture
def bench(start: Start) -> Bench:
    """A gateway that serves one model."""
    return start({"m": Served()})


def said(bench: Bench, words: str) -> bool:
    """Whether one of the sentences has these words."""
    return any(words in sentence for sentence in leavings(bench))


def test_everything_that_can_be_left_is_seen(bench: Bench) -> None:
    """Work in flight, a process of nobody's, a file too many, a traceback: each is told, and else nothing."""
    assert bench.chat("m").status == 200
    assert settle(bench) == []
    bench.tell("m", tokens_per_second=20)
    with bench.streamed("m", max_tokens=4000):
        bench.until(lambda: said(bench, "in flight"), "the running chat is seen")
        assert said(bench, "1 slots busy")
    with stray(bench.mark):
        bench.until(lambda: said(bench, "is nobody's"), "a process of nobody's is seen")
    crowd = [bench.connect() for _ in range(5)]
    for connection in crowd:
        connection.request("GET", "/health")
        connection.getresponse().read()
    assert said(bench, "more files are open")
    for connection in crowd:
        connection.close()
    assert settle(bench) == []
    log = bench.gateway.log.read_text(encoding="utf-8")
    with bench.gateway.log.open("a", encoding="utf-8") as file:
        file.write("Traceback (most recent call last):\n")
    assert leavings(bench) == ["its log has a traceback"]
    bench.gateway.log.write_text(log, encoding="utf-8")


def test_an_engine_behind_a_dead_gateway_is_seen(bench: Bench) -> None:
    """A process with the mark is looked for even where its gateway has ended."""
    bench.gateway.stop()
    assert settle(bench) == []
    with stray(bench.mark):
        bench.until(lambda: said(bench, "is nobody's"), "it is seen")


PARENT = """
import os, sys
ended = os.fork() or os._exit(0)
goes_on = os.fork() or sys.stdin.read() or os._exit(0)
os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
print(ended, goes_on, flush=True)
sys.stdin.read()
"""


def test_what_is_wrong_with_a_gateways_own_children_is_seen(tmp_path: Path) -> None:
    """One that has ended and that it has not waited for, one that is no engine, and an engine that does not live."""
    argv = [sys.executable, "-ISc", PARENT]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        ended, goes_on = parent.stdout.readline().split()
        bench = Bench(Gateway(parent, "", tmp_path / "log"), tmp_path, "no mark")
        wrong = "\n".join(_wrong_with_processes(bench, {"instances": [READY]}))
    for sentence in (f"process {ended} is a zombie", f"process {goes_on} (", "is no engine", "0 engines live, 1 are"):
        assert sentence in wrong


def test_a_child_of_the_test_itself_is_seen_also_as_a_zombie() -> None:
    """Nobody has waited for it: it is listed until somebody does."""
    before = set(own_children(set()))
    pid = os.posix_spawn(sys.executable, [sys.executable, "-ISc", ""], {})
    try:
        assert own_children(before) == [pid]
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert own_children(before) == [pid]
    finally:
        os.waitpid(pid, 0)
    assert own_children(before) == []


READY = {"model": "m", "state": "ready", "slots": {"busy": 0}, "reserved_bytes": 7}
IDLE = {"running": 0, "length": 0}


def test_what_is_wrong_in_the_books_is_seen() -> None:
    """Jobs that wait, instances that never end, memory that nobody holds."""
    card = {"reserved_bytes": 7, "freeing_bytes": 0}
    good = {"queues": {"batch": IDLE}, "instances": [READY], "devices": [card]}
    assert list(_wrong_with_status(good)) == []
    assert list(_wrong_with_status(good | {"queues": {"batch": {"running": 0, "length": 2}}}))
    assert list(_wrong_with_status(good | {"instances": [READY | {"state": "draining"}]}))
    assert list(_wrong_with_status(good | {"instances": []}))
    assert list(_wrong_with_status(good | {"instances": [READY, READY | {"reserved_bytes": 0}]}))
    assert list(_wrong_with_status(good | {"devices": [card | {"freeing_bytes": 1}]}))


def stray(mark: str) -> subprocess.Popen[bytes]:
    """A process with the mark that the gateway did not start; it lasts as long as its block."""
    return subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, env={MARK: mark})
