"""The listening socket, and who holds a port that is taken."""

import os
import resource
import socket

import pytest

from gridsched.api.listen import CannotListen, PortTaken, holder_of, listen, room_for_connections


def test_a_free_port_is_ours_at_once() -> None:
    """It takes connections before anybody serves them, without Nagle's delay, and gives up on who never reads."""
    with listen("127.0.0.1", 0) as listener:
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000
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
