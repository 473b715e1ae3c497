"""`gridsched restart` and `drain` find the server and its token by the data directory, and tell nobody else (H6)."""

import argparse
import socket
from pathlib import Path

import pytest

from gridsched.cli import drain, local
from gridsched.cli.client import add_client_arguments
from gridsched.cli.main import main
from gridsched.cli.where import usual_server
from gridsched.settings.admin_token import make_admin_token
from gridsched.settings.paths import DataDir, Holder, owner_of


def found(*words: str) -> argparse.Namespace:
    """What the command's arguments are completed to. Raises NotHere."""
    parser = argparse.ArgumentParser()
    add_client_arguments(parser)
    args = parser.parse_args(words)
    local._find(args)
    return args


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory whose owner is this process, on port 4321."""
    for name in ("GRIDSCHED_URL", "GRIDSCHED_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GRIDSCHED_DATA_DIR", str(tmp_path))
    make_admin_token(tmp_path)
    return tmp_path


def test_H6_the_data_directory_says_where_the_server_is_and_by_what_it_knows_us(served: Path) -> None:
    """By its owner's port and the token in it; only while somebody owns it."""
    with DataDir.own(served) as data_dir:
        data_dir.say_port(4321)
        owner = owner_of(served)
        assert isinstance(owner, Holder)
        assert owner.port == 4321
        args = found()
        assert (args.server, args.api_key) == ("http://127.0.0.1:4321", make_admin_token(served))
        assert found("--server", "http://localhost:4321").api_key == args.api_key
        assert found("--server", "http://elsewhere.example:4321", "--api-key", "mine").api_key == "mine"
    assert owner_of(served) is None
    assert owner_of(served / "absent") is None
    with pytest.raises(local.NotHere, match="no server runs on the data directory"):
        found()


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:4321"),  # noqa: S104 - a server may
        ("::", "http://[::1]:4321"),
        ("::1", "http://[::1]:4321"),
        ("192.0.2.7", "http://192.0.2.7:4321"),
    ],
)
def test_H6_a_server_is_asked_at_the_address_that_it_has_written(served: Path, host: str, url: str) -> None:
    """Whatever it was told to listen at; at the same port of another address the token could be somebody else's."""
    with DataDir.own(served) as data_dir:
        data_dir.say_port(4321, host)
        token = make_admin_token(served)
        for words in ((), ("--server", url), ("--server", "http://localhost:4321")):
            args = found(*words)
            assert (args.server, args.api_key) == (url, token)
        assert usual_server() == (url, make_admin_token(served))


@pytest.mark.parametrize("url", ["http://elsewhere.example:4321", "http://127.0.0.1:4322", "http://127.0.0.1"])
def test_H6_the_token_is_sent_to_its_own_server_only(served: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Not to another machine, nor to another port of this one; by option or variable."""
    with DataDir.own(served) as data_dir:
        data_dir.say_port(4321)
        with pytest.raises(local.NotHere, match="is not that of the data directory"):
            found("--server", url)
        monkeypatch.setenv("GRIDSCHED_URL", url)
        with pytest.raises(local.NotHere, match="is not that of the data directory"):
            found()
    with pytest.raises(local.NotHere, match="so there is no admin token for the one at"):
        found("--server", url)


@pytest.mark.parametrize("command", ["restart", "drain"])
def test_a_server_that_is_not_there_is_said(
    served: Path, capsys: pytest.CaptureFixture[str], refused_port: int, command: str
) -> None:
    """Exit 1 and one sentence: nobody owns the directory, its token is gone, or its owner does not answer."""
    assert main([command]) == 1
    assert f"no server runs on the data directory {served}" in capsys.readouterr().err
    with DataDir.own(served) as data_dir:
        data_dir.say_port(refused_port)
        assert main([command]) == 1
        assert f"no server answers at http://127.0.0.1:{refused_port}" in capsys.readouterr().err
        (served / "admin.token").unlink()
        assert main([command]) == 1
        assert f"there is no {served / 'admin.token'} that this user" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["restart", "drain"])
def test_a_server_that_hangs_is_not_waited_for(
    served: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """It takes the connection, as the kernel does for it, and says nothing."""
    monkeypatch.setattr("gridsched.cli.client.ANSWER_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as hangs, DataDir.own(served) as data_dir:
        data_dir.say_port(hangs.getsockname()[1])
        assert main([command]) == 1
    assert "does not answer in time: it hangs" in capsys.readouterr().err


def test_a_drain_says_that_nobody_new_is_taken_from_now_on() -> None:
    """Not only once those that run have ended."""
    again = "; it serves again after: gridsched restart"
    assert drain._sentence(0) == f"the server takes no new request{again}"
    assert drain._sentence(1) == f"the server takes no new request, and finishes the one that runs{again}"
    assert drain._sentence(3) == f"the server takes no new request, and finishes the 3 that run{again}"
