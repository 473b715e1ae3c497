"""Models from other places, through a real server and the real engine: of other programs, and from the hub."""

import hashlib
import json
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from tests.support import hub_host
from tests.support.gateway import PLAIN, Gateway, start
from tests.support.hub_host import HubHost
from tests.support.tiny_model import make_tiny_chat

pytestmark = pytest.mark.slow

REPO, FILE = "someone/tiny-GGUF", "tiny-F32.gguf"
ID = f"{REPO}/{FILE}"


def home_of(folder: Path) -> dict[str, str]:
    """An environment in which this is the person's home."""
    return {"HOME": str(folder), "XDG_CACHE_HOME": "", "XDG_CONFIG_HOME": "", "HF_TOKEN": "", "HF_HUB_OFFLINE": ""}


def chats(gateway: Gateway, model: str) -> bool:
    """Whether a model of that name answers."""
    body = {"model": model, "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}
    return gateway.post("/v1/chat/completions", body).status_code == 200


def test_naming_any_model_of_other_programs_loads_it(tmp_path: Path) -> None:
    """LM Studio's, the hub cache's, Ollama's and llama.cpp's, each laid out as that program does it."""
    tiny = make_tiny_chat(tmp_path / "tiny.gguf").read_bytes()
    home = tmp_path / "home"
    digest = hashlib.sha256(tiny).hexdigest()
    cache = home / ".cache" / "huggingface" / "hub" / "models--pub--cached-GGUF"
    ollama = home / ".ollama" / "models"
    manifest = {"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}]}
    files = {
        home / ".lmstudio" / "models" / "pub" / "Studio-GGUF" / "studio-Q4.gguf": tiny,
        cache / "blobs" / digest: tiny,
        ollama / "blobs" / f"sha256-{digest}": tiny,
        ollama / "manifests" / "registry.ollama.ai" / "library" / "tiny" / "latest": json.dumps(manifest).encode(),
        home / ".cache" / "llama.cpp" / "manifest=pub=flat-GGUF=latest.json": b"{}",
        home / ".cache" / "llama.cpp" / "pub_flat-GGUF_flat-Q8_0.gguf": tiny,
    }
    for path, data in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    snapshot = cache / "snapshots" / "1f1f" / "cached-F16.gguf"
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(Path("..") / ".." / "blobs" / digest)
    gateway = start(tmp_path, env=home_of(home))
    try:
        ids = {model["id"] for model in gateway.get("/v1/models").json()["data"]}
        assert ids == {
            "pub/Studio-GGUF/studio-Q4",
            "pub/cached-GGUF/cached-F16",
            "tiny:latest",
            "pub/flat-GGUF/flat-Q8_0",
        }
        for name in ("PUB/studio-gguf", "cached-F16.gguf", "library/tiny", "pub/flat-GGUF/flat-Q8_0.gguf"):
            assert chats(gateway, name), name
    finally:
        assert gateway.stop() == 0


class Operator:
    """Whoever may do all on this machine."""

    def __init__(self, gateway: Gateway, data: Path) -> None:
        token = (data / "admin.token").read_text(encoding="utf-8").strip()
        self._url = gateway.url
        self._headers = {"Authorization": f"Bearer {token}"}

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Mapping[str, object]]:
        """Status and answer."""
        answer = httpx.request(method, self._url + path, json=body, headers=self._headers, **PLAIN, timeout=60.0)
        return answer.status_code, answer.json()

    def download(self) -> Mapping[str, object]:
        """How the one download stands."""
        _, told = self.ask("GET", "/api/downloads")
        found = told["downloads"]
        assert isinstance(found, list)
        return found[0] if found else {"state": "", "done_bytes": 0}


@pytest.fixture
def host() -> Iterator[HubHost]:
    """A hub of models."""
    with hub_host.serving() as world:
        yield world


def test_a_model_comes_from_the_hub_is_asked_and_goes_again(tmp_path: Path, host: HubHost) -> None:
    """Also where the server is killed in the middle: the next one goes on. What is not from there is not deleted."""
    tiny = make_tiny_chat(tmp_path / "tiny.gguf").read_bytes()
    home, data = tmp_path / "home", tmp_path / "data"
    (home / "models").mkdir(parents=True)
    (home / "models" / "mine.gguf").write_bytes(tiny)
    host.repos[REPO] = {FILE: tiny}
    host.hold.set()
    env = {**home_of(home), **host.environ}
    gateway = start(tmp_path, env=env)
    operator = Operator(gateway, data)
    assert host.asked == []
    status, _ = operator.ask("POST", "/api/downloads", {"repo": REPO})
    assert status == 202
    assert gateway.comes_to(lambda: _size(data / "models") >= len(tiny) // 2)
    gateway.process.send_signal(signal.SIGKILL)
    gateway.process.wait(10)
    host.hold.clear()
    gateway = start(tmp_path, env=env)
    try:
        operator = Operator(gateway, data)
        assert operator.download()["state"] == "broken_off"
        operator.ask("POST", "/api/downloads", {"repo": REPO})
        assert gateway.comes_to(lambda: operator.download()["state"] == "done")
        assert host.ranges[-1] != host.ranges[0]
        _, details = operator.ask("GET", f"/api/hub/repos/{REPO}")
        (fit,) = details["context_fit"]  # type: ignore[misc] # one model
        assert [(row["ctx"], row["fits"]) for row in fit["rows"]] == [(4096, "now")]
        assert chats(gateway, "someone/tiny-gguf")
        status, refused = operator.ask("DELETE", f"/api/models/{REPO}/tiny-F32")
        assert status == 409, refused
        operator.ask("POST", f"/api/models/{REPO}/tiny-F32/unload")
        assert gateway.comes_to(lambda: operator.ask("DELETE", f"/api/models/{REPO}/tiny-F32")[0] == 200)
        assert not chats(gateway, "someone/tiny-gguf")
        assert list((data / "models").iterdir()) == []
        status, refused = operator.ask("DELETE", "/api/models/mine")
        assert status == 409, refused
        assert (home / "models" / "mine.gguf").exists()
    finally:
        assert gateway.stop() == 0


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.incomplete"))
