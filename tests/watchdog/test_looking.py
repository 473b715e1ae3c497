"""Logs and cards: what can be looked at when nothing else answers."""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gridsched.engine import logs
from gridsched.watchdog.commands import CannotRun, Commands
from gridsched.watchdog.gpus import amd_cards, gpu_status, host_memory
from gridsched.watchdog.places import Places
from gridsched.watchdog.tails import NoLog, tail
from tests.watchdog.conftest import NO_PATIENCE_SECONDS, until

Program = Callable[[str, str], None]


@pytest.fixture
def program(places: Places) -> Program:
    """Puts a program of a name, a shell script, before all others."""

    def put(name: str, script: str) -> None:
        path = places.cwd / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    return put


@pytest.fixture
def commands(places: Places) -> Commands:
    """What finds them."""
    return Commands(places.environ)


def test_the_last_lines_of_a_model_s_log_come_across_its_rotation(places: Places, commands: Commands) -> None:
    """Oldest first."""
    places.logs.mkdir()
    (places.logs / "chat-4b.log.1").write_text("one\ntwo\n", encoding="utf-8")
    (places.logs / "chat-4b.log").write_text("three\nfo\ufffdur\n", encoding="utf-8")
    assert tail(places, commands, "chat-4b", 3)["lines"] == ["two", "three", "fo\ufffdur"]
    assert tail(places, commands, "Chat-4b", 1)["lines"] == ["fo\ufffdur"]


@pytest.mark.parametrize("model", ["pub/chat-4b", "m\u00fcller", "..", "x" * 300, "\ud800"])
def test_a_model_s_log_is_found_where_the_gateway_keeps_it(places: Places, commands: Commands, model: str) -> None:
    """Also under a name that no file can have; and by the name that is told when there is none of another."""
    places.logs.mkdir()
    called = logs.file_name(model)
    (places.logs / called).write_text(f"of {called}\n", encoding="utf-8")
    assert tail(places, commands, model, 1)["lines"] == [f"of {called}"]
    with pytest.raises(NoLog, match=re.escape(called.removesuffix(".log"))):
        tail(places, commands, "another", 1)
    assert tail(places, commands, called.removesuffix(".log"), 1)["lines"] == [f"of {called}"]


@pytest.mark.parametrize("name", ["../watchdog.token", "/etc/passwd", "watchdog.token", "link", "a\0b", "x" * 5000])
def test_no_name_leads_out_of_the_folder_of_logs(places: Places, commands: Commands, name: str) -> None:
    """Not by a path, and not by a link that lies there; those that there are are named."""
    places.logs.mkdir()
    (places.data / "watchdog.token").write_text("secret", encoding="utf-8")
    (places.logs / "link.log").symlink_to(places.data / "watchdog.token")
    (places.logs / "chat.log").write_text("fine\n", encoding="utf-8")
    with pytest.raises(NoLog, match=r"chat|cannot be read"):
        tail(places, commands, name, 10)


def test_a_huge_log_costs_no_more_than_its_end(places: Places, commands: Commands) -> None:
    """A file of holes, ten gigabytes long."""
    places.logs.mkdir()
    with (places.logs / "chat.log").open("wb") as file:
        file.truncate(10**10)
        file.seek(0, 2)
        file.write(b"\nlast\n")
    assert tail(places, commands, "chat", 1)["lines"] == ["last"]


def test_the_gateway_s_own_output_is_ours_or_the_journal_s(
    places: Places, commands: Commands, program: Program, stranger: Callable[[str], object]
) -> None:
    """What this watchdog has caught; else what the service manager has; else a sentence."""
    program("journalctl", "exit 1")
    with pytest.raises(NoLog, match="look where it was started"):
        tail(places, commands, "gateway", 5)
    program("journalctl", "exit 0")
    with pytest.raises(NoLog, match="the journal has nothing"):
        tail(places, commands, "gateway", 5)
    program("journalctl", 'echo "$@"; echo said')
    assert tail(places, commands, "gateway", 1)["lines"] == ["said"]
    places.gateway_log.write_text("ours\n", encoding="utf-8")
    assert tail(places, commands, "gateway", 5)["lines"] == ["ours"]
    stranger("")
    assert tail(places, commands, "gateway", 1)["lines"] == ["said"], "the one of now prints elsewhere"


def test_cards_are_told_by_nvidia_smi(commands: Commands, program: Program) -> None:
    """Rows by name; a value that the driver does not give stays as it says it."""
    program(
        "nvidia-smi",
        'case "$1" in *gpu=*) echo "0, Card \\"X\\", GPU-1, 16376, 700, 15676, [N/A], 40";;'
        ' *) echo "GPU-1, 12, llama-server, 600";; esac',
    )
    said = gpu_status(commands)
    assert said["source"] == "nvidia-smi"
    assert said["cards"][0]["memory_mib_total"] == "16376"
    assert said["cards"][0]["utilization_gpu"] == "[N/A]"
    assert said["processes"] == [
        {"gpu_uuid": "GPU-1", "pid": "12", "process_name": "llama-server", "used_memory_mib": "600"}
    ]
    assert said["host_memory"]["MemTotal"] > 0


def test_a_driver_that_has_died_does_not_take_the_answer_with_it(
    commands: Commands, program: Program, tmp_path: Path
) -> None:
    """Its words, and what there is beside it."""
    program("nvidia-smi", 'echo "Unable to determine the device handle: GPU is lost"; exit 15')
    said = gpu_status(commands, tmp_path / "no drm", tmp_path / "no meminfo")
    assert said["cards"] == []
    assert "GPU is lost" in said["notes"][0]
    assert said["host_memory"] == {}
    program("nvidia-smi", "printf 'half\\rof a row\\n'")
    assert gpu_status(commands, tmp_path / "no drm")["cards"] == []


def test_cards_of_amdgpu_are_read_off_their_driver_s_files(tmp_path: Path) -> None:
    """Bytes; a file that is no number is no card."""
    for name, total in (("card0", "17163091968\n"), ("card1", "?")):
        (tmp_path / name / "device").mkdir(parents=True)
        (tmp_path / name / "device" / "mem_info_vram_total").write_text(total, encoding="ascii")
    (tmp_path / "card0" / "device" / "mem_info_vram_used").write_text("26095616\n", encoding="ascii")
    assert amd_cards(tmp_path) == [{"name": "card0", "total_bytes": 17163091968, "used_bytes": 26095616}]
    assert host_memory(Path("/proc/meminfo"))["MemAvailable"] > 0


def test_the_service_manager_is_found_where_nobody_has_said_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After su, and in cron, there is no XDG_RUNTIME_DIR; what was said is left as it is."""
    asked = ("/bin/sh", "-c", "echo $XDG_RUNTIME_DIR")
    monkeypatch.setattr("gridsched.watchdog.commands.RUNTIME_DIR", tmp_path)
    assert Commands({}).run(asked, NO_PATIENCE_SECONDS).output == f"{tmp_path}\n"
    assert Commands({"XDG_RUNTIME_DIR": "/said"}).run(asked, NO_PATIENCE_SECONDS).output == "/said\n"
    monkeypatch.setattr("gridsched.watchdog.commands.RUNTIME_DIR", tmp_path / "none")
    assert Commands({}).run(asked, NO_PATIENCE_SECONDS).output == "\n"


def test_a_program_that_hangs_is_ended_with_what_it_has_started(
    places: Places, commands: Commands, program: Program
) -> None:
    """In time; and no more than its last output is kept."""
    pipe = places.cwd / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    program("hangs", f"exec > {pipe}; sleep 1000 & wait")
    with pytest.raises(CannotRun, match=r"hangs has not ended within 0\.1 s"):
        commands.run(("hangs",), 0.1)

    def is_left() -> bool:
        """Whether nobody can write there any more."""
        with suppress(BlockingIOError):
            return os.read(reader, 1) == b""
        return False

    until(is_left)
    os.close(reader)
    program("floods", "yes 0123456789 | head -c 200000; echo; echo end")
    ran = commands.run(("floods",), 10.0)
    assert len(ran.output) <= 64 * 1024
    assert ran.output.endswith("end\n")
    with pytest.raises(CannotRun, match="no such program cannot be run"):
        commands.run(("no such program",), 1.0)
