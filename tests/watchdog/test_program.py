"""`gridsched watchdog` as a process: with the real gateway on simulated hardware, and when everything is broken."""

import os
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gridsched.watchdog.places import Places
from gridsched.watchdog.processes import identify
from gridsched.watchdog.program import port_told, prepare, watch
from gridsched.watchdog.watch import owner_of, read_beat
from tests.support.gateway import PLAIN, clean_environment, free_port
from tests.watchdog.conftest import until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LONG_SECONDS = 60.0
"""For a start on a busy machine."""


@dataclass
class Dog:
    """A watchdog that was started by a test."""

    process: subprocess.Popen[str]
    places: Places
    printed: Path

    def text(self) -> str:
        """What it has printed."""
        return self.printed.read_text(encoding="utf-8")

    def port(self) -> int:
        """Its own."""
        until(lambda: re.search(r":(\d+)/mcp", self.text()) or self.process.poll() is not None, LONG_SECONDS)
        found = re.search(r":(\d+)/mcp", self.text())
        assert found, self.text()
        return int(found[1])

    def call(self, tool: str, **given: object) -> dict[str, Any]:
        """Use a tool."""
        port = self.port()
        token = self.places.token.read_text(encoding="ascii").strip()
        params = {"name": tool, "arguments": given}
        answer = httpx.post(
            f"http://127.0.0.1:{port}/mcp",
            json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params},
            headers={"Authorization": f"Bearer {token}"},
            **PLAIN,
            timeout=LONG_SECONDS,
        )
        result: dict[str, Any] = answer.json()["result"]
        return result.get("structuredContent") or {"refused": result["content"][0]["text"]}

    def pid(self) -> int:
        """The gateway's."""
        owner = owner_of(self.places)
        return owner.process.pid if owner and owner.process else 0

    def serves(self) -> bool:
        """Whether the gateway of now has beaten."""
        beat = read_beat(self.places.heartbeat, lambda: 0.0)
        return beat is not None and beat.seq > 0 and beat.process.pid == self.pid()


@contextmanager
def dog(folder: Path, *words: str, path: str = str(ROOT), options: str = "-P") -> Iterator[Dog]:
    """`gridsched watchdog` with these words; it and its gateway are gone afterwards."""
    places = Places(folder / "data", None, {}, folder)
    printed = folder / f"watchdog-{len(list(folder.iterdir()))}.out"
    with printed.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            [sys.executable, options, "-m", "gridsched", "watchdog", "--data-dir", str(folder / "data"), *words],
            env=clean_environment() | {"HOME": str(folder), "PYTHONPATH": path},
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
    made = Dog(process, places, printed)
    try:
        yield made
    finally:
        pid = made.pid()
        if process.poll() is None:
            process.kill()
            process.wait()
        if pid:
            os.kill(pid, signal.SIGCONT)
            wait_end(pid)


def wait_end(pid: int, seconds: float = LONG_SECONDS) -> None:
    """Wait for the end of a process that may be nobody's child."""
    if identify(pid) is None:
        return
    handle = os.pidfd_open(pid)
    ended = select.select([handle], [], [], seconds)[0]
    os.close(handle)
    assert ended, f"process {pid} is still there"


def test_a_real_gateway_is_checked_replaced_restarted_rolled_back_and_goes_with_its_watchdog(tmp_path: Path) -> None:
    """One watchdog through a bad night: no configuration, a wrong one, SIGSTOP, one broken by hand, kill -9."""
    config = tmp_path / "gridsched.yaml"
    words = ("--port", "0", "--run", "--wedged-after", "5", "--config", str(config), "--", "--sim", "--port", "0")
    with dog(tmp_path, *words) as made:
        until(lambda: "exit code 2" in made.text())
        assert made.call("health")["watchdog"]["waits"], "there is no such file: it waits for one"
        good = checked_and_good(made, config)
        first = made.pid()
        health = made.call("health")["gateway"]
        assert (health["state"], health["health"]["can_serve"], health["pid"]) == ("serving", True, first)

        os.kill(first, signal.SIGSTOP)
        until(lambda: made.pid() not in (0, first) and made.serves())
        assert "IS WEDGED" in made.text()
        assert "stopped by a signal" in made.text()

        config.write_text("library: {dris: []}\n", encoding="utf-8")
        restarted = made.call("restart_server", drain_seconds=5)
        assert [(each["still_alive"], each["how"]) for each in restarted["ended"]] == [(False, "exit code 0")]
        assert (restarted["restarted"], restarted["why"]) == (False, "it has ended: exit code 2")
        assert "library.dris: unknown key" in restarted["last_words"]
        until(lambda: "ROLLED BACK" in made.text())
        until(made.serves)
        assert "listening" in "".join(made.call("tail_logs", model="gateway")["lines"])
        assert config.read_text(encoding="utf-8") == good
        assert stat.S_IMODE(made.places.token.stat().st_mode) == 0o600
        last = made.pid()
        made.process.kill()
        wait_end(last)
        assert "Traceback" not in made.text()


def checked_and_good(made: Dog, config: Path) -> str:
    """What the gateway's own check says is what the caller reads, with the file's own name. What passes is written as
    it is, comments too, and is good once it has served. The text."""
    refused = made.call("set_config", text="server:\n  prot: 2\n")["refused"]
    assert re.search(r"gridsched\.yaml:2:3: .*prot", refused), refused
    assert "to-check" not in refused
    assert not config.exists()
    good = "# ours\nlibrary: {dirs: []}   # by hand\n"
    assert made.call("set_config", text=good)["checked"] == "gridsched check finds nothing wrong with it"
    assert config.read_text(encoding="utf-8") == good
    assert [each.name for each in config.parent.iterdir() if "to-check" in each.name] == []
    until(lambda: made.serves() and "is kept as the last good one" in made.text())
    until(lambda: made.call("health")["gateway"]["answering"])
    return good


def test_where_every_library_is_broken_the_watchdog_still_says_so(tmp_path: Path) -> None:
    """The gateway crashes at an import, the watchdog has not a single package, and says with which words it did."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "trio.py").write_text("raise ImportError('half an upgrade')", encoding="utf-8")
    with dog(tmp_path, "--port", "0", "--run", "--", "--sim", path=f"{broken}:{ROOT}", options="-S") as made:
        until(lambda: made.call("health")["watchdog"]["last_exit"], LONG_SECONDS)
        health = made.call("health")
        assert health["gateway"]["state"] == "not_running"
        assert "ImportError: half an upgrade" in health["watchdog"]["last_exit"]["last_words"]
        assert made.process.poll() is None
        made.process.terminate()
        assert made.process.wait(LONG_SECONDS) == 0


def test_a_second_watchdog_and_a_taken_port_end_with_their_codes(tmp_path: Path) -> None:
    """3 names who has the port, 4 the other watchdog; 2 is for the command line."""
    port = free_port()
    with dog(tmp_path, "--port", str(port)) as made:
        made.port()
        with dog(tmp_path, "--port", "0") as second:
            assert second.process.wait(LONG_SECONDS) == 4
            assert f"another watchdog (process {made.process.pid})" in second.text()
        other = tmp_path / "other"
        other.mkdir()
        with dog(other, "--port", str(port)) as third:
            assert third.process.wait(LONG_SECONDS) == 3
            assert f"port {port} is taken by process {made.process.pid}" in third.text()
        with dog(other, "--port", "0", "--", "--config", "x") as fourth:
            assert fourth.process.wait(LONG_SECONDS) == 2
            assert "name it before the --" in fourth.text()
        answer = httpx.get(f"http://127.0.0.1:{port}/health", **PLAIN)
        assert answer.json()["gateway"]["state"] == "not_running"
        assert made.places.token.read_text(encoding="ascii").strip() not in answer.text + made.text()
        made.process.send_signal(signal.SIGINT)
        assert made.process.wait(LONG_SECONDS) == 0


def test_a_credential_that_others_could_read_is_made_anew(tmp_path: Path) -> None:
    """Too open, too short, damaged, a link: a new one of its own; one that is right stays."""
    places = Places(tmp_path / "data", None, {}, tmp_path)
    first = prepare(places).current()
    assert prepare(places).current() == first
    assert len(first) >= 43
    places.token.chmod(0o644)
    second = prepare(places).current()
    assert second != first
    for said in ("", "short", "\xff" * 50, f"{'x' * 40} {'y' * 40}"):
        places.token.write_text(said, encoding="latin-1")
        assert prepare(places).current() not in (first, second, said)
    victim = tmp_path / "victim"
    victim.write_text("a" * 50, encoding="ascii")
    places.token.unlink()
    places.token.symlink_to(victim)
    assert prepare(places).current() != "a" * 50
    assert victim.read_text(encoding="ascii") == "a" * 50


def test_a_credential_that_is_replaced_counts_at_once_and_one_that_has_gone_comes_back(tmp_path: Path) -> None:
    """Whoever takes it out of use need not start the watchdog again; a file that is half written changes nothing."""
    places = Places(tmp_path / "data", None, {}, tmp_path)
    credential = prepare(places)
    first = credential.current()
    for odd in ("", "short"):
        places.token.write_text(odd, encoding="ascii")
        assert credential.current() == first
    places.token.write_text("n" * 40, encoding="ascii")
    assert credential.current() == "n" * 40
    places.token.chmod(0o644)
    places.token.write_text("m" * 40, encoding="ascii")
    assert credential.current() == "n" * 40, "others may have written it"
    shutil.rmtree(places.data)
    assert credential.current() == "n" * 40
    assert places.token.read_text(encoding="ascii") == "n" * 40 + "\n"
    assert stat.S_IMODE(places.token.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("watchdog: {port: 4711}\n", 4711),
        ("server: {port: 1}\nwatchdog:   # ours\n\n  # port: 5\n  port: 4711 # here\nmodels: {}\n", 4711),
        ("\ufeffwatchdog:\n  port: 4711", 4711),
        ("watchdog: {port: 4711\n!!! broken: [", 4711),
        ("watchdog:\nserver:\n  port: 5\n", 1235),
        ("server:\n  watchdog:\n    port: 5\n", 1235),
        ("watchdog: {port: 99999}\n", 1235),
        ("# watchdog: {port: 5}\n", 1235),
        ("", 1235),
        (None, 1235),
    ],
)
def test_its_port_is_found_in_the_configuration_as_people_write_it(tmp_path: Path, text: str | None, port: int) -> None:
    """In one that is broken too, because it is then that it is needed; where it is not found, the contract's."""
    path = tmp_path / "gridsched.yaml"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    assert port_told(Places(tmp_path / "data", path, {}, tmp_path)) == port


def test_a_lock_that_cannot_be_one_ends_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder or a link in its place: 1, its name, and no traceback."""
    lock = tmp_path / "data" / "watchdog" / "watchdog.lock"
    lock.mkdir(parents=True)
    assert watch(tmp_path / "data", None, 0, runs=False, wedged_seconds=30.0, serve_words=(), environ={}) == 1
    lock.rmdir()
    lock.symlink_to(tmp_path)
    assert watch(tmp_path / "data", None, 0, runs=False, wedged_seconds=30.0, serve_words=(), environ={}) == 1
    assert capsys.readouterr().err.count(f"{lock} cannot be used as a lock") == 2


def test_P4_where_proc_shows_other_processes_nobody_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a namespace of its own with somebody else's /proc its signals would reach whoever has the number here."""
    (tmp_path / "self").symlink_to("4711")
    monkeypatch.setattr("gridsched.watchdog.processes.PROC", tmp_path)
    assert watch(tmp_path / "data", None, 0, runs=False, wedged_seconds=30.0, serve_words=(), environ={}) == 1
    assert "/proc shows another namespace" in capsys.readouterr().err


def test_a_data_directory_that_cannot_be_ours_ends_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file in its place, one that everybody may write to, a link, a folder that is gone: 1, and no traceback."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path)
    told = []
    for name in ("file", "file/below", "open", "link"):
        code = watch(tmp_path / name, None, 0, runs=False, wedged_seconds=30.0, serve_words=(), environ={})
        told.append((code, "choose another with --data-dir" in capsys.readouterr().err))
    assert told == [(1, True)] * 4
    gone = tmp_path / "gone"
    gone.mkdir()
    command = (sys.executable, "-m", "gridsched", "watchdog", "--port", "0", "--data-dir", str(tmp_path / "data"))
    done = subprocess.run(
        [
            "/bin/sh",
            "-c",
            'rmdir "$PWD" && exec "$@"',
            "sh",
            *command,
            "--port",
            "0",
            "--data-dir",
            str(tmp_path / "data"),
        ],
        cwd=gone,
        env=clean_environment() | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "the current folder cannot be used" in done.stderr) == (1, True), done.stderr
