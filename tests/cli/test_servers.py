"""`gridsched servers`: which server is asked, and that its key goes to nobody else (H6)."""

import argparse
import json
import ssl
from pathlib import Path

import pytest

from gridsched.cli import known, servers
from gridsched.cli.known import Known, KnownError, Server
from gridsched.cli.main import main
from tests.support.answering import answering
from tests.support.certificates import write_pair

JOBS = {"waiting": [], "running": []}


def file_of(tmp_path: Path) -> Path:
    """Where the names are kept."""
    return tmp_path / "config" / "gridsched" / "servers.json"


def test_H6_a_servers_key_goes_to_that_server_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """By its name, while it is in use, and at its address under any path; not to another port of the same machine."""
    rig: list[tuple[str, str, str]] = []
    other: list[tuple[str, str, str]] = []
    with answering(JOBS, seen=rig) as url, answering(JOBS, seen=other) as elsewhere:
        assert main(["servers", "add", "rig", f"{url}/v1", "--key", "secret", "--use"]) == 0
        for words in ([], ["--server", "rig"], ["--server", f"{url}/v1/"], ["--server", url.removeprefix("http://")]):
            assert main(["jobs", *words]) == 0
        assert rig == [("GET", "/api/jobs", "Bearer secret")] * 4
        assert main(["jobs", "--server", elsewhere]) == 0
        assert main(["jobs", "--server", "rig", "--api-key", "mine"]) == 0
        assert (other[0][2], rig[-1][2]) == ("", "Bearer mine")
    assert "secret" not in "".join(capsys.readouterr())


def test_H6_a_key_is_not_kept_for_a_server_that_moves(tmp_path: Path) -> None:
    """The same name at another address is another server; at the same one its key stays."""
    main(["servers", "add", "rig", "http://a.example:1", "--key", "secret"])
    main(["servers", "add", "rig", "http://a.example:1/", "--use"])
    assert known.read() == Known({"rig": Server("http://a.example:1", "secret")}, "rig")
    main(["servers", "add", "rig", "https://a.example:1"])
    assert known.read().servers == {"rig": Server("https://a.example:1")}
    assert "secret" not in file_of(tmp_path).read_text()


def test_the_first_that_is_named_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refused_port: int) -> None:
    """Option, variable, a data directory that is named, the one in use."""
    used: list[tuple[str, str, str]] = []
    named: list[tuple[str, str, str]] = []
    with answering(JOBS, seen=used) as url, answering(JOBS, seen=named) as other:
        main(["servers", "add", "rig", url, "--use"])
        main(["servers", "add", "lab", other])
        monkeypatch.setenv("GRIDSCHED_URL", other)
        assert main(["jobs"]) == 0
        monkeypatch.setenv("GRIDSCHED_URL", "rig")
        assert main(["jobs"]) == 0
        assert main(["jobs", "--server", "lab"]) == 0
        monkeypatch.delenv("GRIDSCHED_URL")
        assert (len(used), len(named)) == (1, 2)
        assert main(["jobs"]) == 0
        monkeypatch.setattr("gridsched.cli.where.DEFAULT_URL", f"http://127.0.0.1:{refused_port}")
        assert main(["jobs", "--data-dir", str(tmp_path)]) == 1
        assert main(["servers", "use"]) == 0
        assert main(["jobs"]) == 1
        assert (len(used), len(named)) == (2, 2)


def test_H6_a_server_with_a_certificate_of_its_own_is_asked_by_that_one_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file that is kept with it is believed for it; without it no key is sent, and what to do is said."""
    seen: list[tuple[str, str, str]] = []
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    write_pair(certificate, key, "127.0.0.1")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with answering(JOBS, seen=seen, tls=tls) as url:
        assert main(["jobs", "--server", url, "--api-key", "secret"]) == 1
        assert "is of nobody whom this machine trusts; gridsched servers add has --ca" in capsys.readouterr().err
        assert main(["servers", "add", "rig", url, "--ca", str(certificate), "--key", "secret"]) == 0
        assert main(["jobs", "--server", "rig"]) == 0
        assert seen == [("GET", "/api/jobs", "Bearer secret")]
        certificate.unlink()
        assert main(["jobs", "--server", "rig"]) == 2
        assert f"{certificate} is no certificate of an authority" in capsys.readouterr().err
    with answering(JOBS) as url:
        assert main(["jobs", "--server", url.replace("http:", "https:")]) == 1
        assert "does not speak TLS; is it http://" in capsys.readouterr().err


def test_servers_are_added_listed_used_and_removed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """In words and as JSON, without keys; what is not there is said with what is."""
    assert main(["servers", "list"]) == 0
    assert "no servers are named" in capsys.readouterr().out
    assert main(["servers", "add", "rig", "10.0.0.7:1234/v1", "--key", "secret"]) == 0
    said = capsys.readouterr()
    assert said.out == "rig is http://10.0.0.7:1234, with a key; gridsched ps --server rig\n"
    assert "taken as http://10.0.0.7:1234: clients of models go to /v1" in said.err
    assert "its key goes over the network as it is" in said.err
    assert main(["servers", "use", "rig"]) == 0
    capsys.readouterr()
    assert main(["servers", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "*    rig   http://10.0.0.7:1234  yes  -"
    assert main(["servers", "list", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["servers"]
    assert row == {"name": "rig", "url": "http://10.0.0.7:1234", "has_key": True, "ca": None, "used": True}
    assert main(["servers", "use", "rag"]) == 1
    assert "no server is named rag; there are rig" in capsys.readouterr().err
    assert file_of(tmp_path).stat().st_mode & 0o777 == 0o600
    assert file_of(tmp_path).parent.stat().st_mode & 0o777 == 0o700
    assert main(["servers", "remove", "rig"]) == 0
    assert known.read() == Known()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["rig", "ftp://h"], "is no address such as"),
        (["rig", "http://u:k@h"], "a key is named with --api-key"),
        (["rig", "http://h", "--key", ""], "that is no key"),
        (["rig", "http://h", "--ca", "/nowhere"], "/nowhere is no certificate of an authority"),
    ],
)
def test_what_cannot_be_a_server_is_refused(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Before anything is written."""
    assert main(["servers", "add", *words]) == 2
    assert sentence in capsys.readouterr().err
    assert not file_of(tmp_path).exists()


def test_H6_a_file_that_others_can_read_is_mended_and_one_that_they_can_write_is_not_believed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said in both cases; the command ends with 2 before any key is sent."""
    known.write(Known({"rig": Server("http://h", "secret")}, "rig"))
    path = file_of(tmp_path)
    path.chmod(0o644)
    assert known.read().used == "rig"
    assert path.stat().st_mode & 0o777 == 0o600
    assert f"other users could read {path}: it is for this user alone now" in capsys.readouterr().err
    path.chmod(0o620)
    assert main(["ps"]) == 2
    assert f"other users may write {path}, so it is not believed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "servers.json:1:2: "),
        ("[]", "is no list of servers"),
        ('{"version": 1, "servers": {"a": {}}}', "is no list of servers"),
        ('{"version": 1, "servers": {"a": {"url": 3}}}', "is no list of servers"),
        ('{"version": 2, "servers": {}}', "is of another version of gridsched (2)"),
        ("\xff", "servers.json"),
    ],
)
def test_a_damaged_file_is_named_with_its_place(text: str, sentence: str, tmp_path: Path) -> None:
    """Nothing is asked, and nothing is written over it."""
    path = file_of(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode("latin-1"))
    path.chmod(0o600)
    with pytest.raises(KnownError) as caught:
        known.read()
    assert sentence in str(caught.value)
    assert main(["servers", "add", "rig", "http://h"]) == 2
    assert path.read_bytes() == text.encode("latin-1")


def test_a_group_without_a_verb_lists_its_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    """And a word that is none is met with the nearest."""
    for words, verb in ((["keys"], "revoke"), (["servers"], "remove"), ([], "unload")):
        with pytest.raises(SystemExit) as caught:
            main(words)
        assert caught.value.code == 2
        assert verb in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["unlod"])
    assert "there is no 'unlod'; did you mean unload?" in capsys.readouterr().err


def test_servers_that_are_named_at_the_same_time_are_all_kept() -> None:
    """What another command has written since this one began is not undone."""
    begun = known.read()
    assert main(["servers", "add", "other", "10.0.0.8:1234"]) == 0
    add = argparse.Namespace(name="rig", url="10.0.0.7:1234", key=None, key_stdin=False, ca=None, use=False)
    assert servers.VERBS["add"](begun, add) == 0
    assert set(known.read().servers) == {"other", "rig"}
