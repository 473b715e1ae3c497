"""The decision log of real servers, one after the other over the same data directory; one of them is killed."""

import json
import signal
from pathlib import Path

import pytest

from gridsched.cli.main import main
from tests.support.gateway import Gateway, start

pytestmark = pytest.mark.slow

HELLO = {"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def ask(gateway: Gateway) -> int:
    """The number of a job that was served."""
    answer = gateway.post("/v1/chat/completions", HELLO)
    assert answer.status_code == 200, answer.text
    return int(answer.headers["x-gridsched-job-id"])


def test_the_log_outlives_the_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers and jobs go on after an end and after `kill -9`; the commands read what runs before have said, and the
    counters of a run know nothing of it."""
    at = ["--data-dir", str(tmp_path / "data")]
    gateway = start(tmp_path, "--sim")
    try:
        assert ask(gateway) == 1
    finally:
        assert gateway.stop() == 0
    gateway = start(tmp_path, "--sim")
    try:
        assert ask(gateway) == 2
        seen = [int(str(line["seq"])) for line in gateway.events()]
        assert seen == list(range(1, len(seen) + 1))
        file = tmp_path / "data" / "logs" / "decisions.jsonl"
        assert gateway.comes_to(lambda: f'{{"seq":{seen[-1]},' in file.read_text("utf-8"))
    finally:
        gateway.process.send_signal(signal.SIGKILL)
        gateway.process.wait(10)
    with file.open("a") as torn:
        torn.write('{"seq":9999,"time":"20')
    gateway = start(tmp_path, "--sim")
    try:
        assert ask(gateway) == 3
        lines = gateway.events()
        assert [line["seq"] for line in lines[: len(seen)]] == seen
        assert lines[len(seen)] == {**lines[len(seen)], "seq": 1_000_001, "event": "start", "after": seen[-1]}
        assert not [line for line in lines if line["event"] == "gap"]
        page = gateway.get("/metrics").text
        assert 'gridsched_steps_total{class="interactive",model="sim-chat-4b"} 1.0' in page
        for job in (1, 2, 3):
            assert main(["explain", str(job), *at]) == 0
            first, *others = capsys.readouterr().out.splitlines()
            assert first.startswith(f"job {job} (interactive chat -> sim-chat-4b) over: completed; waited ")
            assert " complete interactive step 1/1 -> sim-chat-4b" in others[-1]
        assert main(["events", "--since", "1h", "--job", "2", "--class", "interactive", "--json", *at]) == 0
        assert {json.loads(line)["job"] for line in capsys.readouterr().out.splitlines()} == {2}
        assert main(["events", "--since", "start", "--event", "start", *at]) == 0
        assert capsys.readouterr().out.count(" start ") == 1
    finally:
        assert gateway.stop() == 0
    assert '"event":"end","code":0}' in file.read_text("utf-8").splitlines()[-1]
