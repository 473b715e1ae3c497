"""Headers from a web server: what is asked of it, and what becomes of each way in which servers and networks fail."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gridsched.library.read import Unreadable
from gridsched.library.remote import only_public, read_remote
from gridsched.library.shards import read_model
from gridsched.vram.geometry import Geometry
from tests.library.models import CHAT, TENSORS, write_model, write_split
from tests.support.gguf_header import build_header
from tests.support.range_server import RangeServer, serving

MIB = 1 << 20
OPENSSL = shutil.which("openssl")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback is asked itself, whatever the environment has."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    """One with a chat model whose header is longer than the first range."""
    path = write_model(tmp_path / "m.gguf", {**CHAT, "tokenizer.ggml.merges": [f"merge {i}" for i in range(40_000)]})
    with serving() as world:
        world.files["m.gguf"] = path.read_bytes()
        yield world


def refusal(url: str, seconds: float = 20.0, **environ: str) -> str:
    """The sentence about an address that gives no header."""
    with pytest.raises(Unreadable) as caught:
        read_remote(url, environ, seconds=seconds)
    return str(caught.value)


def test_a_remote_header_is_the_files_own(server: RangeServer, tmp_path: Path) -> None:
    """Header, size, time; the name is the file's; the fingerprint is the same each time."""
    remote = read_remote(f"{server.url}/good/m.gguf?download=true#top", {})
    local = read_model(tmp_path / "m.gguf")
    assert (remote.header, remote.size_bytes, remote.created) == (local.header, local.size_bytes, local.created)
    assert remote.path == Path("m.gguf")
    assert remote.fingerprint == read_remote(f"{server.url}/good/m.gguf", {}).fingerprint
    assert server.asked[0][0] == "/good/m.gguf?download=true"


def test_ranges_grow_and_end_with_the_header(server: RangeServer) -> None:
    """64 KiB, then four times as much; what is hopped over and what lies behind the header is not asked for."""
    far = {**CHAT, "scores": [0.5] * 500_000, "words": [f"w{i}" for i in range(40_000)]}
    server.files["far.gguf"] = build_header(far, TENSORS) + bytes(8 * MIB)
    read_remote(f"{server.url}/good/far.gguf", {})
    first, *rest = server.ranges
    assert first == "bytes=0-65535"
    starts = [int(told.removeprefix("bytes=").split("-")[0]) for told in rest]
    assert starts[0] > 2_000_000
    assert server.sent_bytes < 2 * MIB
    server.asked.clear()
    server.files["small.gguf"] = build_header(CHAT, TENSORS) + bytes(MIB)
    read_remote(f"{server.url}/good/small.gguf", {})
    assert server.ranges == ["bytes=0-65535"]


def test_F2_the_other_parts_are_fetched_too(server: RangeServer, tmp_path: Path) -> None:
    """By the name of any of them; one that the server does not have is named."""
    parts = write_split(tmp_path, "big é", 4)
    server.files |= {part.name: part.read_bytes() for part in parts}
    remote = read_remote(f"{server.url}/good/big%20%C3%A9-00003-of-00004.gguf", {})
    local = read_model(parts[0])
    assert (remote.header, remote.shards, remote.size_bytes) == (local.header, local.shards, local.size_bytes)
    assert Geometry.from_header(remote.header, remote.shards) == Geometry.from_header(local.header, local.shards)
    del server.files[parts[1].name]
    url = f"{server.url}/good/big%20%C3%A9-00001-of-00004.gguf"
    assert refusal(url) == "big é-00002-of-00004.gguf: the server has no such file"


def test_a_redirect_is_followed_once_and_remembered(server: RangeServer) -> None:
    """Relative ones too; further ranges go straight to where it led."""
    with serving() as store:
        store.files = server.files
        server.moved = {"m.gguf": "/moved/n.gguf", "n.gguf": f"{store.url}/good/m.gguf"}
        assert read_remote(f"{server.url}/moved/m.gguf", {}).header.tensors
        assert [path for path, _ in server.asked] == ["/moved/m.gguf", "/moved/n.gguf"]
        assert len(store.asked) > 1


def test_redirects_end(server: RangeServer) -> None:
    """A circle, another scheme, an address that is none."""
    assert "more than 5 times" in refusal(f"{server.url}/circle/m.gguf")
    server.moved = {"f": "file:///etc/passwd", "p": "http://user:word@127.0.0.1/m.gguf", "bad": "http://[::1/m.gguf"}
    assert refusal(f"{server.url}/moved/f") == "file is not supported (http and https are)"
    assert "a name or a password" in refusal(f"{server.url}/moved/p")
    assert "Invalid URL" in refusal(f"{server.url}/moved/bad")


def test_the_hubs_token_goes_to_the_hub_alone(server: RangeServer) -> None:
    """To the endpoint that is configured, to nobody that it redirects to, to no other host."""
    server.token = "secret"  # noqa: S105 - a test's
    hub = {"HF_TOKEN": "secret", "HF_ENDPOINT": server.url}
    assert read_remote(f"{server.url}/locked/m.gguf", hub).header.tensors
    with serving() as other:
        other.files = server.files
        server.moved = {"m.gguf": f"{other.url}/good/m.gguf", "back.gguf": f"{other.url}/moved/back.gguf"}
        read_remote(f"{server.url}/moved/m.gguf", hub)
        assert all("authorization" not in headers for _, headers in other.asked)
        read_remote(f"{other.url}/good/m.gguf", hub)
        assert all("authorization" not in headers for _, headers in other.asked)
        other.moved = {"back.gguf": f"{server.url}/locked/m.gguf"}
        assert "permission (401" in refusal(f"{server.url}/moved/back.gguf", **hub)


def test_a_file_behind_a_login_says_what_is_missing(server: RangeServer) -> None:
    """Without a token where one goes, and with one that is not enough."""
    url = f"{server.url}/locked/m.gguf"
    server.token = "secret"  # noqa: S105 - a test's
    assert refusal(url).endswith("(401; HF_TOKEN is sent to the hub where it is set)")
    wrong = {"HF_TOKEN": "wrong"}
    assert refusal(url, HF_ENDPOINT=server.url, **wrong).endswith("(401; although HF_TOKEN was sent)")
    assert "HF_TOKEN is sent to the hub" in refusal(url, **wrong)


def test_a_server_that_sends_the_whole_file_is_refused_unread(server: RangeServer) -> None:
    """40 MB in its first answer: no more goes over than what fits into the sockets."""
    server.files["large.gguf"] = build_header(CHAT, TENSORS) + bytes(40 * MIB)
    assert "sends the whole file" in refusal(f"{server.url}/whole/large.gguf")
    assert server.sent_bytes < 20 * MIB
    assert "/resolve/, not at /blob/" in refusal(f"{server.url}/page/m.gguf")


@pytest.mark.parametrize(
    ("manner", "words"),
    [
        ("elsewhere", "sends other bytes than asked for"),
        ("unsaid", "does not say which bytes it sends"),
        ("endless", "does not say which bytes it sends (Content-Range: 'bytes 0-65535/*')"),
        ("less", "sends other bytes than asked for"),
        ("encoded", "sends the file encoded (gzip)"),
        ("changing", "the file changed on the server while it was read"),
        ("broken", "127.0.0.1 broke off"),
        ("cut", "broke off after 100 of 65536 bytes"),
        ("more", "sends more bytes than it said"),
        ("404", "the server has no such file"),
        ("410", "the server has no such file"),
        ("403", "without permission (403"),
        ("416", "the file is empty, or became shorter"),
        ("429", "answered 429 Too Many Requests"),
        ("500", "answered 500 Internal Server Error"),
        ("204", "answered 204 No Content"),
        ("302", "answered 302 Found"),
    ],
)
def test_every_wrong_answer_is_a_sentence(server: RangeServer, manner: str, words: str) -> None:
    """Wrong ranges, short and long bodies, encodings, statuses."""
    assert words in refusal(f"{server.url}/{manner}/m.gguf")


def test_F11_files_that_hold_no_header_are_said_as_on_disk(server: RangeServer) -> None:
    """Empty, foreign, cut short: the same parser, the same words."""
    server.files |= {"empty": b"", "zip": b"PK\3\4" + bytes(99), "four": b"GGUF"}
    server.files["cut"] = server.files["m.gguf"][:70_000]
    assert "the file is empty" in refusal(f"{server.url}/good/empty")
    assert "it is a zip archive" in refusal(f"{server.url}/good/zip")
    assert "the file ends" in refusal(f"{server.url}/good/cut")
    assert "the file ends" in refusal(f"{server.url}/good/four")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://host/m.gguf", "ftp is not supported"),
        ("file:///etc/passwd", "file is not supported"),
        ("m.gguf", "an address without a scheme is not supported"),
        ("https://", "names no host"),
        ("https://host/folder/", "names no file"),
        ("https://host", "names no file"),
        ("https://user:word@host/m.gguf", "a name or a password"),
        ("https://host:port/m.gguf", "is no address"),
        ("https://host/..%2fm.gguf", "names no file"),
        ("http://ho st/m.gguf", "is no address"),
        ("http://a..b/m.gguf", "the address is not valid"),
        ("http://xn--/m.gguf", "the address is not valid"),
        ("http://host/\r\nX: 1/m.gguf", "is no address"),
    ],
)
def test_addresses_that_are_none_are_said(url: str, words: str) -> None:
    """Before anybody is asked."""
    assert words in refusal(url)


def test_settings_of_the_hub_that_are_none_are_said(server: RangeServer) -> None:
    """An endpoint that is no address, a token that no header can hold."""
    url = f"{server.url}/good/m.gguf"
    assert "'http://[bad' is no address" in refusal(url, HF_TOKEN="a", HF_ENDPOINT="http://[bad")  # noqa: S106 - none
    assert refusal(url, HF_TOKEN="é") == "HF_TOKEN has a character that no token has"  # noqa: S106 - the same


def test_a_host_that_is_not_there_is_said() -> None:
    """A port that nobody listens on."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        assert refusal(f"http://127.0.0.1:{nobody.getsockname()[1]}/m.gguf").startswith("127.0.0.1 cannot be reached")


@pytest.mark.slow
def test_a_server_that_is_silent_or_drips_is_not_waited_for(server: RangeServer) -> None:
    """No answer, and one that comes a byte at a time."""
    assert refusal(f"{server.url}/silent/m.gguf", seconds=0.3) == "127.0.0.1 did not answer in time"
    assert "too slow" in refusal(f"{server.url}/drip/m.gguf", seconds=0.3)


def test_a_server_without_tls_is_said(server: RangeServer) -> None:
    """TLS to a port that speaks http."""
    assert "127.0.0.1 speaks no TLS" in refusal(server.url.replace("http:", "https:") + "/good/m.gguf")


@pytest.mark.slow
@pytest.mark.skipif(OPENSSL is None, reason="needs the openssl program to make a certificate")
def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the same server is read once somebody does; from there no redirect to plain http is followed."""
    pem = tmp_path / "own.pem"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(pem), "-out"]
    subprocess.run([str(OPENSSL), *words, str(tmp_path / "cert")], check=True, capture_output=True)
    pem.write_text(pem.read_text() + (tmp_path / "cert").read_text())
    with serving(pem) as world, serving() as plain:
        world.files["m.gguf"] = build_header(CHAT, TENSORS) + bytes(MIB)
        world.moved["m.gguf"] = f"{plain.url}/good/m.gguf"
        assert "does not prove that it is 127.0.0.1: self" in refusal(f"{world.url}/good/m.gguf")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert"))
        assert read_remote(f"{world.url}/good/m.gguf", {}).header.tensors
        assert "from https to http, which is not followed" in refusal(f"{world.url}/moved/m.gguf")
        assert plain.asked == []


@pytest.mark.parametrize(
    ("found", "allowed"),
    [(["93.184.216.34"], True), (["10.0.0.1"], False), (["93.184.216.34", "127.0.0.1"], False), ([], False)],
)
def test_a_host_is_asked_at_the_address_that_was_vetted(
    monkeypatch: pytest.MonkeyPatch, found: list[str], *, allowed: bool
) -> None:
    """One address within this network spoils them all; what a name means a moment later is nobody's concern."""
    answers = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443)) for address in found]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)
    vet, address = only_public({}), urlsplit("https://models.example/m.gguf")
    if allowed:
        assert vet(address) == found[0]
    else:
        with pytest.raises(Unreadable, match="no public address"):
            vet(address)
