"""A gateway as its watchdog sees it, and no more: the lock, the heartbeat, `/health`. Standard library alone.

    python fake_gateway.py serve --data-dir D --config F

What it does is told by words in F: `exit 3` (prints why and ends so), `hang` (comes to nothing), `silent` (never
beats), `faint` (beats three times), `deaf` (listens and never answers), `sick` (answers with 500), `stubborn` (ignores
SIGTERM), `unloads` (has the unload route), `keyed` (asks for the admin token there). It beats every 50 ms.
"""

import argparse
import fcntl
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BEAT_SECONDS = 0.05


class Handler(BaseHTTPRequestHandler):
    """`/health`, and `POST /api/models/NAME/unload` where that was told."""

    words: frozenset[str] = frozenset()
    token: Path = Path()

    def do_GET(self) -> None:
        self._send(500 if "sick" in self.words else 200, {"status": "ok", "can_serve": True})

    def do_POST(self) -> None:
        if "keyed" in self.words and self.headers["Authorization"] != f"Bearer {self.token.read_text()}":
            self._send(401, {"error": {"code": "invalid_api_key"}})
            return
        known = "unloads" in self.words and self.path.endswith("/unload")
        if known:
            for pid in map(int, os.environ.get("FAKE_ENGINES", "").split()):
                os.kill(pid, signal.SIGTERM)
        self._send(202 if known else 404, {"error": {"code": "not_found"}} if not known else {})

    def _send(self, status: int, said: object) -> None:
        data = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class has it
        """Nothing."""


def start_ticks() -> int:
    """When this process started."""
    return int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])


def main() -> int:
    """Serve until SIGTERM; the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--config", type=Path)
    args = parser.parse_args()
    words = args.config.read_text(encoding="utf-8").split() if args.config and args.config.exists() else []
    if "exit" in words:
        print(f"gridsched: {args.config}:1:1: told to end so")
        return int(words[words.index("exit") + 1])
    if "hang" in words:
        signal.pause()
    (args.data_dir / "run").mkdir(parents=True, exist_ok=True)
    lock = os.open(args.data_dir / "owner.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 4
    Handler.token = args.data_dir / "admin.token"
    Handler.words = frozenset(words)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    port = server.server_address[1]
    os.ftruncate(lock, 0)
    os.pwrite(lock, json.dumps({"pid": os.getpid(), "port": port}).encode(), 0)
    ending = threading.Event()
    signal.signal(signal.SIGTERM, signal.SIG_IGN if "stubborn" in words else lambda *_: ending.set())
    if "deaf" not in words:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print("listening", flush=True)
    beat(
        args.data_dir / "run" / "heartbeat",
        port,
        ending,
        most=0 if "silent" in words else 3 if "faint" in words else sys.maxsize,
    )
    print("ended well", flush=True)
    return 0


def beat(path: Path, port: int, ending: threading.Event, *, most: int) -> None:
    """Beat until told to end."""
    seq, ticks = 0, start_ticks()
    while not ending.wait(BEAT_SECONDS):
        seq += 1
        said = {
            "pid": os.getpid(),
            "start_ticks": ticks,
            "seq": seq,
            "wall": time.time(),
            "monotonic": time.monotonic(),
            "phase": "ready",
            "port": port,
            "in_flight": 0,
        }
        if seq <= most:
            path.write_text(json.dumps(said).ljust(511) + "\n", encoding="ascii")


if __name__ == "__main__":
    sys.exit(main())
