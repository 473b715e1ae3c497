"""The panel's own port: all is served there as on the first."""

from pathlib import Path

import httpx
import pytest

from gridsched import app
from gridsched.api.listen import listen
from gridsched.app.restarting import refuse_one_port_for_two
from gridsched.settings.load import Surroundings, parse
from gridsched.settings.schema import Settings
from tests.support.gateway import PLAIN, begin, free_port, start


def settings(text: str) -> Settings:
    """Of a file."""
    return parse(text, "grid.yaml", Surroundings(Path(), {}))


def test_the_panel_s_port_is_opened_beside_the_server_s() -> None:
    """On the same host; none where none was asked for."""
    with app.open_ports(settings("server: {port: 0}\npanel: {port: 0}\n")) as (first, second):
        assert first.getsockname()[0] == second.getsockname()[0] == "127.0.0.1"
        assert first.getsockname()[1] != second.getsockname()[1]
    with app.open_ports(settings("server: {port: 0}\n")) as opened:
        assert len(opened) == 1


def test_a_panel_s_port_that_is_taken_is_told_with_its_holder_and_leaves_nothing_open() -> None:
    """Exit code 3, and the key to change."""
    with listen("127.0.0.1", 0) as taken:
        port, free = taken.getsockname()[1], free_port()
        told = settings(f"server: {{port: {free}}}\npanel: {{port: {port}}}\n")
        with pytest.raises(
            app.StartError, match=rf"port {port} on 127.0.0.1 is taken by process .*for panel.port"
        ) as why:
            app.open_ports(told).__enter__()
        assert why.value.code == app.PORT_TAKEN
        listen("127.0.0.1", free).close()


def test_one_port_cannot_be_both() -> None:
    """By line and key, at a start and before a change is believed."""
    told = settings("server: {port: 4321}\npanel:\n  port: 4321\n")
    with pytest.raises(app.StartError, match=r"grid.yaml:3:9: panel.port: 4321 is server.port") as why:
        refuse_one_port_for_two(told)
    assert why.value.code == app.CONFIGURATION


@pytest.mark.slow
def test_H6_the_panel_s_port_serves_all_under_the_same_rules(tmp_path: Path) -> None:
    """Page, API and models; a page of the other port is another origin there."""
    port = free_port()
    config = tmp_path / "grid.yaml"
    config.write_text(f"panel: {{port: {port}}}\n")
    gateway = start(tmp_path, "--sim", "--config", str(config))
    try:
        panel = f"http://127.0.0.1:{port}"
        with httpx.Client(timeout=30.0, **PLAIN) as client:
            for url in (panel, gateway.url):
                assert "text/html" in client.get(url).headers["content-type"]
                assert client.get(f"{url}/api/status").json()["version"]
                ours = client.get(f"{url}/v1/models", headers={"Origin": url})
                assert ours.status_code == 200
                other = gateway.url if url == panel else panel
                foreign = client.post(f"{url}/api/models/sim-embed/load", headers={"Origin": other}, json={})
                assert (foreign.status_code, foreign.json()["error"]["code"]) == (403, "cross_origin")
                rebound = client.get(f"{url}/api/status", headers={"Host": f"evil.example:{port}"})
                assert rebound.status_code == 403
        assert f"panel      http://127.0.0.1:{port}" in gateway.log.read_text(encoding="utf-8")
        (tmp_path / "other").mkdir()
        taken = begin(tmp_path / "other", "--sim", "--config", str(config))
        assert taken.process.wait(60) == app.PORT_TAKEN
        assert f"port {port} on 127.0.0.1 is taken by process {gateway.process.pid}" in taken.log.read_text(
            encoding="utf-8"
        )
    finally:
        assert gateway.stop() == 0
