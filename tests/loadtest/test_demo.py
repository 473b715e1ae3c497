import json
from pathlib import Path

import pytest

from gridsched.cli import demo
from gridsched.cli.main import main
from gridsched.settings.load import load
from loadtest.fetch import Models


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
    """Its keys are the schema's, and its three names are those the traffic asks for."""
    for name in ("c.gguf", "e.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    setting = demo.setting_for(Models(tmp_path / "c.gguf", tmp_path / "e.gguf"))
    path = tmp_path / "gridsched.yaml"
    path.write_text(json.dumps(setting.config), encoding="utf-8")
    models = load(path, {}).models
    assert set(models) == {setting.chat, setting.batch, setting.embed}
    assert models[setting.chat].path == models[setting.batch].path
    assert models[setting.chat].parallel == 2
