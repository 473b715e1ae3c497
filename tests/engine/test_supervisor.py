"""P1 to P7: whole lives of real processes, the stand-in engine in place of llama-server."""

import os
import re
import signal
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from gridsched.core.events import Event, Failure, FailureCause, InstanceExited, InstanceReady
from gridsched.core.ids import DeviceName, InstanceId, ModelName
from gridsched.core.model import DeviceFootprint, DeviceSpec, LaunchOption
from gridsched.engine import child as child_module
from gridsched.engine.cards import EngineDevice
from gridsched.engine.identity import start_ticks
from gridsched.engine.locate import FoundEngine
from gridsched.engine.roster import read_roster
from gridsched.engine.supervisor import LlamaEngine
from gridsched.ports import Backend, Capability, DeviceInfo, Launch, UpstreamFailure
from tests.engine.conftest import ONE, PATIENCE_SECONDS, Bench, make_bench

pytestmark = pytest.mark.slow  # every test starts a process


async def test_a_process_becomes_ready_serves_and_is_gone_when_told(bench: Bench) -> None:
    """Ready once, then exited without a failure; its socket is gone, its last lines are kept."""
    async with bench.running(bench.launch(print_lines=["hello"])):
        (pid,) = bench.engine.processes().values()
        socket = bench.engine.endpoint(ONE)
        assert socket is not None
        assert socket.is_socket()
        assert start_ticks(pid)
        assert standing_place(pid) == "/"
        assert await bench.upstream.busy_slots(ONE) == 0
    assert bench.exit() == InstanceExited(ONE, None, ("hello",))
    assert bench.engine.processes() == {}
    assert bench.engine.endpoint(ONE) is None
    assert not socket.exists()
    assert bench.engine.log_tail(ONE) == ("hello",)


async def test_L2_what_an_engine_prints_of_its_buffers_comes_with_its_readiness(bench: Bench) -> None:
    """All of it, whatever else it prints: 4 MB of it were printed before it listened."""
    lines = [
        "load_tensors:   CPU_Mapped model buffer size =   306.00 MiB",
        "llama_kv_cache:        CPU KV buffer size =     8.00 MiB",
        "sched_reserve:        CPU compute buffer size =    90.00 MiB",
    ]
    async with bench.running(bench.launch(print_lines=lines, print_bytes=4_000_000)):
        (event,) = bench.events
    assert isinstance(event, InstanceReady)
    (told,) = event.allocated
    assert (told.weights_bytes, told.kv_bytes, told.compute_bytes) == (306 << 20, 8 << 20, 90 << 20)


@pytest.mark.usefixtures("leak_free")
async def test_D8_an_engine_that_computes_on_another_card_is_a_failed_load(
    fake_engine: FoundEngine, tmp_path: Path
) -> None:
    """Its log says the address: what is planned and read would be somebody else's card."""
    card = DeviceInfo(DeviceSpec(DeviceName("gpu0"), 1 << 30), "X", Backend.CUDA, 0, "GPU-1", "0000:01:00.0")
    found = replace(fake_engine, devices=(EngineDevice("CUDA0", "X", 1 << 30),))
    bench = make_bench(found, tmp_path, devices=(card,))
    launch = bench.launch(print_lines=["I prepare: using device CUDA0 (X) (0000:41:00.0) - 900 MiB free"])
    launch = replace(launch, option=replace(launch.option, footprint=(DeviceFootprint(card.spec.name),)))
    failure = (await bench.run_to_the_end(launch)).failure
    assert failure is not None
    assert failure.cause is FailureCause.CPU_FALLBACK
    assert "CUDA0 is the card at 0000:41:00.0, and gpu0 is at 0000:01:00.0" in failure.message


async def test_P1_the_socket_lies_in_a_private_folder(bench: Bench) -> None:
    """Nobody else can reach the process, and it listens nowhere else."""
    async with bench.running(bench.launch()):
        socket = bench.engine.endpoint(ONE)
        assert socket is not None
        assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    (argv,) = bench.records("argv")
    assert isinstance(argv, list)
    assert argv[argv.index("--host") + 1] == str(socket)
    assert "--port" not in argv


async def test_who_looks_around_beside_a_server_leaves_its_sockets_alone(bench: Bench, tmp_path: Path) -> None:
    """`gridsched check` makes an engine in the same folder; tidying up there is its owner's, at the start."""
    async with bench.running(bench.launch()):
        socket = bench.engine.endpoint(ONE)
        make_bench(bench.engine._found, tmp_path)
        assert socket is not None
        assert socket.exists()


async def test_a_folder_for_sockets_that_was_removed_is_made_again(bench: Bench, tmp_path: Path) -> None:
    """Whoever tidied up while the server ran does not keep its models from loading."""
    (tmp_path / "run").rmdir()
    async with bench.running(bench.launch()):
        assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700


@pytest.mark.usefixtures("leak_free")
async def test_a_socket_path_that_is_too_long_moves_to_a_short_private_folder(
    fake_engine: FoundEngine, tmp_path: Path
) -> None:
    """The kernel takes 107 bytes; the folder is gone afterwards."""
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    bench = make_bench(fake_engine, deep)
    async with bench.running(bench.launch(record="")):
        socket = bench.engine.endpoint(ONE)
        assert socket is not None
        assert len(os.fsencode(socket)) <= 107
        assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    assert not socket.parent.exists()


async def test_B7_an_exit_while_starting_is_seen_at_once(bench: Bench) -> None:
    """Not after the start's limit, which is longer than our patience, and with what it printed."""
    line = "llama_model_load: error loading model: unknown model architecture: 'foo'"
    failure = (await bench.run_to_the_end(bench.launch(exit_at="start", print_lines=[line]))).failure
    assert failure is not None
    assert failure.cause is FailureCause.UNKNOWN_ARCHITECTURE
    assert line in failure.log_tail
    assert "foo" in failure.message
    assert failure.log_path == str(bench.engine.log_path(ModelName("org/tiny")))
    assert bench.events == [InstanceExited(ONE, failure)]


@pytest.mark.parametrize("moment", ["load", "probe"])
@pytest.mark.parametrize(("number", "cause"), [(11, FailureCause.CRASHED), (9, FailureCause.KILLED)])
async def test_B7_a_crash_while_loading_or_probing_is_a_crash(
    bench: Bench, moment: str, number: int, cause: FailureCause
) -> None:
    """A broken connection is not blamed on the engine's flags when the process has died."""
    failure = (await bench.run_to_the_end(bench.launch(exit_at=moment, exit_signal=number))).failure
    assert failure is not None
    assert failure.cause is cause
    assert "while it loaded" in failure.message


async def test_B2_death_in_service_is_seen_at_once(bench: Bench) -> None:
    """Kill -9 of an idle process: an exit with a cause, and no process left."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.engine.run, ONE, bench.launch(), bench.post)
            await bench.wait_for(InstanceReady)
            os.kill(bench.engine.processes()[ONE], signal.SIGKILL)
    failure = bench.exit().failure
    assert failure is not None
    assert failure.cause is FailureCause.KILLED
    assert re.fullmatch(r"somebody else killed the engine after \d+ s of service", failure.message)
    assert failure.log_path == str(bench.engine.log_path(ModelName("org/tiny")))


@pytest.mark.parametrize(
    ("number", "cause"), [(signal.SIGKILL, FailureCause.KILLED), (signal.SIGABRT, FailureCause.CRASHED)]
)
async def test_P7_a_death_that_is_answered_with_a_stop_keeps_its_cause(
    bench: Bench, number: signal.Signals, cause: FailureCause
) -> None:
    """Its connections break before its end is seen, and the scheduler tells it to stop meanwhile."""
    async with bench.running(bench.launch(print_lines=["about to die"])):
        (pid,) = bench.engine.processes().values()
        os.kill(pid, number)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - dead before any task has a turn to see it
    failure = bench.exit().failure
    assert failure is not None
    assert (failure.cause, failure.log_tail) == (cause, ("about to die",))


async def test_P6_ready_only_after_health_says_so_and_a_probe_was_served(bench: Bench) -> None:
    """503 while it loads is waited out; then the questions come in order."""
    async with bench.running(bench.launch(health=[(503, "{}")] * 3 + [(200, "{}")])):
        pass
    assert bench.records("path") == [*["/health"] * 4, "/v1/models", "/props", "/completion"]


@pytest.mark.parametrize(
    ("capability", "path"), [(Capability.EMBEDDING, "/v1/embeddings"), (Capability.RERANK, "/v1/rerank")]
)
async def test_P6_a_probe_asks_what_the_model_is_for(bench: Bench, capability: Capability, path: str) -> None:
    """An embedding model has no token to give."""
    async with bench.running(bench.launch(capability)):
        pass
    assert bench.records("path")[-1] == path


@pytest.mark.parametrize(
    ("switches", "cause", "words"),
    [
        ({"probe_status": 500}, FailureCause.CRASHED, "answered 500 to /completion"),
        ({"probe_status": 400}, FailureCause.BAD_FLAGS, "answered 400 to /completion"),
        ({"total_slots": 4}, FailureCause.BAD_FLAGS, "4 slots where 2 were planned"),
        ({"slot_ctx": 4096}, FailureCause.BAD_FLAGS, "4096 where 1024 was planned"),
        ({"tag": "another"}, FailureCause.CRASHED, "another program answers"),
        (
            {"probe_status": 500, "print_lines": ["CUDA error: an illegal memory access"]},
            FailureCause.DRIVER_FAULT,
            "answered 500",
        ),
    ],
)
async def test_P6_a_process_that_is_not_as_planned_never_becomes_ready(
    bench: Bench, switches: dict[str, Any], cause: FailureCause, words: str
) -> None:
    """It is ended, and the failure says what differs (B13, B16)."""
    failure = (await bench.run_to_the_end(bench.launch(**switches))).failure
    assert failure is not None
    assert failure.cause is cause
    assert words in failure.message
    assert len(bench.events) == 1


@pytest.mark.parametrize(
    ("place", "answer", "words"),
    [
        ("/v1/models", '{"data": [{"tags": null}]}', "list of models cannot be read"),
        ("/v1/models", '{"data": []}', "list of models cannot be read"),
        ("/props", '{"total_slots": Infinity}', "properties cannot be read"),
        ("/props", "[]", "properties cannot be read"),
        ("/completion", "[" * 50_000, "not JSON"),
        ("/completion", "so", "not JSON"),
    ],
)
async def test_P5_an_answer_without_sense_is_a_failed_load_and_nobody_elses(
    bench: Bench, place: str, answer: str, words: str
) -> None:
    """Whatever an engine says to what it is asked at its start."""
    failure = (await bench.run_to_the_end(bench.launch(answers={place: answer}))).failure
    assert failure is not None
    assert words in failure.message


@pytest.mark.usefixtures("leak_free")
@pytest.mark.parametrize("place", ["/health", "/completion"])
async def test_P6_a_silent_start_ends_at_its_limit(fake_engine: FoundEngine, tmp_path: Path, place: str) -> None:
    """A process that takes questions and never answers them."""
    bench = make_bench(fake_engine, tmp_path, startup_timeout_seconds=0.5)
    failure = (await bench.run_to_the_end(bench.launch(hang_at=place))).failure
    assert failure is not None
    assert failure.cause is FailureCause.START_TIMEOUT
    assert "0.5 s" in failure.message


async def test_a_connection_that_breaks_while_starting_is_tried_again(bench: Bench) -> None:
    """It proves nothing: the process is neither ready nor a failure."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.engine.run, ONE, bench.launch(close_at="/props"), bench.post)
            while bench.records("path").count("/props") < 2:  # noqa: ASYNC110 - another process writes it
                await trio.sleep(0.01)
            bench.engine.stop(ONE)
    assert bench.events == [InstanceExited(ONE, None)]


async def test_B15_a_stop_while_starting_is_no_failure(bench: Bench) -> None:
    """Told to end before it was ready: it ends, and that is all."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.engine.run, ONE, bench.launch(hang_at="/health"), bench.post)
            while "/health" not in bench.records("path"):  # noqa: ASYNC110 - another process writes it
                await trio.sleep(0.01)
            bench.engine.stop(ONE)
    assert bench.events == [InstanceExited(ONE, None)]


@pytest.mark.usefixtures("leak_free")
async def test_B15_a_start_that_was_told_to_stop_is_asked_nothing_more(
    fake_engine: FoundEngine, tmp_path: Path
) -> None:
    """S6c: also while it does not heed the signal yet; a load that is over half a second does not end in minutes."""
    bench = make_bench(fake_engine, tmp_path, stop_grace_seconds=1.0)
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            launch = bench.launch(health=[(503, "{}")], ignore_term=True)
            nursery.start_soon(bench.engine.run, ONE, launch, bench.post)
            while len(bench.records("path")) < 3:  # noqa: ASYNC110 - another process writes it
                await trio.sleep(0.01)
            bench.engine.stop(ONE)
            asked = len(bench.records("path"))
    assert len(bench.records("path")) <= asked + 1  # one may have been under way
    assert bench.events == [InstanceExited(ONE, None)]


async def test_P6_a_start_is_vetted_after_all_its_answers_and_before_it_is_ready(bench: Bench) -> None:
    """B16: by its number and its pid; nothing to say lets it pass."""
    asked: list[tuple[InstanceId, int]] = []

    async def vet(instance_id: InstanceId, pid: int) -> None:
        await trio.lowlevel.checkpoint()
        assert bench.records("path")[-1] == "/completion"
        assert bench.events == []
        asked.append((instance_id, pid))

    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.engine.run, ONE, bench.launch(), bench.post, vet)
            await bench.wait_for(InstanceReady)
            assert asked == [(ONE, bench.engine.processes()[ONE])]
            bench.engine.stop(ONE)
    assert bench.exit().failure is None


async def test_B16_a_start_that_is_not_what_was_planned_is_ended_with_the_vets_words(bench: Bench) -> None:
    """It never becomes ready; the log's last lines and its file come with it."""
    refused = Failure(FailureCause.CPU_FALLBACK, "it holds 0 MiB of 4000")

    async def vet(_instance_id: InstanceId, _pid: int) -> Failure:
        await trio.lowlevel.checkpoint()
        return refused

    with trio.fail_after(PATIENCE_SECONDS):
        await bench.engine.run(ONE, bench.launch(print_lines=["hello"]), bench.post, vet)
    path = str(bench.engine.log_path(ModelName("org/tiny")))
    assert bench.events == [InstanceExited(ONE, replace(refused, log_tail=("hello",), log_path=path))]


@pytest.mark.usefixtures("leak_free")
@pytest.mark.parametrize("told", [False, True])
async def test_a_vet_has_the_starts_limit_and_ends_with_a_stop(
    fake_engine: FoundEngine, tmp_path: Path, *, told: bool
) -> None:
    """A driver that hangs holds a start up no longer than anything else does."""
    bench = make_bench(fake_engine, tmp_path, startup_timeout_seconds=PATIENCE_SECONDS if told else 1.5)

    async def vet(_instance_id: InstanceId, _pid: int) -> None:
        if told:
            bench.engine.stop(ONE)
        await trio.sleep_forever()

    with trio.fail_after(PATIENCE_SECONDS):
        await bench.engine.run(ONE, bench.launch(), bench.post, vet)
    failure = bench.exit().failure
    assert (failure and failure.cause) is (None if told else FailureCause.START_TIMEOUT)


async def test_a_stop_before_the_first_turn_of_run_starts_nothing(bench: Bench) -> None:
    """Two commands of one decision: the task that is to run it has not begun when it is told to stop."""
    bench.engine.stop(ONE)
    await bench.run_to_the_end(bench.launch())
    assert bench.events == [InstanceExited(ONE, None)]
    assert not bench.record.exists()


async def test_what_serves_nobody_is_ended_at_once(bench: Bench) -> None:
    """A process that would not hear a TERM, as one in the middle of a long prompt, costs nobody the grace."""
    async with bench.running(bench.launch(ignore_term=True)):
        stopped = trio.current_time()
        bench.engine.stop(ONE, at_once=True)
    assert bench.exit().failure is None
    assert trio.current_time() - stopped < 10.0  # the grace that it has by default


async def test_a_stop_of_what_is_not_there_is_ignored(bench: Bench) -> None:
    """Ended ones, too."""
    await bench.run_to_the_end(bench.launch(exit_at="start"))
    bench.engine.stop(ONE)
    assert bench.engine.log_tail(InstanceId(99)) == ()
    with pytest.raises(UpstreamFailure, match="not running"):
        await bench.upstream.busy_slots(ONE)


@pytest.mark.usefixtures("leak_free")
async def test_B19_a_process_that_ignores_the_signal_is_killed_after_the_grace(
    fake_engine: FoundEngine, tmp_path: Path
) -> None:
    """And its death is no failure, since it was wanted."""
    bench = make_bench(fake_engine, tmp_path, stop_grace_seconds=0.2)
    async with bench.running(bench.launch(ignore_term=True)):
        stopped = trio.current_time()
    assert bench.exit().failure is None
    assert 0.2 <= trio.current_time() - stopped < 10.0  # the grace that it has by default


@pytest.mark.usefixtures("leak_free")
async def test_P8_a_server_ends_although_an_engine_does_not(
    fake_engine: FoundEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A kill has no effect on what hangs in a driver. It is said, and the next start finds it noted."""
    bench = make_bench(fake_engine, tmp_path, stop_grace_seconds=0.05)
    with trio.fail_after(PATIENCE_SECONDS):
        with monkeypatch.context() as patched:
            patched.setattr(os, "killpg", lambda *_: None)
            patched.setattr(child_module, "KILLED_SECONDS", 0.05)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bench.engine.run, ONE, bench.launch(), bench.post)
                await bench.wait_for(InstanceReady)
                child = bench.engine._lives[ONE].child
                nursery.cancel_scope.cancel()
        assert child is not None
        assert f"process {child.pid} has not ended although it was killed" in caplog.text
        assert [entry.process.pid for entry in read_roster(tmp_path / "run")[0]] == [child.pid]
        os.kill(child.pid, signal.SIGKILL)
        await child.wait()
        await child.end(0.0)


async def test_cancelled_it_ends_the_process_first(bench: Bench) -> None:
    """The exit is posted when the process is gone, from within the cancelled scope."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.engine.run, ONE, bench.launch(), bench.post)
            await bench.wait_for(InstanceReady)
            pid = bench.engine.processes()[ONE]
            nursery.cancel_scope.cancel()
    assert bench.exit().failure is None
    assert start_ticks(pid) is None


def standing_place(pid: int) -> str:
    """A process's working directory."""
    return str(Path(f"/proc/{pid}/cwd").readlink())


def process_state(pid: int) -> str:
    """The kernel's letter for it: T stands still."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]


async def test_S10_a_process_stands_still_and_goes_on(bench: Bench) -> None:
    """It answers again; asked twice, or of what is not there, either is harmless."""
    async with bench.running(bench.launch()):
        pid = bench.engine.processes()[ONE]
        bench.engine.pause(ONE)
        bench.engine.pause(ONE)
        while process_state(pid) != "T":
            await trio.lowlevel.checkpoint()
        bench.engine.resume(ONE)
        bench.engine.resume(ONE)
        assert await bench.upstream.busy_slots(ONE) == 0
        bench.engine.pause(InstanceId(99))
        bench.engine.resume(InstanceId(99))


@pytest.mark.usefixtures("leak_free")
@pytest.mark.parametrize("how", ["stopped", "cancelled"])
async def test_S10_a_process_that_stands_still_ends_as_soon_as_any(
    fake_engine: FoundEngine, tmp_path: Path, how: str
) -> None:
    """Whoever ends it continues it: the signal is heard, and no grace has to pass."""
    bench = make_bench(fake_engine, tmp_path, stop_grace_seconds=2 * PATIENCE_SECONDS)
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.engine.run, ONE, bench.launch(), bench.post)
            await bench.wait_for(InstanceReady)
            pid = bench.engine.processes()[ONE]
            bench.engine.pause(ONE)
            while process_state(pid) != "T":
                await trio.lowlevel.checkpoint()
            if how == "stopped":
                bench.engine.stop(ONE)
            else:
                nursery.cancel_scope.cancel()
    assert bench.exit().failure is None
    assert start_ticks(pid) is None


async def test_B17_megabytes_of_output_hold_nothing_up(bench: Bench) -> None:
    """They are read while it starts; the file and the tail stay bounded."""
    flood = bench.launch(print_bytes=6_000_000, print_raw_hex="fffe0a" + "2e" * 20_000 + "0a")
    async with bench.running(flood):
        pass
    log = bench.engine.log_path(flood.model)
    assert log.name.startswith("org_tiny-")
    assert log.with_name(f"{log.name}.1").stat().st_size < 5 * 1024 * 1024
    assert len(bench.engine.log_tail(ONE)) <= 100
    assert any("\ufffd\ufffd" in line for line in bench.engine.log_tail(ONE))


async def test_a_grandchild_that_holds_the_output_does_not_delay_the_end(bench: Bench) -> None:
    """The whole group is gone, and the pipe's end was not waited for."""
    async with bench.running(bench.launch(grandchild=True)):
        pass
    assert bench.exit().failure is None


async def test_flags_of_a_person_that_are_ours_are_refused_before_a_start(bench: Bench) -> None:
    """With their names."""
    failure = (await bench.run_to_the_end(bench.launch(flags=("--host", "0.0.0.0")))).failure  # noqa: S104 - refused
    assert failure is not None
    assert failure.cause is FailureCause.BAD_FLAGS
    assert "--host" in failure.message
    assert not bench.record.exists()


async def test_B16_a_card_that_the_engine_does_not_list_is_refused_before_a_start(
    fake_engine: FoundEngine, tmp_path: Path
) -> None:
    """It would run on the processor instead, a hundred times slower, and call itself healthy."""
    card = DeviceInfo(DeviceSpec(DeviceName("gpu0"), 1 << 34), "NVIDIA X", Backend.CUDA, uuid="GPU-1")
    engine = LlamaEngine(fake_engine, (card,), run_dir=tmp_path, log_dir=tmp_path)
    option = LaunchOption("key", 1024, 2, (DeviceFootprint(card.spec.name),))
    events: list[Event] = []
    await engine.run(ONE, Launch(ModelName("m"), tmp_path, option, frozenset()), events.append)
    assert engine.unusable_devices() == ("gpu0",)
    assert isinstance(events[0], InstanceExited)
    assert events[0].failure is not None
    assert events[0].failure.cause is FailureCause.CPU_FALLBACK
    assert "gpu0" in events[0].failure.message


async def test_arguments_that_no_process_can_have_are_a_failure_and_harm_nobody_else(bench: Bench) -> None:
    """A NUL in a flag; the next process starts as ever."""
    failure = (await bench.run_to_the_end(bench.launch(flags=("--threads", "\0")))).failure
    assert failure is not None
    assert failure.cause is FailureCause.BAD_FLAGS
    bench.events.clear()
    async with bench.running(bench.launch()):
        pass


async def test_the_child_sees_no_secret(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the shell that started us holds stays with us."""
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "7")
    async with bench.running(bench.launch()):
        pass
    (env,) = bench.records("env")
    assert isinstance(env, dict)
    assert not {"HF_TOKEN", "LLAMA_ARG_CTX_SIZE"} & set(env)
    assert env["PATH"] == os.environ["PATH"]


async def test_P5_one_crash_takes_down_one_process(bench: Bench) -> None:
    """Its neighbour goes on serving."""
    two = InstanceId(2)
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.engine.run, ONE, bench.launch(), bench.post)
            await bench.wait_for(InstanceReady)
            nursery.start_soon(bench.engine.run, two, bench.launch(), bench.post)
            while InstanceReady(two) not in bench.events:
                await bench.said.wait()
            os.kill(bench.engine.processes()[ONE], signal.SIGSEGV)
            await bench.wait_for(InstanceExited)
            assert set(bench.engine.processes()) == {two}
            assert await bench.upstream.busy_slots(two) == 0
            bench.engine.stop(two)
