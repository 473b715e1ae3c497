"""The listening socket, and who holds a port that is taken."""

import errno
import os
import resource
import socket

import pytest
import trio
from trio.testing import MockClock

from gridsched.api.listen import CannotListen, PortTaken, accept_all, crowded, holder_of, listen, room_for_connections


def test_a_free_port_is_ours_at_once() -> None:
    """It takes connections before anybody serves them, without Nagle's delay; who is silent is asked if it lives."""
    with listen("127.0.0.1", 0) as listener:
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        with socket.create_connection(listener.getsockname(), timeout=1.0) as client:
            assert client.getpeername() == listener.getsockname()


def test_a_taken_port_names_its_holder() -> None:
    """Pid and command, where they can be seen: here our own."""
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(PortTaken) as caught:
            listen("127.0.0.1", port)
        assert str(caught.value).startswith(f"port {port} on 127.0.0.1 is taken by process {os.getpid()} (")
        assert "python" in caught.value.holder or "pytest" in caught.value.holder


def test_a_holder_that_cannot_be_seen_is_said_to_be_one() -> None:
    """Nobody holds port 0."""
    assert holder_of(0) == "a program that this user cannot see"


@pytest.mark.parametrize("host", ["not a host", "203.0.113.7", "", "x" * 300])
def test_an_address_that_is_not_ours_is_a_sentence(host: str) -> None:
    """Never a traceback."""
    with pytest.raises(CannotListen) as caught:
        listen(host, 1234)
    assert not isinstance(caught.value, PortTaken)
    assert host[:20] in str(caught.value)


def test_there_are_descriptors_for_every_client_that_is_let_in() -> None:
    """Two for each, and as many as the system allows."""
    room = room_for_connections()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert room >= 1
    assert soft == resource.RLIM_INFINITY or 2 * room <= soft
    assert soft in {hard, resource.RLIM_INFINITY} or soft >= 16 * 1024


@pytest.mark.parametrize(("hard", "room"), [(64, 16), (256, 64), (1024, 384)])
def test_what_the_server_keeps_for_itself_leaves_room_for_clients(
    hard: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a small limit of open files, too; and a person is told who serves few."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (hard, hard))
    assert room_for_connections() == room
    told = crowded(room)
    assert [str(hard) in sentence and str(room) in sentence for sentence in told] == [True] * (room < 64)


class Exhausted(socket.socket):
    """Nobody can be accepted."""

    def accept(self) -> tuple[socket.socket, object]:
        """As the kernel says it."""
        raise OSError(errno.EMFILE, "Too many open files")


async def test_clients_that_cannot_be_accepted_are_told_of_once_a_minute(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    """However often it is tried."""
    listener = Exhausted()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    with socket.create_connection(listener.getsockname()), trio.move_on_after(30.0):
        await accept_all(listener, socket.socket.close)
    assert listener.fileno() < 0
    assert autojump_clock.current_time() >= 30.0
    (record,) = caplog.records
    assert record.getMessage() == "clients wait, because none can be accepted: Too many open files"
    assert record.exc_info is None
