"""The command `llm`, told of the gateway in its own `extra-openai-models.yaml`, against the real engine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.gateway import Gateway

pytestmark = pytest.mark.slow

MODELS = """\
- {{model_id: grid, model_name: smollm2, api_base: "{url}/v1", supports_tools: true, supports_schema: true}}
- {{model_id: grid-low, model_name: "smollm2@background", api_base: "{url}/v1"}}
- {{model_id: grid-unknown, model_name: nobody, api_base: "{url}/v1"}}
"""


@pytest.fixture
def home(server: Gateway, tmp_path: Path) -> Path:
    """A folder of llm's own, as its documentation says to make it."""
    (tmp_path / "extra-openai-models.yaml").write_text(MODELS.format(url=server.url), encoding="utf-8")
    return tmp_path


def llm(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """One run of the command."""
    return subprocess.run(
        [sys.executable, "-m", "llm", *words],
        env={**os.environ, "LLM_USER_PATH": str(home), "OPENAI_API_KEY": "unused"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.shows("llm", "chat", "stream")
def test_a_prompt_is_answered_streamed_or_not(home: Path) -> None:
    """`llm` streams unless told not to."""
    for words in ((), ("--no-stream",)):
        done = llm(home, "prompt", "-m", "grid", "-o", "max_tokens", "8", *words, "Say hello.")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.strip()


@pytest.mark.shows("llm", "schema")
def test_an_answer_follows_a_schema(home: Path) -> None:
    """`--schema` in llm's own short words."""
    done = llm(home, "prompt", "-m", "grid", "--schema", "large bool, capital bool", "-o", "max_tokens", "80", "Paris")
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) == {"large", "capital"}


@pytest.mark.shows("llm", "class")
def test_S1_a_class_by_the_name_of_the_model(server: Gateway, home: Path) -> None:
    """`model_name: smollm2@background`: that is where llm lets one say it."""
    before = int(str(server.events()[-1]["seq"]))
    assert llm(home, "prompt", "-m", "grid-low", "-o", "max_tokens", "1", "hi").returncode == 0
    new = [line for line in server.events() if int(str(line["seq"])) > before and line["event"] == "enqueue"]
    assert [(line["class"], line["model"]) for line in new] == [("background", "smollm2")]


@pytest.mark.shows("llm", "errors")
def test_an_error_is_told_in_a_line(home: Path) -> None:
    """The gateway's own sentence."""
    done = llm(home, "prompt", "-m", "grid-unknown", "hi")
    assert done.returncode == 1
    assert "there is no model 'nobody'" in done.stderr
