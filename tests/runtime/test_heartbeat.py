"""The heartbeat: a beat a second while the actor steps, none when it does not, and the file that says it."""

import json
import os
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from gridsched.core.commands import Command, GrantStep
from gridsched.core.events import JobSubmitted
from gridsched.core.policy import Policy
from gridsched.core.scheduler import Scheduler
from gridsched.engine.identity import start_ticks
from gridsched.runtime.actor import Actor
from gridsched.runtime.decisions import DecisionLog
from gridsched.runtime.heartbeat import FILE_BYTES, Beat, HeartbeatFile, Phase, heartbeat
from tests.runtime.inside import BIG, inside
from tests.support.fakes import StandingClock


def actor_of(carry_out: object) -> Actor:
    """One with nothing to schedule on."""
    return Actor(Scheduler(Policy()), carry_out, DecisionLog(), StandingClock())  # type: ignore[arg-type]  # a callable


async def beats_of(actor: Actor, seconds: float) -> list[Beat]:
    """The beats in so many virtual seconds."""
    beats: list[Beat] = []
    with trio.move_on_after(seconds):
        await heartbeat(actor.pulse, lambda: Phase.READY, lambda: 3, beats.append)
    return beats


async def test_a_server_beats_once_a_second_and_says_how_it_does(autojump_clock: MockClock) -> None:
    """From its first second to its last, with the requests that wait or run, and that it drains."""
    beats: list[Beat] = []
    async with inside(autojump_clock, beat=beats.append) as server:
        await trio.sleep(9.5)
        server.come(server.job(BIG), tokens=600)
        await server.until("dispatch")
        await trio.sleep(1.0)
        server.runtime.begin_drain()
        await trio.sleep(1.0)
        seen = len(beats)
        await trio.sleep(10.0)
        assert len(beats) == seen + 10
    assert [beat.seq for beat in beats] == list(range(1, len(beats) + 1))
    assert beats[8] == Beat(9, Phase.READY, 0)
    assert Beat(seen, Phase.DRAINING, 1) in beats


async def test_an_actor_that_does_not_step_beats_no_more(autojump_clock: MockClock) -> None:
    """Its task has ended, and everything else goes on: not one beat in ten minutes."""
    actor = actor_of(lambda _: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(actor.run)
        assert len(await beats_of(actor, 4.5)) == 5
        nursery.cancel_scope.cancel()
    assert await beats_of(actor, 600.0) == []
    assert autojump_clock.current_time() == 604.5


async def test_a_pulse_ends_after_what_was_asked_for_before_it(autojump_clock: MockClock) -> None:
    """While a command is being carried out there is no beat: an actor that hangs in one is seen."""
    order: list[str] = []
    async with inside(autojump_clock, beat=lambda _: order.append("beat")) as server:
        await server.ask(server.job(BIG))
        carry_out = server.runtime._actor._carry_out

        def watched(command: Command) -> None:
            carry_out(command)
            if isinstance(command, GrantStep):
                order.append("granted")

        server.runtime._actor._carry_out = watched
        await trio.sleep(0.5)
        order.clear()
        server.runtime.post(JobSubmitted(server.job(BIG)))
        await server.runtime._actor.pulse()
        assert order == ["granted"]


async def test_a_step_that_raises_ends_the_actor_without_a_beat() -> None:
    """A bug: nobody is told that all is well."""
    beats: list[Beat] = []
    actor = actor_of(lambda _: None)
    actor.scheduler.step = lambda _event, _now: 1 / 0  # type: ignore[method-assign, assignment, return-value]  # a bug
    with pytest.RaisesGroup(ZeroDivisionError):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(actor.run)
            nursery.start_soon(heartbeat, actor.pulse, lambda: Phase.READY, lambda: 0, beats.append)
    assert beats == []


def read(path: Path) -> dict[str, object]:
    """What the file says."""
    said = json.loads(path.read_bytes())
    assert isinstance(said, dict)
    return said


def test_the_file_says_who_beats_and_when(tmp_path: Path) -> None:
    """One JSON object of a fixed length, written over the one before; readable by its owner alone."""
    path = tmp_path / "run" / "heartbeat"
    file = HeartbeatFile(path)
    assert not path.exists()
    file.starting(1234)
    first = read(path)
    assert (first["seq"], first["phase"], first["port"], first["in_flight"]) == (0, "starting", 1234, 0)
    assert (first["pid"], first["start_ticks"]) == (os.getpid(), start_ticks(os.getpid()))
    file(Beat(1_000_000, Phase.DRAINING, 12_345))
    assert read(path) | {"wall": 0, "monotonic": 0} == first | {
        "seq": 1_000_000,
        "phase": "draining",
        "in_flight": 12_345,
        "wall": 0,
        "monotonic": 0,
    }
    assert (path.stat().st_size, path.stat().st_mode & 0o777) == (FILE_BYTES, 0o600)
    file(Beat(2, Phase.READY, 0))
    assert read(path)["seq"] == 2


def test_a_file_that_was_tidied_away_is_made_anew(tmp_path: Path) -> None:
    """With its folder."""
    path = tmp_path / "run" / "heartbeat"
    file = HeartbeatFile(path)
    file.starting(1)
    path.unlink()
    path.parent.rmdir()
    file(Beat(7, Phase.READY, 0))
    assert read(path)["seq"] == 7


def test_a_file_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    """A full disk, then one with room again; a folder in its place; a link or a pipe that somebody has put there."""
    full = HeartbeatFile(Path("/dev/full"))
    full(Beat(1, Phase.READY, 0))
    (tmp_path / "heartbeat").mkdir()
    HeartbeatFile(tmp_path / "heartbeat")(Beat(1, Phase.READY, 0))
    target = tmp_path / "a file of somebody's"
    target.write_text("theirs")
    (tmp_path / "link").symlink_to(target)
    HeartbeatFile(tmp_path / "link")(Beat(1, Phase.READY, 0))
    os.mkfifo(tmp_path / "pipe")
    HeartbeatFile(tmp_path / "pipe")(Beat(1, Phase.READY, 0))
    assert target.read_text() == "theirs"
