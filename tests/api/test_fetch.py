"""Fetching an image: which hosts may be asked for it, how they are asked, and what is taken of their answers."""

import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
import trio

from gridsched.api.fetch import Allowance, Fetcher, Image
from gridsched.api.resolve import look_up
from gridsched.hosts import Refused, is_public, place_of
from tests.support.image_host import JPEG, PNG, ImageHost, Part, answer, image_host, redirect, tls_pair

# --- who may be asked -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "93.184.216.34", "2606:2800:220:1::1", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_public_addresses_are_asked(address: str) -> None:
    """In either family, and through a translator of them."""
    assert is_public(address)


NOT_PUBLIC = (
    "127.0.0.1 127.8.8.8 0.0.0.0 0.1.2.3 10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 169.254.169.254 100.64.0.1 "
    "100.127.255.255 192.0.0.1 192.0.0.192 192.0.2.1 192.88.99.1 198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 "
    "239.1.1.1 240.0.0.1 255.255.255.255 ::1 :: ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::127.0.0.1 "
    "fe80::1 fe80::1%lo fec0::1 fc00::1 fd00:ec2::254 fd12::1 ff02::1 64:ff9b::a9fe:a9fe "
    "64:ff9b::a00:1 64:ff9b::7f00:1 64:ff9b:1::808:808 2001::1 "
    "2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:10::1 2001:db8::1 2002:7f00:1:: "
    "2002:808:808:: 3fff::1 100::1 5f00::1 ::ffff:0:127.0.0.1 localhost 1"
)


@pytest.mark.parametrize("address", NOT_PUBLIC.split())
def test_addresses_that_are_not_public_are_not_asked(address: str) -> None:
    """The machine itself, its networks, the metadata of a cloud, and every form of IPv6 that carries one of them."""
    assert not is_public(address)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://2130706433/", "a number"),
        ("http://0x7f000001/", "a number"),
        ("http://0x7f.1/", "a number"),
        ("http://0177.0.0.1/", "no URL"),
        ("http://127.1/", "a number"),
        ("http://1.2.3.4.5/", "a number"),
        ("http://user@example.com/", "a name or a password"),
        ("http://user:word@example.com/", "a name or a password"),
        ("http://example.com:22/", "ports"),
        ("http://example.com:0/", "ports"),
        ("https://example.com:8443/", "ports"),
        ("gopher://example.com/", "http and https"),
        ("http://", "no host"),
        ("http:///a.png", "no host"),
        ("http://exa mple.com/", "no URL"),
        ("http://example.com:99999/", "ports"),
        ("http://[::1/", "no URL"),
        ("http://a\nb.com/", "no URL"),
        ("http://ex%61mple.com/", "no URL"),
        ("http://example.com\\@127.0.0.1/", "a name or a password"),
        ("http://①②⑦.0.0.1/", "no URL"),
    ],
)
def test_a_url_that_is_not_plain_is_not_asked(url: str, words: str) -> None:
    """By its words alone, before anything is looked up."""
    with pytest.raises(Refused, match=words):
        place_of(url, frozenset())


def test_a_host_that_a_person_has_named_is_asked_at_that_port_only() -> None:
    """Whatever its addresses are; in the header it is called as the client calls it."""
    named = frozenset({"nas.local:8080", "[::1]:81", "127.0.0.1:82"})
    assert [
        place_of(url, named).authority
        for url in ("http://NAS.local.:8080/a", "http://[::1]:81/", "http://127.0.0.1:82/")
    ] == [
        "nas.local:8080",
        "[::1]:81",
        "127.0.0.1:82",
    ]
    assert place_of("http://nas.local:8080/a", named).named
    assert not place_of("http://nas.local/a", named).named
    assert place_of("https://example.com/a", named).authority == "example.com"


# --- what is fetched --------------------------------------------------------------------------------------------------


@dataclass
class Names:
    """A resolver of a test. Each look-up of a host gives its next answer, and there is none after the last."""

    answers: dict[str, list[Sequence[str]]]
    asked: list[str] = field(default_factory=list)

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """The next answer."""
        assert port
        self.asked.append(host)
        await trio.lowlevel.checkpoint()
        if not self.answers.get(host):
            raise OSError("no such name")
        return self.answers[host].pop(0)


async def fetched(host: ImageHost, *parts: Part, longest: int = 1000, left: int = 10_000) -> Image:
    """What becomes of an answer of a host that a person has named."""
    host.answers["/a"] = parts
    names = Names({"pics.test": [["127.0.0.1"]]})
    fetcher = Fetcher(longest, frozenset({f"pics.test:{host.port}"}), names)
    return await fetcher.fetch(f"http://pics.test:{host.port}/a", Allowance(left))


@pytest.mark.usefixtures("autojump_clock")
async def test_an_image_is_taken_as_it_came() -> None:
    """By its own first bytes, and asked for without anything of the client's."""
    async with image_host() as host:
        assert await fetched(host, *answer(PNG)) == Image("image/png", PNG)
        assert await fetched(host, *answer(JPEG, "image/jpg; q=1")) == Image("image/jpeg", JPEG)
        chunked = answer(PNG, Content_Length="x")[0].replace(b"Content-Length: x", b"Transfer-Encoding: chunked")  # type: ignore[union-attr]  # bytes
        whole = chunked.replace(PNG, b"5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (PNG[:5], len(PNG) - 5, PNG[5:]))
        assert await fetched(host, whole) == Image("image/png", PNG)
        assert host.headers == {
            "host": f"pics.test:{host.port}",
            "accept": "image/*",
            "accept-encoding": "identity",
            "connection": "keep-alive",
            "user-agent": "gridsched",
            "": "",
        }


BIG = b"\x89PNG\r\n\x1a\n" + bytes(2000)
BAD_ANSWERS: dict[str, tuple[list[Part], str]] = {
    "not there": (answer(b"no", "text/html", 404), "answered 404"),
    "in trouble": (answer(b"no", "text/html", 500), "answered 500"),
    "a part of it": (answer(PNG, status=206), "answered 206"),
    "a page": (answer(b"<html>", "text/html"), "does not call it an image"),
    "without a type": (answer(PNG, ""), "does not call it an image"),
    "a page that is called an image": (answer(b"<html>"), "no PNG"),
    "a drawing with scripts": (answer(b"<svg/>", "image/svg+xml"), "no PNG"),
    "a photograph that is called a PNG": (answer(JPEG), "it is image/jpeg"),
    "empty": (answer(b""), "no PNG"),
    "too long": (answer(BIG), "longer than 1000 bytes"),
    "too long, and it does not say so": (
        [answer(BIG)[0].replace(b"Content-Length: 2008\r\n", b"")],
        "longer than 1000",
    ),  # type: ignore[union-attr]  # bytes
    "without an end": (
        [b"HTTP/1.1 200 X\r\nContent-Type: image/png\r\n\r\n" + PNG, *[bytes(100)] * 10_000],
        "longer than 1000",
    ),
    "shorter than it says": (answer(PNG, Content_Length="500"), "broke the answer off"),
    "compressed": (answer(PNG, Content_Encoding="gzip"), "compressed"),
    "no HTTP": ([b"SSH-2.0-OpenSSH_9.0\r\n"], "did not speak HTTP"),
    "nothing at all": ([], "broke the answer off"),
    "a head without an end": ([b"HTTP/1.1 200 X\r\n", *[b"A: " + b"b" * 60_000 + b"\r\n"] * 10], "did not speak HTTP"),
    "two lengths": ([b"HTTP/1.1 200 X\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n"], "did not speak HTTP"),
    "a redirect to nowhere": (redirect("http://[::1/"), "did not speak HTTP"),
    "a redirect to a file": (redirect("file:///etc/passwd"), "http and https"),
    "a redirect inside": (redirect("http://127.0.0.1/a"), "no public address"),
    "a redirect to a name for inside": (redirect("http://localhost/a"), "no public address"),
    "a redirect with a password": (redirect("http://a:b@pics.test/a"), "a name or a password"),
}


@pytest.mark.usefixtures("autojump_clock")
@pytest.mark.parametrize(("parts", "words"), BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys())
async def test_an_answer_that_is_no_image_is_not_taken(parts: list[Part], words: str) -> None:
    """Nor more of it than would be taken."""
    async with image_host() as host:
        with pytest.raises(Refused, match=words) as caught:
            await fetched(host, *parts)
        assert "127.0" not in str(caught.value)


async def test_images_of_one_request_share_what_a_body_may_have() -> None:
    """Counted as it comes."""
    async with image_host() as host:
        with pytest.raises(Refused, match="max_body"):
            await fetched(host, *answer(BIG), longest=10_000, left=1000)


async def test_every_redirect_is_vetted_and_three_are_followed() -> None:
    """Each with a look-up of its own; relative ones too."""
    async with image_host() as host:
        there = f"pics.test:{host.port}"
        names = Names({"pics.test": [["127.0.0.1"]] * 4, "other.test": [["127.0.0.1"]]})
        fetcher = Fetcher(1000, frozenset({there, f"other.test:{host.port}"}), names)
        other = f"http://other.test:{host.port}/2"
        host.answers |= {"/0": redirect("/1?a=b"), "/1?a=b": redirect(other), "/2": redirect(f"http://{there}/3")}
        host.answers |= {"/3": answer(PNG), "/4": redirect("/4")}
        assert (await fetcher.fetch(f"http://{there}/0#part", Allowance(1000))).data == PNG
        assert [asked for asked, _ in host.asked] == ["/0", "/1?a=b", "/2", "/3"]
        assert names.asked == ["pics.test", "pics.test", "other.test", "pics.test"]
        names.answers["pics.test"] = [["127.0.0.1"]] * 9
        with pytest.raises(Refused, match="more than 3 times"):
            await fetcher.fetch(f"http://{there}/4", Allowance(1000))
        assert len(host.asked) == 8


async def test_a_name_that_means_something_else_a_moment_later_is_asked_where_it_was_vetted() -> None:
    """One look-up, and the connection goes to what it gave; nobody looks the name up again."""
    async with image_host() as host:
        host.answers["/a"] = answer(PNG)
        names = Names({"turns.test": [["127.0.0.1"], ["192.0.2.1"]]})
        fetcher = Fetcher(1000, frozenset({f"turns.test:{host.port}"}), names)
        assert (await fetcher.fetch(f"http://turns.test:{host.port}/a", Allowance(1000))).data == PNG
        assert names.asked == ["turns.test"]
        assert host.asked == [("/a", f"turns.test:{host.port}")]


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["2606:2800:220:1::1", "::1"], [], ["fe80::1%lo"], ["nonsense"]],
)
async def test_a_host_with_an_address_inside_is_not_asked(addresses: list[str]) -> None:
    """One of them is enough; said in the same words as of a name that does not exist."""
    fetcher = Fetcher(1000, resolve=Names({"inside.test": [addresses]}))
    said = []
    for host in ("inside.test", "missing.test"):
        with pytest.raises(Refused) as caught:
            await fetcher.fetch(f"http://{host}/a", Allowance(1000))
        said.append(str(caught.value))
    assert said == ["its host has no public address"] * 2


async def test_the_systems_own_look_up_gives_addresses() -> None:
    """Of what is written as one, and of a name in the hosts file."""
    assert await look_up("127.0.0.1", 80) == ("127.0.0.1",)
    assert {*await look_up("localhost", 443)} <= {"127.0.0.1", "::1"}
    with pytest.raises(Refused, match="no public address"):
        await Fetcher(1000).fetch("http://localhost/a", Allowance(1000))
    with pytest.raises(Refused, match="no public address"):
        await Fetcher(1000).fetch(f"http://{'a' * 64}.test/a", Allowance(1000))


@pytest.mark.usefixtures("autojump_clock")
async def test_the_next_address_is_tried_where_one_does_not_answer() -> None:
    """Three of them; then the host cannot be reached."""
    async with image_host() as host:
        host.answers["/a"] = answer(PNG)
        there = f"pics.test:{host.port}"
        names = Names({"pics.test": [["127.0.0.2", "127.0.0.1"], ["127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.1"]]})
        fetcher = Fetcher(1000, frozenset({there}), names)
        assert (await fetcher.fetch(f"http://{there}/a", Allowance(1000))).data == PNG
        with pytest.raises(Refused, match="cannot be reached"):
            await fetcher.fetch(f"http://{there}/a", Allowance(1000))


class Elsewhere(trio.abc.SocketFactory):
    """Whatever address is connected to, its port leads to one of this machine; `asked` are those that were meant."""

    def __init__(self, ports: Mapping[int, int]) -> None:
        self.ports = ports
        self.asked: list[tuple[str, int]] = []

    def socket(self, family: int = -1, type: int = -1, proto: int = -1) -> trio.socket.SocketType:  # noqa: A002 - trio's name
        """One that is led there."""
        made = trio.socket.from_stdlib_socket(socket.socket(family, type, proto))
        connect = made.connect

        async def connect_elsewhere(address: tuple[str, int]) -> None:
            self.asked.append(address)
            await connect(("127.0.0.1", self.ports[address[1]]))

        made.connect = connect_elsewhere  # type: ignore[method-assign, assignment]  # of this one
        return made


@pytest.mark.usefixtures("autojump_clock")
async def test_a_public_host_is_asked_at_its_usual_ports_and_by_its_name() -> None:
    """In the clear and then, sent on, under TLS; at the addresses that were vetted."""
    server, client = tls_pair("pics.example")

    async def trusts() -> ssl.SSLContext:
        await trio.lowlevel.checkpoint()
        return client

    async with image_host() as plain, image_host(server) as secure:
        factory = Elsewhere({80: plain.port, 443: secure.port})
        trio.socket.set_custom_socket_factory(factory)
        plain.answers["/a"] = redirect("https://PICS.example./b%20c?d=e")
        secure.answers["/b%20c?d=e"] = answer(PNG)
        names = Names({"pics.example": [["93.184.216.34"], ["8.8.8.8", "1.1.1.1"]]})
        image = await Fetcher(1000, resolve=names, tls=trusts).fetch("http://pics.example/a#b", Allowance(1000))
        assert image == Image("image/png", PNG)
        assert factory.asked == [("93.184.216.34", 80), ("8.8.8.8", 443)]
        assert (plain.asked, secure.asked) == ([("/a", "pics.example")], [("/b%20c?d=e", "pics.example")])


@pytest.mark.usefixtures("autojump_clock")
async def test_under_TLS_the_certificate_is_the_names_and_not_the_addresses() -> None:
    """The name is told at the handshake; a certificate for another one, or of nobody's, is not trusted."""
    server, client = tls_pair("pics.test")

    async def trusts() -> ssl.SSLContext:
        await trio.lowlevel.checkpoint()
        return client

    async with image_host(server) as host:
        host.answers["/a"] = answer(PNG)
        named = frozenset({f"pics.test:{host.port}", f"other.test:{host.port}"})
        names = Names({"pics.test": [["127.0.0.1"]] * 2, "other.test": [["127.0.0.1"]]})
        fetcher = Fetcher(1000, named, names, trusts)
        assert (await fetcher.fetch(f"https://pics.test:{host.port}/a", Allowance(1000))).data == PNG
        with pytest.raises(Refused, match="no certificate that is trusted"):
            await fetcher.fetch(f"https://other.test:{host.port}/a", Allowance(1000))
        assert host.asked == [("/a", f"pics.test:{host.port}")]
