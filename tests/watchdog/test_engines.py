"""Engines: found by proof, ended with or without the gateway, and nobody else with them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gridsched.engine import identity
from gridsched.engine.identity import ProcessId as TheirProcessId
from gridsched.engine.identity import Token, directory_id
from gridsched.watchdog.engines import VARIABLE, Engines, boot_id
from gridsched.watchdog.mcp import ToolFailure
from gridsched.watchdog.places import Places
from gridsched.watchdog.processes import identify
from gridsched.watchdog.watch import Watch
from tests.watchdog.conftest import Bench, gateway_command, until

Begin = Callable[..., subprocess.Popen[bytes]]
SLEEP = "import signal, sys; sys.stdout.write('x'); sys.stdout.flush(); signal.pause()"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Starts processes that wait; all are gone afterwards."""
    started: list[subprocess.Popen[bytes]] = []

    def start(token: str = "", code: str = SLEEP, *words: str) -> subprocess.Popen[bytes]:
        environ = dict(os.environ) | ({VARIABLE: token} if token else {})
        argv = (sys.executable, "-S", "-c", code, *words)
        process = subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.read(1)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def token(places: Places, owner: int, spawn: str = "gridsched-1") -> str:
    """As the gateway writes it."""
    process = TheirProcessId.of_child(owner)
    return str(Token(directory_id(places.data), process.pid, process.start_ticks, spawn))


def note(places: Places, owner: int, *children: object, boot: str | None = None) -> None:
    """`children.json` as the gateway writes it."""
    process = TheirProcessId.of_child(owner)
    said = {
        "boot_id": boot_id() if boot is None else boot,
        "owner": {"pid": process.pid, "start_ticks": process.start_ticks},
        "children": children,
    }
    places.children.parent.mkdir(exist_ok=True)
    places.children.write_text(json.dumps(said), encoding="utf-8")


def child(process: subprocess.Popen[bytes], model: str = "chat", spawn: str = "gridsched-1") -> dict[str, object]:
    """One entry of it."""
    found = identify(process.pid)
    assert found is not None
    return {"pid": found.pid, "start_ticks": found.start_ticks, "model": model, "spawn": spawn}


def gone(places: Places) -> str:
    """The token of a gateway that has ended."""
    return f"1:{directory_id(places.data)}:{os.getpid()}-1:gridsched-1"


def test_engines_are_found_by_what_they_carry_and_by_what_was_noted(places: Places, begin: Begin) -> None:
    """The token, which whatever an engine starts inherits; the file, for one whose environment nobody may read."""
    noted, carrying = begin(), begin(token(places, os.getpid()), SLEEP, "--alias", "embed")
    unnamed = begin(token(places, os.getpid(), "gridsched-2"), SLEEP, "--alias", "other")
    note(places, os.getpid(), child(noted), child(carrying, "embed"))
    found = {engine.process.pid: engine for engine in Engines(places).find()}
    assert {pid: (engine.model, engine.proof, engine.is_orphan) for pid, engine in found.items()} == {
        noted.pid: ("chat", "children.json", False),
        carrying.pid: ("embed", "token", False),
        unnamed.pid: ("other", "token", False),
    }


@pytest.mark.parametrize(
    "entry",
    [
        {"pid": 1, "start_ticks": 1, "model": "m", "spawn": "s"},
        {"pid": -5, "start_ticks": 1, "model": "m", "spawn": "s"},
        {"pid": 2**40, "start_ticks": 1, "model": "m", "spawn": "s"},
        {"pid": True, "start_ticks": 1, "model": "m", "spawn": "s"},
        {"pid": os.getppid(), "start_ticks": 1, "model": "m", "spawn": "s"},
        {"pid": "7", "start_ticks": 1, "model": "m", "spawn": "s"},
        {"pid": os.getpid(), "start_ticks": 1, "model": 5, "spawn": None},
        [],
        None,
    ],
)
def test_an_entry_that_makes_no_sense_is_nobody_s(places: Places, entry: object) -> None:
    """The first process, a reused number, another type: none of them is an engine."""
    note(places, os.getpid(), entry)
    assert Engines(places).find() == []


def test_a_note_of_another_boot_or_a_damaged_one_proves_nothing(places: Places, begin: Begin) -> None:
    """Numbers and ticks begin anew with the machine."""
    process = begin()
    note(places, os.getpid(), child(process), boot="another")
    assert Engines(places).find() == []
    for said in ("", "{", "[]", '{"children": 5}', "\0" * 100, '{"boot_id": 1, "owner": [], "children": [[[]]]}'):
        places.children.write_text(said, encoding="utf-8")
        assert Engines(places).find() == []


def test_a_model_is_ended_by_name_and_the_others_stay(places: Places, begin: Begin) -> None:
    """A dry run shows it first; one that does not hear SIGTERM, or stands still, ends too."""
    bench = Bench(places, runs=False)
    chat = begin(token(places, os.getpid()), SLEEP, "--alias", "Chat")
    other = begin(token(places, os.getpid(), "gridsched-2"), SLEEP, "--alias", "other")
    innocent = begin()
    os.kill(chat.pid, signal.SIGSTOP)
    shown = bench.tools.call("kill_model", {"model": "chat", "dry_run": True})
    assert [each["pid"] for each in shown["would_end"]] == [chat.pid]
    assert chat.poll() is None
    said = bench.tools.call("kill_model", {"model": "chat"})
    assert [(each["pid"], each["model"]) for each in said["ended"]] == [(chat.pid, "Chat")]
    assert (said["still_alive"], said["by_gateway"]) == ([], False)
    assert chat.wait(30) == -signal.SIGTERM
    assert (other.poll(), innocent.poll()) == (None, None)
    with pytest.raises(ToolFailure, match="loaded here: other"):
        bench.tools.call("kill_model", {"model": "chat"})


def test_only_engines_without_a_gateway_are_reclaimed(places: Places, begin: Begin) -> None:
    """Those of a living gateway, of another data directory, and other programs are left alone."""
    bench = Bench(places, runs=False)
    orphan, ours = begin(gone(places)), begin(token(places, os.getpid()))
    elsewhere = begin(f"1:1-1:{os.getpid()}-1:gridsched-1")
    said = bench.tools.call("reclaim_orphan_engines", {"dry_run": True})
    assert [each["pid"] for each in said["would_end"]] == [orphan.pid]
    said = bench.tools.call("reclaim_orphan_engines", {})
    assert [each["pid"] for each in said["ended"]] == [orphan.pid]
    assert orphan.wait(30) == -signal.SIGTERM
    said = bench.tools.call("nuke_all_models", {})
    assert [each["pid"] for each in said["ended"]] == [ours.pid]
    assert elsewhere.poll() is None


def test_one_that_does_not_hear_is_killed(places: Places, begin: Begin) -> None:
    """SIGKILL after the grace."""
    stubborn = begin(gone(places), STUBBORN)
    said: dict[str, Any] = Engines(places, 0.1).kill_all(dry_run=False)
    assert said["still_alive"] == []
    assert stubborn.wait(30) == -signal.SIGKILL


def test_one_that_may_not_be_signalled_is_not_said_to_have_ended(
    places: Places, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A security module refuses it: it lives, and keeps its memory."""

    def refuse(*_: object) -> None:
        raise PermissionError

    process = begin(gone(places))
    monkeypatch.setattr("signal.pidfd_send_signal", refuse)
    monkeypatch.setattr("gridsched.watchdog.processes.REAP_SECONDS", 0.01)
    said = Engines(places, 0.01).kill_all(dry_run=False)
    assert said["ended"] == []
    assert [each["pid"] for each in said["still_alive"]] == [process.pid]


@pytest.mark.parametrize("words", ["", "unloads", "unloads keyed"])
def test_the_gateway_is_asked_first_and_what_it_leaves_is_ended(places: Places, begin: Begin, words: str) -> None:
    """Its own unload drains and is no crash to it, and has begun when it is answered (202); with API keys it is asked
    with this machine's credential. Where it has none, or does not manage, it is done directly."""
    engine = begin(token(places, os.getpid()), SLEEP, "--alias", "chat")
    (places.cwd / "gridsched.yaml").write_text(words, encoding="utf-8")
    places.admin_token.write_text("the admin token")
    environ = {**places.environ, "FAKE_ENGINES": str(engine.pid)}
    with subprocess.Popen(gateway_command(places), env=environ, stdout=subprocess.DEVNULL) as gateway:
        try:
            watch = Watch(places, 30.0)
            until(lambda: watch.look().healthy)
            said = Engines(places).kill_model("chat", watch.last(), dry_run=False)
            assert said["by_gateway"] is bool(words)
            assert engine.wait(30) == -signal.SIGTERM
        finally:
            gateway.kill()  # what has failed here must not wait for it


def test_our_formats_are_the_gateway_s(places: Places) -> None:
    """The token and the boot are written in both places."""
    assert VARIABLE == identity.VARIABLE
    assert TheirProcessId.of_child(os.getpid()).boot_id == boot_id()
    mine = identify(os.getpid())
    assert mine is not None
    assert TheirProcessId.of_child(os.getpid()).start_ticks == mine.start_ticks
    assert Token.read(token(places, os.getpid())) is not None
