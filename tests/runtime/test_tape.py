"""A run on tape: every event comes back as it went in, and a scheduler that hears it again answers the same."""

import argparse
import os
import subprocess
import sys
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

import pytest
import trio
from trio.testing import MockClock

from gridsched.cli import replay
from gridsched.core.commands import Command
from gridsched.core.events import Event, GrantReturned, JobSubmitted
from gridsched.core.ids import GrantId, JobId, ModelName
from gridsched.core.job import Job, JobClass, JobKind
from gridsched.core.policy import Policy
from gridsched.core.scheduler import Scheduler
from gridsched.runtime.tape import EVENTS, Recorder, Tape, TapeError
from sim.faults import KINDS
from sim.workload import draw
from sim.world import World
from tests.support.front import House, serving

ROOT = Path(__file__).parents[2]


SIMPLE: Mapping[Any, object] = {bool: True, int: 2**40 + 1, float: 0.1 + 0.2, str: 'ü"\\\n\x00'}


def made(kind: Any) -> Any:
    """A value of a type with nothing left at its default: whatever the codec forgets would show."""
    if isinstance(kind, NewType):
        return made(kind.__supertype__)
    if get_origin(kind) is not None:
        return composed(get_origin(kind), get_args(kind))
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{one.name: made(hints[one.name]) for one in fields(kind) if one.init})  # type: ignore[operator]  # a class
    return list(kind)[-1] if issubclass(kind, Enum) else SIMPLE[kind]


def composed(origin: Any, args: tuple[Any, ...]) -> Any:
    """A union's first member, or something in a container."""
    if origin is tuple:
        return (made(args[0]), made(args[0])) if args[-1] is ... else tuple(made(one) for one in args)
    if origin is frozenset:
        return frozenset((made(args[0]),))
    if origin is Mapping:
        return {key: made(args[1]) for key in args[0]}
    assert origin in (Union, types.UnionType), origin
    return made(next(one for one in args if one is not type(None)))


def tape_of(path: Path, *heard: tuple[Event, tuple[Command, ...] | None]) -> None:
    """A tape of events at one second after the other."""
    recorder = Recorder(path, Policy(), pytest.fail)
    for number, (event, commands) in enumerate(heard):
        recorder.saw(event, float(number), commands)
    recorder.close()


def replayed(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """What the command says of a tape, and its exit code."""
    code = replay.main(argparse.Namespace(file=path, check=True))
    said = capsys.readouterr()
    return code, said.out + said.err


@pytest.mark.parametrize("name", EVENTS)
def test_every_event_comes_back_as_it_went_in(name: str, tmp_path: Path) -> None:
    """All that the union names, each with every field set; no codec names one of them."""
    event = made(EVENTS[name])
    tape_of(tmp_path / "t", (event, ()))
    (step,) = Tape(tmp_path / "t")
    assert step.event == event


def test_the_policy_comes_back_with_the_tape(tmp_path: Path) -> None:
    """A scheduler with other figures would answer otherwise."""
    policy = replace(made(Policy), background_share=0.25)
    Recorder(tmp_path / "t", policy, pytest.fail).close()
    assert Tape(tmp_path / "t").policy == policy


async def test_a_server_s_run_is_heard_again_with_the_same_answers(
    autojump_clock: MockClock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Chats, an embedding job and a client that leaves, on simulated hardware behind the real runtime."""

    async def leave_early(house: House) -> None:
        with trio.move_on_after(1.0):
            await house.ask(
                "POST", "/v1/embeddings", {"model": "sim-embed", "input": ["a"] * 500}, {"X-Class": "batch"}
            )

    recorder = Recorder(tmp_path / "t", Policy(), pytest.fail)
    chat = {"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 30}
    async with serving(autojump_clock, recorder=recorder) as house, trio.open_nursery() as nursery:
        for model in ("sim-chat-4b", "sim-chat-2b", "nobody"):
            nursery.start_soon(house.ask, "POST", "/v1/chat/completions", chat | {"model": model})
        nursery.start_soon(house.ask, "POST", "/v1/embeddings", {"model": "sim-embed", "input": ["a"] * 100})
        nursery.start_soon(leave_early, house)
    recorder.close()
    code, said = replayed(tmp_path / "t", capsys)
    assert code == 0, said
    assert said.endswith(" commands, the same\n")
    assert int(said.split()[0]) > 20


def test_a_run_full_of_faults_is_heard_again_with_the_same_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The simulator's own runs go on the same tape."""
    for seed in (3, 4):
        scenario = draw(seed, KINDS)
        recorder = Recorder(tmp_path / "t", scenario.policy, pytest.fail)

        class Tee:
            def saw(self, event: Event, commands: tuple[Command, ...], now: float) -> None:
                recorder.saw(event, now, commands)  # noqa: B023 - used inside its own round only

        World(scenario, Scheduler(scenario.policy), [Tee()]).run(400)
        recorder.close()
        code, said = replayed(tmp_path / "t", capsys)
        assert code == 0, said


@pytest.mark.slow
def test_no_order_of_a_set_gets_into_an_answer(tmp_path: Path) -> None:
    """Heard again under other hash seeds, in processes of their own, every answer is the same."""
    scenario = draw(8, KINDS)
    recorder = Recorder(tmp_path / "t", scenario.policy, pytest.fail)

    class Tee:
        def saw(self, event: Event, commands: tuple[Command, ...], now: float) -> None:
            recorder.saw(event, now, commands)

    World(scenario, Scheduler(scenario.policy), [Tee()]).run(1500)
    recorder.close()
    for hash_seed in ("1", "2", "77"):
        done = subprocess.run(
            [sys.executable, "-m", "gridsched", "replay", str(tmp_path / "t")],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_first_step_that_differs_is_shown_with_both_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tape of a scheduler that granted where this one refuses."""
    event = JobSubmitted(Job(JobId(1), ModelName("m"), JobClass.BATCH, JobKind.CHAT))
    tape_of(tmp_path / "t", (event, ()))
    code, said = replayed(tmp_path / "t", capsys)
    assert code == 1
    assert said.splitlines()[0].startswith("line 2, event 1 at 0.000000: JobSubmitted(")
    assert "here:\n  Log(" in said
    assert "RejectJob(" in said


def test_the_event_that_met_a_bug_is_on_the_tape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Heard again it meets the same one: a report that can be worked with."""
    tape_of(tmp_path / "t", (GrantReturned(GrantId(5)), None))
    code, said = replayed(tmp_path / "t", capsys)
    assert code == 0
    assert said == "1 events, the last of them ends in the same bug:\ngrant 5 is not outstanding\n"


def test_a_bug_that_is_not_on_the_tape_is_a_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The tape's scheduler went on, this one cannot; and the other way about."""
    tape_of(tmp_path / "t", (GrantReturned(GrantId(5)), ()))
    assert replayed(tmp_path / "t", capsys)[0] == 1
    event = JobSubmitted(Job(JobId(1), ModelName("m"), JobClass.BATCH, JobKind.CHAT))
    tape_of(tmp_path / "t", (event, None))
    code, said = replayed(tmp_path / "t", capsys)
    assert code == 1
    assert "ended in a bug on the tape" in said


def test_a_line_that_kill_cut_off_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At every byte of the last line."""
    path = tmp_path / "t"
    scheduler = Scheduler()
    event = made(EVENTS["TimerFired"])
    tape_of(path, (event, scheduler.step(event, 0.0)), (event, scheduler.step(event, 1.0)))
    whole = path.read_bytes()
    for length in range(whole.rindex(b"\n", 0, -1) + 2, len(whole)):
        path.write_bytes(whole[:length])
        assert replayed(path, capsys) == (
            0,
            "1 events, 0 commands, the same; the last line is cut off and was left out\n",
        )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ":1: this is no tape"),
        (b"GGUF\x00\xff\n", ":1: this is no tape"),
        (b"[]\n", ":1: this is no tape"),
        (b'{"seq": 1}\n', ":1: this is no tape"),
        (b'{"gridsched_tape": 2}\n', ":1: format 2 is newer than the 1 that is read here"),
        (b'{"gridsched_tape": 1, "policy": {"relief_slots": "x"}}\n', ":1: Expected `int`, got `str`"),
        (b'{"gridsched_tape": 1}\n{"at": 1}\n', ":2: Object missing required field"),
        (
            b'{"gridsched_tape": 1}\n{"at": 1, "heard": "Nothing", "event": {}, "did": [], "digest": ""}\n',
            ":2: there is no event Nothing",
        ),
        (
            b'{"gridsched_tape": 1}\n{"at": 1, "heard": "ProbeDue", "event": {}, "did": [], "digest": ""}\n',
            ":2: Object missing required field `instance_id`",
        ),
        (b'{"gridsched_tape": 1}\n\xff\n', ":2: "),
    ],
)
def test_a_file_that_is_no_tape_is_told_by_its_line(
    content: bytes, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 with file and line, never a traceback."""
    (tmp_path / "t").write_bytes(content)
    code, said = replayed(tmp_path / "t", capsys)
    assert code == 2
    assert f"{tmp_path}/t{words}" in said


def test_a_file_that_is_not_there_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder is none either."""
    assert replayed(tmp_path / "none", capsys) == (2, f"gridsched: {tmp_path}/none: No such file or directory\n")
    assert replayed(tmp_path, capsys) == (2, f"gridsched: {tmp_path}: Is a directory\n")


def test_a_full_disk_is_said_once_and_the_run_goes_on() -> None:
    """/dev/full takes everything and keeps nothing."""
    said: list[str] = []
    recorder = Recorder(Path("/dev/full"), Policy(), said.append)
    for number in range(5):
        recorder.saw(made(EVENTS["TimerFired"]), float(number), ())
    recorder.close()
    assert said == ["/dev/full cannot be written (No space left on device): this run is recorded no further"]


def test_a_tape_has_a_longest_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said once, what is there stays good, and a disk is not filled."""
    monkeypatch.setattr("gridsched.runtime.tape.LONGEST_TAPE_BYTES", 1000)
    said: list[str] = []
    recorder = Recorder(tmp_path / "t", Policy(), said.append)
    for number in range(50):
        recorder.saw(made(EVENTS["TimerFired"]), float(number), ())
    recorder.close()
    assert len(said) == 1
    assert said[0].endswith("this run is recorded no further")
    assert 0 < len(list(Tape(tmp_path / "t"))) < 50


def test_the_tape_before_is_kept(tmp_path: Path) -> None:
    """A server that is started again after a crash does not take away what led to it."""
    tape_of(tmp_path / "t", (GrantReturned(GrantId(5)), None))
    tape_of(tmp_path / "t")
    assert len(list(Tape(tmp_path / "t.1"))) == 1
    assert list(Tape(tmp_path / "t")) == []


def test_lines_are_written_within_a_second(tmp_path: Path) -> None:
    """What kill -9 can cost is bounded by time too; a quiet server hears its devices each second."""
    recorder = Recorder(tmp_path / "t", Policy(), pytest.fail)
    for at in (0.0, 0.5, 1.0):
        recorder.saw(made(EVENTS["TimerFired"]), at, ())
    assert [step.at for step in Tape(tmp_path / "t")] == [0.0, 0.5, 1.0]
    recorder.close()


def test_what_is_no_tape_is_not_written_over(tmp_path: Path) -> None:
    """A name that was meant for something else costs nobody a file, nor at the second start; an empty one is free."""
    diary = tmp_path / "diary"
    diary.write_text("dear diary", encoding="utf-8")
    for _ in range(2):
        with pytest.raises(FileExistsError, match="no tape, and stays as it is"):
            Recorder(diary, Policy(), pytest.fail)
    assert diary.read_text(encoding="utf-8") == "dear diary"
    assert list(tmp_path.iterdir()) == [diary]
    diary.write_text("", encoding="utf-8")
    Recorder(diary, Policy(), pytest.fail).close()
    assert list(Tape(diary)) == []


def test_a_line_without_end_is_no_line_that_kill_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows it would be left out without a word."""
    tape_of(tmp_path / "t")
    head = (tmp_path / "t").read_bytes()
    (tmp_path / "t").write_bytes(head + b"x" * (len(head) + 20) + b"\nthe rest\n")
    monkeypatch.setattr("gridsched.runtime.tape.LONGEST_LINE_BYTES", len(head) + 10)
    with pytest.raises(TapeError, match="t:2: a line of"):
        list(Tape(tmp_path / "t"))
