"""What the client commands say of a server that is not there, or is something else; and of a decision's line."""

import argparse
from pathlib import Path

import httpx
import pytest

from gridsched.cli.client import connect, fetch
from gridsched.cli.events import read_events, sentence
from gridsched.cli.failures import NotOurs, Refused, explain
from gridsched.cli.where import add_server_arguments
from gridsched.settings.admin_token import make_admin_token
from gridsched.settings.paths import DataDir

STREAM = {"content-type": "text/event-stream"}


def answering(answer: httpx.Response) -> httpx.Client:
    """A client whose server always answers this."""
    return httpx.Client(base_url="http://x", transport=httpx.MockTransport(lambda _: answer))


def arguments(*words: str) -> argparse.Namespace:
    """The client commands' options, parsed."""
    parser = argparse.ArgumentParser()
    add_server_arguments(parser)
    return parser.parse_args(words)


def refused(answer: httpx.Response) -> Exception:
    """Why this answer's events cannot be read."""
    with answering(answer) as client, pytest.raises((httpx.HTTPError, NotOurs)) as caught:
        list(read_events(client, since="", follow=False))
    return caught.value


@pytest.mark.parametrize(
    "text",
    [
        "foo",
        "",
        "http://",
        "http://[::1",
        "http://h:99999",
        "ftp://h",
        "h.example",
        "http://a\nb",
        "http://u:k@h",
    ],
)
def test_an_address_that_is_none_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is asked, as an option that is wrong."""
    with pytest.raises(SystemExit) as caught:
        arguments("--server", text)
    assert caught.value.code == 2
    assert "is no address such as http://127.0.0.1:1234" in capsys.readouterr().err


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is looked for, and a per cent sign in an address harms no help text."""
    monkeypatch.setenv("GRIDSCHED_URL", "")
    assert arguments().server is None
    monkeypatch.setenv("GRIDSCHED_URL", "http://h/%d")
    parser = argparse.ArgumentParser()
    add_server_arguments(parser)
    assert "http://h/%d" in parser.format_help()


def test_where_no_server_is_named_it_is_that_of_the_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one runs there, on whatever port; else it is where a server listens that was told nothing."""
    monkeypatch.delenv("GRIDSCHED_URL", raising=False)
    monkeypatch.setenv("GRIDSCHED_DATA_DIR", str(tmp_path))
    with DataDir.own(tmp_path) as data_dir:
        args = arguments()
        with connect(args) as client:
            assert client.base_url == args.server == "http://127.0.0.1:1234", "it has no port yet"
        data_dir.say_port(4321)
        token = make_admin_token(tmp_path)
        with connect(arguments()) as client:
            assert client.base_url == "http://127.0.0.1:4321"
            assert client.headers["authorization"] == f"Bearer {token}", "keys do not lock us out"
        with connect(arguments("--api-key", "mine")) as client:
            assert client.headers["authorization"] == "Bearer mine"
        with connect(arguments("--server", "http://localhost:4321")) as client:
            assert client.base_url == "http://127.0.0.1:4321", "the token goes where the directory's owner listens"
            assert client.headers["authorization"] == f"Bearer {token}"
        for other in ("http://h", "http://h:4321", "http://127.0.0.1:4322"):
            with connect(arguments("--server", other)) as client:
                assert client.base_url == other
                assert "authorization" not in client.headers, "and nowhere else"
    with connect(arguments()) as client:
        assert client.base_url == "http://127.0.0.1:1234"


def test_a_key_may_have_any_letter() -> None:
    """It is sent as UTF-8."""
    with connect(arguments("--api-key", "clé")) as client:
        assert client.headers.raw[-1][1] == "Bearer clé".encode()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (httpx.Response(404), "answers 404 here; is it a gridsched?"),
        (httpx.Response(401), "wants another key (401); name it with --api-key"),
        (httpx.Response(200, text="<html>"), "is no gridsched: it sends no events"),
        (httpx.Response(200, text="data: {}\n\n", headers=STREAM), "is no gridsched: it sends {}"),
        (httpx.Response(200, text="data: [1]\n\n", headers=STREAM), "is no gridsched: it sends [1]"),
        (httpx.Response(200, text="data: hi\x1b[31m\n\n", headers=STREAM), r"is no gridsched: it sends hi\x1b[31m"),
        (httpx.Response(200, text='data: {"time": "x", "event": "e"}\n\n', headers=STREAM), "is no gridsched"),
    ],
)
def test_another_server_is_told_from_none(
    answer: httpx.Response, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sentence with the address, and the contract's exit code."""
    error = refused(answer)
    assert isinstance(error, httpx.HTTPError | NotOurs)
    assert explain(arguments("--server", "http://h"), error) == 1
    said = capsys.readouterr().err
    assert "http://h" in said
    assert words in said


def test_a_line_does_nothing_to_a_terminal() -> None:
    """Whatever a model is called; a line of a later version that lacks something is still a line."""
    line = {"time": "2026-01-01T00:00:00.5Z", "event": "dispatch", "step": 1, "model": "a\x1b[31m\n"}
    assert sentence(line).endswith(r"dispatch step 1/? -> a\x1b[31m\n")


def test_what_the_server_refuses_is_said_in_its_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown job is no stack of braces; a page that is none of ours is told from it."""
    body = {"error": {"message": "there is no job 7", "code": "not_found"}}
    with answering(httpx.Response(404, json=body)) as client, pytest.raises(Refused) as caught:
        fetch(client, "/api/jobs/7")
    assert explain(arguments(), caught.value) == 1
    assert capsys.readouterr().err == "gridsched: there is no job 7\n"
    for answer in (httpx.Response(200, text="<html>"), httpx.Response(200, json=[])):
        with answering(answer) as client, pytest.raises(NotOurs):
            fetch(client, "/api/jobs")
