"""The real server under a service manager that listens: a fake one, with a real socket."""

import signal
import stat
import subprocess
from pathlib import Path
from time import monotonic

import pytest

from gridsched.cli.main import main
from gridsched.service.notify import TAKEN
from gridsched.settings.admin_token import FILE, read_admin_token
from tests.service.manager import Ear, listening
from tests.support.gateway import Gateway, clean_environment, command, start
from tests.support.tiny_model import make_tiny_chat

pytestmark = pytest.mark.slow

PERIOD_SECONDS = 1.0
"""Between two heartbeats."""

QUICK_SECONDS = 9.0
"""An end in which nobody is waited for in vain, on a busy machine: a drain's limit and an engine's grace are longer."""


def under(ear: Ear) -> dict[str, str]:
    """What a manager that hears with this ear gives to a service."""
    return {"NOTIFY_SOCKET": ear.address, "WATCHDOG_USEC": "30000000", "LISTEN_FDS": "0", "LISTEN_PID": "1"}


def restart(gateway: Gateway, folder: Path) -> tuple[int, float]:
    """Ask for a restart by the command: the server's exit code, and seconds until the process has ended."""
    began = monotonic()
    assert main(["restart", "--data-dir", str(folder / "data")]) == 0
    return gateway.process.wait(20), monotonic() - began


def test_a_manager_hears_how_the_server_is_until_its_end(tmp_path: Path) -> None:
    """Ready once it listens, a sentence, heartbeats that a stopped process misses and a continued one has again; a
    restart is told, and ends with 75. The token is for this user alone and in no output."""
    with listening(tmp_path) as ear:
        gateway = start(tmp_path, "--sim", env=under(ear))
        try:
            assert ear.until("READY") == "1"
            assert ear.until("WATCHDOG") == "1"
            assert ear.until("STATUS") == "no model is loaded; no requests run, none wait"
            assert ear.until("WATCHDOG") == "1"
            gateway.process.send_signal(signal.SIGSTOP)
            while ear.hear(0.1) is not None:  # what was said before it stood
                pass
            assert ear.hear(1.6 * PERIOD_SECONDS) is None
            gateway.process.send_signal(signal.SIGCONT)
            assert ear.until("WATCHDOG") == "1"
            found = (tmp_path / "data" / FILE).stat()
            assert stat.S_IMODE(found.st_mode) == 0o600
            token = read_admin_token(tmp_path / "data")
            assert token is not None
            assert main(["drain", "--data-dir", str(tmp_path / "data")]) == 0
            assert gateway.get("/health").json()["draining"] is True
            code, seconds = restart(gateway, tmp_path)
        finally:
            gateway.process.send_signal(signal.SIGCONT)
            gateway.stop()
        assert (code, seconds < QUICK_SECONDS) == (75, True), seconds
        assert ear.until("STOPPING") == "1"
        assert ear.heard[-1]["EXTEND_TIMEOUT_USEC"] == "54000000"
    assert token not in gateway.log.read_text(encoding="utf-8")


def test_a_start_that_is_refused_says_why(tmp_path: Path) -> None:
    """`systemctl status` shows the sentence; ready is never said."""
    config = tmp_path / "c.yaml"
    config.write_text("server:\n  prot: 1234\n", encoding="utf-8")
    with listening(tmp_path) as ear:
        environment = clean_environment() | under(ear)
        words = command("serve", "--sim", "--config", str(config))
        assert subprocess.run(words, env=environment, check=False, capture_output=True, timeout=60).returncode == 2
        assert f"{config}:2:3" in ear.until("STATUS")
        assert not [said for said in ear.heard if "READY" in said]


def test_P8_a_restart_with_an_idle_engine_is_quick_and_engines_know_no_manager(tmp_path: Path) -> None:
    """A real engine's environment has none of the manager's words; it is gone when the server is."""
    models = tmp_path / "models"
    models.mkdir()
    make_tiny_chat(models / "tiny.gguf")
    with listening(tmp_path) as ear:
        gateway = start(tmp_path, "--models-dir", str(models), env=under(ear))
        try:
            body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
            assert gateway.post("/v1/chat/completions", body).status_code == 200
            engines = gateway.children()
            assert engines
            for pid in engines:
                names = {
                    line.partition(b"=")[0].decode() for line in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                }
                assert "PATH" in names
                assert not names & set(TAKEN)
            code, seconds = restart(gateway, tmp_path)
        finally:
            gateway.stop()
        assert (code, seconds < QUICK_SECONDS) == (75, True), seconds
    assert not [pid for pid in engines if Path(f"/proc/{pid}").exists()]
