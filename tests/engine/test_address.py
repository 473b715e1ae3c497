"""B13, B30: who listens at a port, and which are free."""

import os
import socket
from pathlib import Path

import pytest

from gridsched.engine.address import Listener, free_port, listener

OTHER_GROUP = 1


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::"])  # noqa: S104 - what somebody else may listen at
def test_B13_a_port_is_ours_only_where_our_group_listens(host: str) -> None:
    """At the very address, or at all of this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family, dualstack_ipv6=family == socket.AF_INET6) as server:
        number = server.getsockname()[1]
        assert listener(number, os.getpgrp()) is Listener.OURS
        assert listener(number, OTHER_GROUP) is Listener.FOREIGN
    assert listener(number, os.getpgrp()) is Listener.NOBODY


def test_B13_a_connection_of_ours_makes_no_port_ours() -> None:
    """Only who listens counts, not who talks."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()[:2]) as client:
        assert listener(client.getsockname()[1], os.getpgrp()) is Listener.NOBODY


TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 777 1 0 100 0 0 10 0
   1: {second}:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 888 1 0 100 0 0 10 0
"""


@pytest.mark.parametrize(("second", "who"), [("00000000", Listener.OURS), ("0100007F", Listener.FOREIGN)])
def test_B13_a_port_that_is_shared_is_not_ours(tmp_path: Path, second: str, who: Listener) -> None:
    """The very address wins over all addresses; two at the very address may get each other's connections."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net/tcp").write_text(TABLE.format(second=second), encoding="ascii")
    (tmp_path / "7/fd").mkdir(parents=True)
    (tmp_path / "7/stat").write_text("7 (a) b) S 1 7 7 0", encoding="ascii")
    (tmp_path / "7/fd/3").symlink_to("socket:[777]")
    (tmp_path / "8").mkdir()  # one that has ended meanwhile
    assert listener(0x1F90, 7, tmp_path) is who


def test_B30_ports_are_chosen_from_no_list() -> None:
    """Nothing to return, nothing to leak."""
    with socket.create_server(("127.0.0.1", free_port())):
        assert free_port() > 1023
