"""A hub of models on loopback: the endpoints that we use of it, and a second port for the files, as its CDN.

Owns real sockets and real HTTP. What a repository holds is in `repos`; `faults` are how its files are given wrongly, by
path; what was asked is in `asked`, with the port and the headers.
"""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "1f" * 20


@dataclass
class HubHost:
    """What a test sees of it.

    `gated` repositories need `token`. `faults`: `break` (bytes before the connection ends, each time), `once` (the
    same, once), `lie` (bytes that the listing adds), `wrong` (other bytes of the same size), `plain` (no large file),
    `whole` (no ranges), `status`. `busy` is the answer to all that is asked of the API, where it is not 0.
    """

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    token: str = "hf_right"  # noqa: S105 - a test's
    faults: dict[str, dict[str, int]] = field(default_factory=dict)
    busy: int = 0
    retry_after: str = ""
    silent: bool = False
    asked: list[tuple[int, str, dict[str, str]]] = field(default_factory=list)
    url: str = ""
    cdn: str = ""
    stopping: threading.Event = field(default_factory=threading.Event)
    hold: threading.Event = field(default_factory=threading.Event)

    @property
    def environ(self) -> dict[str, str]:
        """What a server is started with to use it."""
        return {"HF_ENDPOINT": self.url}

    @property
    def ranges(self) -> list[str]:
        """The ranges that were asked for of files, in order."""
        return [headers["range"] for _, path, headers in self.asked if path.startswith("/cdn/") and "range" in headers]

    def paths(self) -> list[str]:
        """What was asked for."""
        return [path for _, path, _ in self.asked]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    world: HubHost

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer as the hub, or as its CDN."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.world.asked.append((int(self.server.server_address[1]), self.path, headers))
        address = urlsplit(self.path)
        parts = unquote(address.path).strip("/").split("/")
        if self.world.silent:
            self.world.stopping.wait(30)
            self.close_connection = True
        elif parts[0] == "cdn":
            self._file("/".join(parts[1:3]), "/".join(parts[3:]))
        elif self.world.busy:
            more = {"Retry-After": self.world.retry_after} if self.world.retry_after else {}
            self._json({"error": "no"}, self.world.busy, more)
        elif parts[:2] == ["api", "models"] and len(parts) == 2:
            self._search(parse_qs(address.query))
        elif parts[:2] == ["api", "models"]:
            self._repo("/".join(parts[2:4]), parts[5] if parts[4:5] == ["revision"] else "main")
        elif parts[2:3] == ["resolve"] and "/".join(parts[:2]) in self.world.repos:
            self._send_to_cdn("/".join(parts[:2]), "/".join(parts[4:]))
        else:
            self._json({"error": "Sorry, we can't find the page you are looking for."}, 404)

    def _json(self, told: object, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        body = json.dumps(told).encode()
        self._head(status, {"Content-Type": "application/json", "Content-Length": str(len(body)), **(headers or {})})
        self.wfile.write(body)

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()

    def _search(self, query: Mapping[str, list[str]]) -> None:
        words = query.get("search", [""])[0].lower()
        start, limit = int(query.get("cursor", ["0"])[0]), int(query["limit"][0])
        names = [name for name in self.world.repos if words in name.lower()]
        following = f'<{self.world.url}/api/models?limit={limit}&cursor={start + limit}>; rel="next"'
        more = {"Link": following} if start + limit < len(names) else {}
        self._json([self._about(name) for name in names[start : start + limit]], 200, more)

    def _about(self, name: str) -> dict[str, object]:
        return {
            "id": name,
            "downloads": 1000 - list(self.world.repos).index(name),
            "likes": 7,
            "lastModified": "2026-05-04T03:02:01.000Z",
            "gated": "manual" if name in self.world.gated else False,
            "private": False,
            "tags": ["gguf", "text-generation"],
            "gguf": {"architecture": "llama", "context_length": 4096, "total": 1},
        }

    def _repo(self, name: str, revision: str) -> None:
        if name not in self.world.repos:
            return self._json({"error": "Repository not found"}, 401, {"X-Error-Code": "RepoNotFound"})
        if self._is_locked(name):
            return self._json({"error": "gated"}, 403, {"X-Error-Code": "GatedRepo"})
        if revision not in ("main", COMMIT):
            return self._json({"error": "no"}, 404, {"X-Error-Code": "RevisionNotFound"})
        files = self.world.repos[name].items()
        siblings = [self._listed(path, data) for path, data in files]
        return self._json({**self._about(name), "sha": COMMIT, "siblings": siblings})

    def _is_locked(self, name: str) -> bool:
        allowed = self.headers.get("Authorization") == f"Bearer {self.world.token}"
        return name in self.world.gated and not allowed

    def _listed(self, path: str, data: bytes) -> dict[str, object]:
        faults = self.world.faults.get(path, {})
        size = len(data) + faults.get("lie", 0)
        git = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
        told: dict[str, object] = {"rfilename": path, "size": size, "blobId": git}
        if "plain" not in faults:
            told["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": size, "pointerSize": 135}
        return told

    def _send_to_cdn(self, name: str, path: str) -> None:
        if self._is_locked(name):
            return self._json({"error": "gated"}, 403, {"X-Error-Code": "GatedRepo"})
        if path not in self.world.repos[name]:
            return self._json({"error": "no"}, 404, {"X-Error-Code": "EntryNotFound"})
        data = self.world.repos[name][path]
        told = {"X-Linked-Size": str(len(data)), "X-Repo-Commit": COMMIT, "Content-Length": "0"}
        told["X-Linked-ETag"] = f'"{hashlib.sha256(data).hexdigest()}"'
        return self._head(302, {**told, "Location": f"{self.world.cdn}/cdn/{name}/{path}"})

    def _file(self, name: str, path: str) -> None:
        data, faults = self.world.repos[name][path], self.world.faults.get(path, {})
        if status := faults.get("status", 0):
            return self._json({"error": "no"}, status)
        if "wrong" in faults:
            data = data[:-1] + bytes((data[-1] ^ 1,))
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last or len(data)), len(data) - 1)
        if start >= len(data):
            return self._head(416, {"Content-Range": f"bytes */{len(data)}", "Content-Length": "0"})
        told = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "Content-Length": str(end + 1 - start)}
        if "whole" in faults:
            self._head(200, {**told, "Content-Length": str(len(data))})
            return self._pieces(data, None)
        self._head(206, {**told, "Content-Range": f"bytes {start}-{end}/{len(data)}"})
        breaks = faults.get("break", faults.pop("once", None))
        return self._pieces(data[start : end + 1], breaks)

    def _pieces(self, data: bytes, breaks: int | None) -> None:
        """The bytes; no more than `breaks` of them, where that is said. While `hold` is set, half of them."""
        try:
            if self.world.hold.is_set():
                self.wfile.write(data[: len(data) // 2])
                while self.world.hold.is_set() and not self.world.stopping.wait(0.01):
                    pass
                self.wfile.write(data[len(data) // 2 :])
            else:
                self.wfile.write(data if breaks is None else data[:breaks])
        except OSError:
            self.close_connection = True
        self.close_connection = self.close_connection or breaks is not None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves in the middle is what the tests are about."""


@contextmanager
def serving() -> Iterator[HubHost]:
    """Run one for a while."""
    world = HubHost()
    handler = type("Handler", (_Handler,), {"world": world})
    with _Server(("127.0.0.1", 0), handler) as hub, _Server(("127.0.0.1", 0), handler) as cdn:
        world.url = f"http://127.0.0.1:{hub.server_address[1]}"
        world.cdn = f"http://127.0.0.1:{cdn.server_address[1]}"
        threads = [threading.Thread(target=one.serve_forever, args=(0.01,), daemon=True) for one in (hub, cdn)]
        for thread in threads:
            thread.start()
        try:
            yield world
        finally:
            world.stopping.set()
            for one, thread in zip((hub, cdn), threads, strict=True):
                one.shutdown()
                thread.join()
