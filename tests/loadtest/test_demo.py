import json
import re
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from gridsched.cli import demo
from gridsched.cli.main import main
from gridsched.settings.load import load
from loadtest.fetch import Models
from tests.support.gateway import PLAIN


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "4000", "soon"])
def test_a_length_that_makes_no_sense_is_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The option and the value are named; nothing is started."""
    with pytest.raises(SystemExit) as caught:
        main(["demo", "--seconds", seconds])
    assert caught.value.code == 2
    assert "--seconds" in capsys.readouterr().err


def test_the_hints_at_the_end_are_complete_commands() -> None:
    """They can be pasted: the address, the model and balanced quotes."""
    text = demo.how_to_use("http://127.0.0.1:4321", "smollm2")
    assert "curl -s http://127.0.0.1:4321/v1/chat/completions" in text
    assert '"model": "smollm2"' in text
    assert 'base_url="http://127.0.0.1:4321/v1"' in text


def test_the_generated_configuration_is_one_the_server_takes(tmp_path: Path) -> None:
    """Its keys are the schema's, its three names are those the traffic asks for, its files are where they are."""
    folder = tmp_path / "a $HOME 🦙"
    setting = demo.setting_for(Models(folder / "c.gguf", folder / "e.gguf"))
    assert shlex.split(setting.serve_options) == ["--models-dir", str(folder)]
    path = tmp_path / "gridsched.yaml"
    path.write_text(json.dumps(setting.config), encoding="utf-8")
    models = load(path, {}).models
    assert set(models) == {setting.chat, setting.batch, setting.embed}
    assert models[setting.chat].path == models[setting.batch].path == folder / "c.gguf"
    assert models[setting.embed].path == folder / "e.gguf"
    assert models[setting.chat].parallel == 2


@pytest.mark.slow
def test_the_demo_on_simulated_hardware_shows_the_marks_keeps_its_server_and_ends_it() -> None:
    """The whole of it: the marks, the table, a server that answers while it is kept, and nothing left after Ctrl-C."""
    command = [sys.executable, "-m", "gridsched", "demo", "--sim", "--keep", "--seconds", "5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo_process:
        try:
            said = _read_until(demo_process, "The server stays up until Ctrl-C")
            url = re.findall(r"http://127\.0\.0\.1:\d+", said)[0]
            assert httpx.get(f"{url}/health", **PLAIN).json()["can_serve"] is True
            demo_process.send_signal(signal.SIGINT)
            code = demo_process.wait(60)
        finally:
            demo_process.kill()
    assert said.count("  met     ") == 6, said
    assert code == 0
    assert re.search(r"^chat alone +10 +0 ", said, re.MULTILINE)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health", **PLAIN)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signals", "code"),
    [
        ((signal.SIGINT,), 130),
        ((signal.SIGINT, signal.SIGINT), 130),
        ((signal.SIGTERM,), 130),
        ((signal.SIGHUP,), 130),
        ((signal.SIGKILL,), -signal.SIGKILL),
    ],
)
def test_an_interrupted_demo_ends_its_server(
    signals: tuple[signal.Signals, ...], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of the traffic: Ctrl-C, a second one, a service manager, a terminal that closes, kill -9."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # kill -9 leaves the demo's folder behind
    command = [sys.executable, "-m", "gridsched", "demo", "--sim"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo_process:
        try:
            said = _read_until(demo_process, "gateway is up at")
            url = re.findall(r"http://127\.0\.0\.1:\d+", said)[0]
            for number in signals:
                demo_process.send_signal(number)
            assert demo_process.wait(60) == code
            rest = demo_process.stdout.read() if demo_process.stdout else ""
        finally:
            demo_process.kill()
    assert "Traceback" not in rest
    for _ in range(200):  # after kill -9 it is the kernel that tells the server
        try:
            httpx.get(f"{url}/health", **PLAIN)
        except httpx.TransportError:
            return
        threading.Event().wait(0.05)
    pytest.fail("the server is still up")


def _read_until(process: "subprocess.Popen[str]", words: str) -> str:
    """What it prints, up to the line with these words."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if words in line:
            return said
    pytest.fail(said)
