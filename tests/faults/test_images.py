"""Images by URL through whole processes: what an engine is sent, who goes out, and what nobody goes out for."""

import base64
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gridsched.engine.find import find_engine
from tests.faults.bench import Bench, Served, serve
from tests.support.tiny_model import make_tiny_chat
from tests.support.tiny_projectors import make_tiny_eye, picture

pytestmark = pytest.mark.slow

PICTURE = picture(32)
DATA = base64.b64encode(PICTURE).decode()
URI = f"data:image/png;base64,{DATA}"
SEES: dict[str, object] = {"capabilities": ["chat", "vision", "audio"]}


@dataclass
class Host:
    """A host of one picture, and who asked it for what."""

    port: int = 0
    agents: list[tuple[str, str]] = field(default_factory=list)

    def url(self, path: str) -> str:
        """There."""
        return f"http://127.0.0.1:{self.port}{path}"


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """In a thread of the test's."""
    known = Host()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known.agents.append((self.path, self.headers["user-agent"]))
            self.send_response(200)
            self.send_header("content-type", "image/png")
            self.send_header("content-length", str(len(PICTURE)))
            self.end_headers()
            self.wfile.write(PICTURE)

        def log_message(self, *_: Any) -> None:
            """Not into the test's output."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        known.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield known
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def bench(host: Host, benches: list[Bench], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A model that is said to see, on the stand-in, and the same on the real engine, where there is one."""
    folder = tmp_path_factory.mktemp("images")
    models = {"sees": Served(settings=SEES)}
    found = find_engine()
    if found.info.ok:
        (folder / "beside").mkdir()
        tiny = {
            "path": str(make_tiny_chat(folder / "tiny.gguf")),
            "mmproj": str(make_tiny_eye(folder / "beside/eye.gguf")),
        }
        models["real"] = Served(settings={**SEES, **tiny}, env={**found.env, "REAL_ENGINE": found.info.path})
    settings = {"server": {"image_hosts": [f"127.0.0.1:{host.port}"]}}
    running = serve(folder, models, settings=settings)
    benches.append(running)
    yield running
    assert running.gateway.stop() == 0


def asked(model: str, url: str) -> dict[str, tuple[dict[str, object], dict[str, object]]]:
    """A request of each protocol that names an image by URL, and its content as an engine is to have it."""

    def body(member: str, part: dict[str, object]) -> dict[str, object]:
        return {"model": model, member: [{"role": "user", "content": [part]}], "max_tokens": 2}

    source = {"type": "base64", "media_type": "image/png", "data": DATA}
    return {
        "/v1/chat/completions": (
            body("messages", {"type": "image_url", "image_url": {"url": url, "detail": "low"}}),
            {"type": "image_url", "image_url": {"url": URI, "detail": "low"}},
        ),
        "/v1/responses": (
            body("input", {"type": "input_image", "image_url": url}),
            {"type": "input_image", "image_url": URI},
        ),
        "/v1/messages": (
            body("messages", {"type": "image", "source": {"type": "url", "url": url}}),
            {"type": "image", "source": source},
        ),
    }


def refused(model: str, host: Host) -> Iterator[tuple[str, dict[str, object]]]:
    """What an engine would fetch or open by itself, were it given it."""
    for url in (
        "file:///etc/hostname",
        "file://etc/hostname",
        "/etc/hostname",
        "ftp://127.0.0.1/a",
        "http://127.0.0.1:9/a",
    ):
        for path, (body, _) in asked(model, url).items():
            yield path, body
    url = host.url("/inside")
    for kind in ("input_audio", "input_video"):
        for key in ("url", "data"):
            part = {"type": kind, kind: {key: url}}
            yield "/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": [part]}]}
    for path in ("/apply-template", "/v1/messages/count_tokens"):
        part = {"type": "image_url", "image_url": {"url": "file:///etc/hostname"}}
        yield path, {"model": model, "messages": [{"role": "user", "content": [part]}]}


def test_what_an_engine_would_open_by_itself_is_refused_and_loads_nothing(bench: Bench, host: Host) -> None:
    """In every protocol: files, other schemes, this machine's other ports, sound and film by URL."""
    host.agents.clear()
    for path, body in refused("sees", host):
        answer = bench.ask(path, body)
        assert answer.status == 400, (path, body, answer.body)
        assert answer.error["param"].startswith(("messages[0].content[0].", "input[0].content[0].")), answer.body
    assert bench.starts("sees") == 0
    assert host.agents == []


def test_an_engine_is_sent_the_image_itself_in_its_protocols_form(bench: Bench, host: Host) -> None:
    """Streamed or not; its host is asked by the server alone, once for each request."""
    bench.tell("sees", bodies=True)
    host.agents.clear()
    for number, (path, (body, part)) in enumerate(asked("sees", host.url("/a")).items(), 1):
        for stream in (False, True):
            answer = bench.ask(path, {**body, "stream": stream})
            assert answer.status == 200, answer.body
            sent = json.loads(bench.recorded("sees", "body")[-1])
            member = "input" if path == "/v1/responses" else "messages"
            assert sent == {**body, member: [{"role": "user", "content": [part]}], "stream": stream}
        assert host.agents == [("/a", "gridsched")] * 2 * number


def test_a_real_engine_sees_what_is_named_and_never_goes_out_for_a_client(bench: Bench, host: Host) -> None:
    """The picture is among its tokens as if the client had sent it; only the server was at its host."""
    if not find_engine().info.ok:
        pytest.skip(reason="there is no real engine")
    host.agents.clear()
    for path, (body, sent) in asked("real", host.url("/real")).items():
        member = "input" if path == "/v1/responses" else "messages"
        by_data = bench.ask(path, {**body, member: [{"role": "user", "content": [sent]}]})
        by_url = bench.ask(path, body)
        assert (by_url.status, by_data.status) == (200, 200), by_url.body
        tokens = [
            answer.json["usage"].get("prompt_tokens", answer.json["usage"].get("input_tokens"))
            for answer in (by_url, by_data)
        ]
        assert tokens[0] == tokens[1] > 0
    assert host.agents == [("/real", "gridsched")] * 3
    for path, body in refused("real", host):
        assert bench.ask(path, body).status == 400
    assert len(host.agents) == 3
    log = (bench.folder / "data" / "logs" / "real.log").read_text(encoding="utf-8")
    assert "downloading image" not in log
    assert "loading image from local file" not in log
