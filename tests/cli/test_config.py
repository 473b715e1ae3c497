"""`gridsched config`: what a person writes for a key and a value, and what the server is asked."""

import argparse
import json

import pytest

from gridsched.cli import config
from gridsched.cli.main import main
from tests.support.answering import answering


@pytest.mark.parametrize(
    ("text", "way", "value"),
    [
        ("models.tiny.ctx_size=8192", ["models", "tiny", "ctx_size"], 8192),
        ('models["qwen2.5"].class=batch', ["models", "qwen2.5", "class"], "batch"),
        ('models.a.aliases=["x", "y=z"]', ["models", "a", "aliases"], ["x", "y=z"]),
        ("models.a/b-c.tier=null", ["models", "a/b-c", "tier"], None),
        ("scheduler.hot_window=5m", ["scheduler", "hot_window"], "5m"),
        ("server.host=127.0.0.1", ["server", "host"], "127.0.0.1"),
        ("a=true", ["a"], True),
        ('a="true"', ["a"], "true"),
        ('["a=b"].c=d=e', ["a=b", "c"], "d=e"),
        ("a=", ["a"], ""),
    ],
)
def test_a_key_and_a_value_are_taken_as_they_are_meant(text: str, way: list[str], value: object) -> None:
    """Names with dots stand in brackets; what is no JSON is a text."""
    assert config._pair(text) == (way, value)
    assert config._way(config._dotted(way)) == way


@pytest.mark.parametrize("text", ["a", "=1", "a..b=1", ".a=1", "a.=1", "a[b]=1", "a=[1", 'a={"b"', "a b[=1"])
def test_what_is_no_key_or_value_is_refused(text: str) -> None:
    """As an option that is wrong."""
    with pytest.raises(argparse.ArgumentTypeError):
        config._pair(text)


def test_what_is_set_is_asked_for_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """One request with everything; what has changed is shown."""
    changes = [{"key": "models.a.ctx_size", "before": 4096, "after": 8192}]
    bodies: list[bytes] = []
    seen: list[tuple[str, str, str]] = []
    words = ["models.a.ctx_size=8192", "models.a.class=batch", "--unset", "models.old"]
    with answering({"changes": changes, "text": "g.yaml is changed"}, seen=seen, bodies=bodies) as url:
        assert main(["config", "set", *words, "--server", url]) == 0
    with answering({"details": {"changes": changes}, "text": "g.yaml is changed"}, seen=seen, bodies=bodies) as url:
        assert main(["config", "set", *words, "--dry-run", "--server", url]) == 0
    assert [each[:2] for each in seen] == [("PATCH", "/api/config"), ("PATCH", "/api/config?dry_run=true")]
    asked = {"set": {"models": {"a": {"ctx_size": 8192, "class": "batch"}}}, "unset": [["models", "old"]]}
    assert [json.loads(body) for body in bodies] == [asked, asked]
    assert capsys.readouterr().out.splitlines()[:3] == [
        "key                before  after",
        "models.a.ctx_size  4096    8192",
        "g.yaml is changed",
    ]
    assert main(["config", "set", "a=1", "a.b=2"]) == 2
    assert "one key cannot be a value and have keys below it" in capsys.readouterr().err


def test_settings_are_listed_by_key(capsys: pytest.CaptureFixture[str]) -> None:
    """All, or what is below a key; where the file is and that it is not what runs is said beside."""
    told = {
        "path": "g.yaml",
        "exists": True,
        "runs_as_written": False,
        "error": "g.yaml:1:1: no",
        "settings": {"server": {"port": 1, "cors_origins": []}, "models": {"q2.5": {"path": "p"}}},
        "text": None,
    }
    with answering(told) as url:
        assert main(["config", "get", "--server", url]) == 0
        said = capsys.readouterr()
        assert said.out.splitlines() == [
            "key                  value",
            "server.port          1",
            "server.cors_origins  []",
            'models["q2.5"].path  "p"',
        ]
        assert said.err == "gridsched: g.yaml; what runs is another\ngridsched: g.yaml:1:1: no\n"
        assert main(["config", "get", "models", "--server", url]) == 0
        assert capsys.readouterr().out.splitlines()[1:] == ['models["q2.5"].path  "p"']
