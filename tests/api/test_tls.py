"""TLS on the public port: the data plane through it, renewed certificates, and who may go without."""

import json
import os
import ssl
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from gridsched.api.listen import listen
from gridsched.api.settings import FrontSettings
from gridsched.api.tls import CannotSpeakTls, Certificate, agreed
from gridsched.api.transport import Transport, of_one_machine
from tests.support.certificates import write_pair
from tests.support.fakes import Script
from tests.support.front import Client, House, serving

CHAT = "/v1/chat/completions"
HELLO = {"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
EVENTS = ((b"content-type", b"text/event-stream"),)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[FrontSettings, ssl.SSLContext]:
    """A front with a certificate for its address, and a client's trust in it."""
    path = tmp_path_factory.mktemp("tls") / "pair.pem"
    trust = write_pair(path, path, "127.0.0.1")
    return FrontSettings(certificate=Certificate(path)), trust


async def connected(house: House, trust: ssl.SSLContext) -> Client:
    """A connection with TLS."""
    raw = await trio.open_tcp_stream("127.0.0.1", house.port)
    stream = trio.SSLStream(raw, trust, server_hostname="127.0.0.1", https_compatible=True)
    await stream.do_handshake()
    return Client(stream, house.port)  # type: ignore[arg-type]  # a stream as good as a socket's


async def status(house: House, trust: ssl.SSLContext) -> int:
    """Of an ordinary request on a connection of its own."""
    async with await connected(house, trust) as client:
        return (await client.ask("GET", "/v1/models")).status


async def test_requests_and_streams_pass_through_tls(
    autojump_clock: MockClock, pair: tuple[FrontSettings, ssl.SSLContext]
) -> None:
    """Several on one connection; a page of its own origin, with https, is one of ours; a stream as it comes."""
    figures, trust = pair
    async with serving(autojump_clock, figures) as house, await connected(house, trust) as client:
        answer = await client.ask("POST", CHAT, HELLO)
        assert (answer.status, answer.complete) == (200, True)
        own = {"Origin": f"https://127.0.0.1:{house.port}"}
        assert (await client.ask("GET", "/api/status", headers=own)).status == 200
        house.upstream.scripts.append(Script([b"data: %d\n\n" % n for n in range(50)], headers=EVENTS))
        stream = await client.ask("POST", CHAT, HELLO | {"stream": True})
        assert stream.body.count(b"data: ") == 50
    assert not house.logged("reject")


async def test_whoever_is_on_this_machine_may_go_without(
    autojump_clock: MockClock, pair: tuple[FrontSettings, ssl.SSLContext]
) -> None:
    """The commands and the watchdog do: what they say never leaves it."""
    async with serving(autojump_clock, pair[0]) as house:
        assert (await house.ask("POST", CHAT, HELLO)).status == 200


@pytest.mark.parametrize(
    ("peer", "own", "same"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.9.9.9", "10.0.0.5", True),
        ("::1", "::1", True),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", True),
        ("10.0.0.5", "10.0.0.5", True),
        ("10.0.0.6", "10.0.0.5", False),
        ("fe80::2%eth0", "fe80::1%eth0", False),
    ],
)
def test_one_machine_is_told_by_the_connections_own_addresses(peer: str, own: str, *, same: bool) -> None:
    """Never by what a request says."""
    assert of_one_machine(peer, own) is same


async def test_plain_http_from_elsewhere_is_told_to_speak_tls(pair: tuple[FrontSettings, ssl.SSLContext]) -> None:
    """A 400 before anything of the request is read, in the shape of every error."""
    certificate = pair[0].certificate
    assert certificate is not None
    with listen("127.0.0.1", 0) as listener:
        client = await trio.open_tcp_stream("127.0.0.1", listener.getsockname()[1])
        transport = Transport(listener.accept()[0], 5.0)
    async with client:
        await client.send_all(b"GET /v1/models HTTP/1.1\r\nHost: rig\r\n\r\n")
        await client.send_eof()
        assert await agreed(transport, certificate, here=False) is None
        await transport.aclose()
        answer = b""
        while more := await client.receive_some():
            answer += more
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert "https://" in json.loads(body)["error"]["message"]


async def test_S8_a_client_over_tls_that_reads_nothing_has_left_when_its_time_is_over(
    autojump_clock: MockClock, pair: tuple[FrontSettings, ssl.SSLContext]
) -> None:
    """As one without; and one that vanishes in mid-answer gives its slot back at once."""
    figures, trust = pair
    async with serving(autojump_clock, figures) as house:
        house.upstream.scripts.append(Script([b"#" * 65536] * 100_000, headers=EVENTS))
        async with await connected(house, trust) as client:
            await client.send("POST", CHAT, json.dumps(HELLO | {"stream": True}).encode())
            await house.until_logged("dispatch")
            began_at = trio.current_time()
            await house.runtime.desk.wait_idle()
            assert 120.0 <= trio.current_time() - began_at < 721.0
        house.upstream.scripts.append(Script([b"data: 1\n\n", 1000.0, b"data: 2\n\n"], headers=EVENTS))
        gone = await connected(house, trust)
        await gone.send("POST", CHAT, json.dumps(HELLO | {"stream": True}).encode())
        await house.until_logged("dispatch", 2)
        left_at = trio.current_time()
        await gone.stream.transport_stream.aclose()  # type: ignore[attr-defined]  # without a last word
        await house.runtime.desk.wait_idle()
        assert trio.current_time() - left_at < 30.0


async def test_a_client_that_says_nothing_or_nonsense_holds_nothing_up(
    autojump_clock: MockClock, pair: tuple[FrontSettings, ssl.SSLContext], caplog: pytest.LogCaptureFixture
) -> None:
    """Silence, half a handshake, a broken one: each connection ends, without a traceback, and so does the server."""
    async with serving(autojump_clock, pair[0]) as house:
        silent, half, broken = [await trio.open_tcp_stream("127.0.0.1", house.port) for _ in range(3)]
        await half.send_all(b"\x16\x03")
        await broken.send_all(b"\x16\x03\x01\x00\x05hello")
        for stream in (broken, half, silent):
            while await stream.receive_some():
                pass
            await stream.aclose()
        late = await trio.open_tcp_stream("127.0.0.1", house.port)
        told_at = trio.current_time()
        house.runtime.end()
        await house.ended.wait()
        assert trio.current_time() - told_at < 1.0
        await late.aclose()
    assert caplog.records == []


async def test_a_renewed_certificate_is_served_and_a_bad_one_is_not(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a restart; what cannot be used leaves the old one, and is said once."""
    path = tmp_path / "pair.pem"
    old = write_pair(path, path, "127.0.0.1")
    async with serving(autojump_clock, FrontSettings(certificate=Certificate(path))) as house:
        assert await status(house, old) == 200
        renewed = tmp_path / "renewed.pem"
        new = write_pair(renewed, renewed, "127.0.0.1")
        os.replace(renewed, path)  # noqa: PTH105 - as programs renew it
        assert await status(house, new) == 200
        path.write_text("half", encoding="ascii")
        for _ in range(2):
            assert await status(house, new) == 200
        path.unlink()
        assert await status(house, new) == 200
    (record,) = caplog.records
    assert "stays as it was" in record.getMessage()


def test_a_certificate_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    """Missing, no PEM, the key of another, a key that is locked: never a traceback, and never a question."""
    one, other, locked = (tmp_path / name for name in ("one.pem", "other.pem", "locked.pem"))
    write_pair(one, one, "a")
    write_pair(other, tmp_path / "other.key", "b")
    write_pair(locked, tmp_path / "locked.key", "c", b"secret")
    (tmp_path / "junk").write_bytes(b"\x00\xff")
    for certificate, key, word in (
        ("absent.pem", None, "No such file"),
        ("junk", None, "no certificate"),
        ("one.pem", "other.key", "mismatch"),
        ("other.pem", None, "no certificate"),
        ("locked.pem", "locked.key", "password"),
    ):
        with pytest.raises(CannotSpeakTls, match=word):
            Certificate(tmp_path / certificate, tmp_path / key if key else None)


def test_a_certificate_that_ends_soon_is_spoken_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In time for a person to renew it; so is one that took a good one's place and is over. Its key is for nobody
    else's eyes."""
    path, now = tmp_path / "pair.pem", 0.0
    write_pair(path, path, "127.0.0.1")
    path.chmod(0o600)
    certificate = Certificate(path, now=lambda: now)
    end = certificate._ends_at
    assert end is not None
    certificate.context()
    assert caplog.messages == []
    now = end - 3600.0
    certificate.context()
    certificate.context()
    assert [said.partition(".pem ")[2][:26] for said in caplog.messages] == ["is valid for 1 h more: ren"]
    now = end + 7200.0
    os.utime(path, ns=(1, 1))
    certificate.context()
    assert "is no longer valid" in caplog.messages[-1]
    path.chmod(0o604)
    os.utime(path, ns=(2, 2))
    certificate.context()
    assert "everybody on this machine may read the key" in caplog.messages[-2]
