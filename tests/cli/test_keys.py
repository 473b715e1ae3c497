"""`gridsched keys`: made, listed and revoked beside a server that runs (H6)."""

import json
from pathlib import Path

import httpx
import pytest

from gridsched.cli.main import main
from gridsched.settings.admin_token import read_admin_token
from gridsched.settings.api_keys import FILE, digest_of, read_keys
from gridsched.settings.paths import DataDir
from tests.support.gateway import PLAIN, Gateway, simulated_gateway


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory that is not there yet."""
    monkeypatch.setenv("GRIDSCHED_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def test_H6_a_secret_is_printed_once_and_alone(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So that `KEY=$(gridsched keys add tom)` works; the list has all but it."""
    words = ["--class", "batch", "--max-class", "background", "--models", "a, b", "--concurrency", "3"]
    assert main(["keys", "add", "tom", *words, "--queue-share", "12.5%", "--scope", "read,inference"]) == 0
    out, err = capsys.readouterr()
    secret = out.strip()
    assert out == f"{secret}\n"
    assert "from now on every request needs a key" in err
    assert secret not in err
    (key,) = read_keys(data_dir)
    assert key.sha256 == digest_of(secret)
    assert main(["keys", "add", "ann", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["secret"].startswith("gs-")
    assert main(["keys", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["keys"]
    assert listed[0] == {
        "name": "tom",
        "created": key.created,
        "scopes": ["inference", "read"],
        "class": "batch",
        "max_class": "background",
        "models": ["a", "b"],
        "concurrency": 3,
        "queue_share": 0.125,
    }
    assert main(["keys", "list"]) == 0
    out = capsys.readouterr().out
    assert "tom" in out
    assert "12.5% of a queue" in out
    assert secret not in out
    assert main(["keys", "revoke", "tom"]) == main(["keys", "revoke", "ann"]) == 0
    assert "may use the server without a key now" in capsys.readouterr().err
    assert read_keys(data_dir) == ()


def test_H6_check_says_what_a_server_would_not_start_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An address for other machines without a key."""
    words = ["check", "--sim", "--port", "0", "--data-dir", str(tmp_path / "sim")]
    for more, code in ((["--host", "0.0.0.0"], 2), (["--host", "0.0.0.0", "--insecure"], 0), ([], 0)):  # noqa: S104
        assert main([*words, *more]) == code
        assert ("there are no API keys" in capsys.readouterr().out) == (code == 2)
    assert main(["keys", "add", "tom", "--data-dir", str(tmp_path / "sim")]) == 0
    assert main([*words, "--host", "0.0.0.0"]) == 0  # noqa: S104 - nothing listens there


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["add", "a b"], 2),
        (["add", "tom"], 1),
        (["add", "ann", "--class", "interactive", "--max-class", "batch"], 2),
        (["add", "ann", "--concurrency", "0"], 2),
        (["revoke", "ann"], 1),
    ],
)
def test_H6_what_cannot_be_done_is_a_sentence_and_changes_nothing(
    data_dir: Path, words: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """1 where the file is well, 2 for a key that cannot be."""
    assert main(["keys", "add", "tom"]) == 0
    before = (data_dir / FILE).read_bytes()
    capsys.readouterr()
    assert main(["keys", *words]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gridsched: ")
    assert (data_dir / FILE).read_bytes() == before


@pytest.mark.parametrize(
    "words", [["--class", "slow"], ["--queue-share", "101%"], ["--queue-share", "0%"], ["--scope", ""]]
)
def test_H6_a_word_that_is_none_is_told_with_those_there_are(
    data_dir: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is made."""
    with pytest.raises(SystemExit) as ended:
        main(["keys", "add", "tom", *words])
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err
    assert not data_dir.exists()


def test_H6_a_damaged_file_is_a_sentence_of_every_verb(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2, and what is there stays."""
    DataDir.own(data_dir).close()
    (data_dir / FILE).touch(0o600)
    (data_dir / FILE).write_text("{", encoding="utf-8")
    for words in (["add", "tom"], ["list"], ["revoke", "tom"]):
        assert main(["keys", *words]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert f"{data_dir / FILE} is damaged" in err
    assert main(["check", "--sim", "--data-dir", str(data_dir), "--port", "0"]) == 2
    assert f"problem    {data_dir / FILE} is damaged" in capsys.readouterr().out
    assert (data_dir / FILE).read_text(encoding="utf-8") == "{"


def until(gateway: Gateway, status: int, headers: dict[str, str]) -> bool:
    """Whether a caller comes to be answered so: the server looks at its keys once a second."""
    with httpx.Client(base_url=gateway.url, headers=headers, timeout=30.0, **PLAIN) as client:
        return gateway.comes_to(lambda: client.get("/v1/models").status_code == status)


@pytest.mark.slow
def test_H6_a_running_server_takes_new_keys_and_lets_revoked_ones_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a restart. A damaged file changes nothing and is said once; our own commands are not locked out."""
    data_dir = tmp_path / "data"
    monkeypatch.setenv("GRIDSCHED_DATA_DIR", str(data_dir))
    for name in ("GRIDSCHED_URL", "GRIDSCHED_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with simulated_gateway(tmp_path) as gateway:
        assert until(gateway, 200, {})
        assert main(["keys", "add", "tom"]) == 0
        tom = {"x-api-key": capsys.readouterr().out.strip()}
        assert until(gateway, 401, {})
        assert until(gateway, 200, tom)
        assert main(["jobs", "--json"]) == 0
        whole = (data_dir / FILE).read_bytes()
        (data_dir / FILE).write_bytes(b"{")
        assert gateway.comes_to(lambda: "the API keys from before hold" in gateway.log.read_text(encoding="utf-8"))
        assert until(gateway, 200, tom)
        assert until(gateway, 401, {})
        (data_dir / FILE).write_bytes(whole)
        assert main(["keys", "add", "ann"]) == 0
        ann = {"Authorization": f"Bearer {capsys.readouterr().out.split()[-1]}"}
        assert until(gateway, 200, ann)
        assert main(["keys", "revoke", "tom"]) == 0
        assert until(gateway, 401, tom)
        assert until(gateway, 200, ann)
        assert until(gateway, 200, {"api-key": read_admin_token(data_dir) or ""})
        assert gateway.log.read_text(encoding="utf-8").count("keys.json") == 1


@pytest.mark.slow
def test_a_name_that_no_model_has_is_told(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the server that runs there; where none does, that nobody looked. The key is made all the same."""
    assert main(["keys", "add", "ann", "--models", "none"]) == 0
    assert "no server runs there, so it was not looked whether these models are there" in capsys.readouterr().err
    with simulated_gateway(data_dir.parent):
        assert main(["keys", "add", "tom", "--models", "sim-chat-2b,sim-chat-3b"]) == 0
    err = capsys.readouterr().err
    assert "there is no model 'sim-chat-3b' now, so the key may ask for it once there is; did you mean sim-chat-" in err
    assert "'sim-chat-2b'" not in err
    assert [key.models for key in read_keys(data_dir)] == [("none",), ("sim-chat-2b", "sim-chat-3b")]
