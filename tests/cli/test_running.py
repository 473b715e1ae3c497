"""Commands and a whole server: what a person sees of loads, leases and refusals."""

import json
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from gridsched.cli import logs
from gridsched.cli.main import main
from gridsched.cli.ps import show
from gridsched.settings.paths import DataDir
from tests.support.front import ADMIN_WORD, House, serving
from tests.support.gateway import clean_environment, command, simulated_gateway

Run = Callable[..., Awaitable[int]]

IDLE_SECONDS, LOOK_SECONDS = 0.005, 0.03
"""The clock jumps when nobody has done anything for so long; a command leaves it time for that between two looks."""


@asynccontextmanager
async def commands(clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[House, Run]]:
    """A server, and what runs a command against it; its exit code."""
    monkeypatch.setattr("gridsched.cli.client.LOOK_SECONDS", LOOK_SECONDS)
    clock.autojump_threshold = IDLE_SECONDS
    async with serving(clock) as house:
        url = f"http://127.0.0.1:{house.port}"

        async def run(*words: str) -> int:
            ours = list(words)
            end = ours.index("--") if "--" in ours else len(ours)
            given = [*ours[:end], "--server", url, "--api-key", ADMIN_WORD, *ours[end:]]
            return await trio.to_thread.run_sync(main, given)

        yield house, run


async def test_R7_a_model_is_loaded_shown_pinned_and_unloaded(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By any of its names; each command says what came of it."""
    async with commands(autojump_clock, monkeypatch) as (house, run):
        assert await run("load", "SIM-CHAT-4B", "--ttl", "2h") == 0
        assert capsys.readouterr().out == "sim-chat-4b is ready\n"
        assert await run("ps") == 0
        heads, row, queues = capsys.readouterr().out.splitlines()
        assert heads.split()[:5] == ["model", "state", "tier", "slots", "devices"]
        assert row.split()[:5] == ["sim-chat-4b", "ready", "cold", "0/4", "sim0"]
        assert queues.startswith("interactive 0 running, 0 waiting; ")
        assert await run("pin", "sim-chat-4b") == 0
        assert await run("unpin", "sim-chat-4b") == 0
        assert await run("unload", "sim-chat-4b") == 0
        told = capsys.readouterr().out.splitlines()
        assert told[:2] == ["sim-chat-4b is pinned", "sim-chat-4b is no longer pinned; it is ready"]
        assert told[2].startswith("sim-chat-4b is unloaded")
        assert await run("ps") == 0
        assert capsys.readouterr().out.startswith("nothing is loaded\n")
        assert not house.world.engine.processes()


def test_a_refused_configuration_is_told_by_ps(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever saved it looks there, and not in the server's log."""
    nothing: dict[str, object] = {"instances": [], "queues": {}, "failed": {}, "devices": [], "draining": False}
    show(nothing | {"config_error": "c.yaml:1:1: prt: unknown key\nmore", "config_needs_restart": ["server.port"]})
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "the configuration on disk is refused, and what was before runs on: c.yaml:1:1: prt: unknown key",
        "waits for a start of the server: server.port",
    ]


async def test_as_json_there_is_one_document(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server's own answer, of a load its end; a plan that is only shown loads nothing."""
    async with commands(autojump_clock, monkeypatch) as (house, run):
        assert await run("load", "sim-chat-4b", "--dry-run") == 0
        assert capsys.readouterr().out.startswith("loads    sim-chat-4b would be loaded at once\n")
        assert not house.logged("load")
        assert await run("load", "sim-chat-4b", "--json") == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["state"], told["verb"], told["result"]["model"]) == ("done", "load_model", "sim-chat-4b")
        for words in (["ps"], ["models"], ["jobs"], ["explain", told["id"]]):
            assert await run(*words, "--json") == 0
            assert json.loads(capsys.readouterr().out)
        assert await run("load", "sim-chat-4", "--json") == 1
        said = capsys.readouterr()
        assert json.loads(said.out)["error"]["code"] == "model_not_found"
        assert "Did you mean sim-chat-4b" in said.err


async def test_an_engines_log_is_shown(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its lines; a model that is not there is said with the closest."""
    async with commands(autojump_clock, monkeypatch) as (_, run):
        assert await run("logs", "sim-chat-4", "-n", "3") == 1
        assert "Did you mean sim-chat-4b" in capsys.readouterr().err


def test_a_log_without_a_line_is_said_to_have_none(capsys: pytest.CaptureFixture[str]) -> None:
    """Beside the output, which stays empty."""
    logs.show({"model": "m", "lines": []})
    assert capsys.readouterr() == ("", "gridsched: m has written nothing yet\n")


async def test_an_operation_is_named_explained_and_cancelled(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without waiting for it; what is over cannot be cancelled, which is said."""
    async with commands(autojump_clock, monkeypatch) as (_, run):
        assert await run("load", "sim-chat-4b", "--no-wait") == 0
        assert capsys.readouterr().out == "op-1 has begun; how it stands: gridsched explain op-1\n"
        assert await run("load", "sim-chat-4b") == 0
        assert await run("explain", "op-1") == 0
        assert "op-1 load_model done" in capsys.readouterr().out
        assert await run("cancel", "op-1") == 1
        assert "load_model (op-1) is done" in capsys.readouterr().err
        assert await run("jobs") == 0
        assert capsys.readouterr().out == "no jobs\n"


async def test_R8_a_lease_is_taken_listed_and_given_back(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For a time; what it displaced is told, and comes back. A load meanwhile is refused with the lease's name."""
    async with commands(autojump_clock, monkeypatch) as (house, run):
        assert await run("load", "sim-chat-4b") == 0
        capsys.readouterr()
        assert await run("lease", "sim0", "--for", "ComfyUI", "--ttl", "2h") == 0
        assert capsys.readouterr().out == "sim0: leased to ComfyUI for 2h00m; to come back: sim-chat-4b\n"
        assert await run("lease") == 0
        assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["sim0", "ComfyUI", "held"]
        assert await run("lease", "sim0", "--for", "another", "--ttl", "1m") == 1
        assert "sim0 is leased to ComfyUI" in capsys.readouterr().err
        assert await run("release", "sim0") == 0
        assert capsys.readouterr().out == "sim0: given back; loads again: sim-chat-4b\n"
        await house.until_logged("ready", 2)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["sim0"], "say what for: --for TEXT"),
        (["sim0", "--for", "x"], "a lease ends by itself: say --ttl 2h, or -- COMMAND"),
        (["--for", "x"], "name the devices"),
        (["sim0", "--for", "x", "--json", "--", "true"], "the output is the command's"),
    ],
)
def test_R8_what_can_be_no_lease_is_said(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, before anything is asked."""
    assert main(["lease", *words]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.slow
def test_R8_a_lease_lasts_as_long_as_its_command(tmp_path: Path) -> None:
    """Its exit code is the command's, a signal is passed on, and the device is given back in each case: also where the
    command that leases is killed itself, and with it the one that it ran."""
    with simulated_gateway(tmp_path) as gateway:
        variables = clean_environment() | {
            "XDG_CONFIG_HOME": str(tmp_path),
            "GRIDSCHED_DATA_DIR": str(tmp_path / "data"),
        }

        def lease(*words: str) -> "subprocess.Popen[str]":
            given = command("lease", "sim0", "--for", "x", "--", *words)
            return subprocess.Popen(given, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        def leases() -> list[object]:
            told = gateway.get("/api/leases").json()["leases"]
            assert isinstance(told, list)
            return told

        with lease("sh", "-c", "exit 7") as done:
            assert done.wait(30) == 7
        assert leases() == []
        with lease("sh", "-c", "trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done") as ended:
            assert ended.stdout is not None
            assert ended.stdout.readline() == "up\n"
            (held,) = gateway.get("/api/leases").json()["leases"]
            assert held["pid"] == ended.pid
            ended.send_signal(signal.SIGTERM)
            assert ended.wait(30) == 5
        assert leases() == []
        with lease("sh", "-c", "echo $$; exec sleep 60") as killed:
            assert killed.stdout is not None
            child = int(killed.stdout.readline())
            killed.kill()
            assert gateway.comes_to(lambda: leases() == [])
            assert gateway.comes_to(lambda: not runs(child))


def runs(pid: int) -> bool:
    """Whether a process is there that has not ended."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def test_R8_nothing_is_leased_for_a_command_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    """127, as a shell says it."""
    assert main(["lease", "gpu0", "--for", "x", "--", "no-such-command"]) == 127
    assert "there is no command no-such-command; nothing was leased" in capsys.readouterr().err


def test_R8_a_command_on_another_machine_needs_a_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refused_port: int
) -> None:
    """That server cannot see this machine's processes."""
    with DataDir.own(tmp_path):
        words = ["--server", f"http://127.0.0.1:{refused_port}", "--data-dir", str(tmp_path)]
        assert main(["lease", "gpu0", "--for", "x", *words, "--", "true"]) == 2
    assert "cannot see when the command ends: say --ttl, too" in capsys.readouterr().err
