#!/usr/bin/env python3
"""A stand-in for llama-server that misbehaves on request. Stand-alone, as a real engine is: it imports nothing of ours.

It takes the same command line and listens on the Unix socket that `--host` names. The environment variable FAKE_LLAMA
holds its switches as JSON; each is a field of `Switches`, with its meaning. It is run by path, through the real spawn.
"""

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BUILD = "fake (build 7, commit abcdef0)"
HELP = """
-h,    --help                          print usage
-m,    --model FNAME                   model path
-fit,  --fit [on|off]                  fit
--tags STRING                          tags
--slots, --no-slots                    slots
--no-webui                             no UI
-cram, --cache-ram N                   cache
-ctxcp, --ctx-checkpoints N            checkpoints
--sse-ping-interval N                  pings
"""


@dataclass
class Switches:
    """What it does wrong, or slowly."""

    start_delay_seconds: float = 0.0  # before it listens
    loading_answers: int = 0  # how many times /health says 503 first
    exit_at: str = ""  # "start", "load" (listening), "probe" or "request": where it ends itself
    exit_status: int = 1
    exit_signal: int = 0  # instead of a status
    ignore_term: bool = False
    print_lines: list[str] = field(default_factory=list)  # before anything else
    print_bytes: int = 0  # so many more, in lines of 100
    print_raw_hex: str = ""  # and these, as they are
    hang_at: str = ""  # a path that is taken and never answered
    close_at: str = ""  # a path at which the connection is closed without a word
    break_after_bytes: int = -1  # so many bytes of a request's answer are sent, and the connection is closed
    garbage_at: str = ""  # a path that is answered with what is not HTTP
    refuse_early_at: str = ""  # a path that is answered 413 and closed, before its body is read
    segment_bytes: int = 0  # answers are sent in pieces of so many bytes
    chunks: list[str] = field(default_factory=list)  # the body of an answer to a request, chunked
    status: int = 200  # of an answer to a request
    probe_status: int = 200
    total_slots: int = 0  # what /props says, if not the truth
    slot_ctx: int = 0
    tag: str = ""  # what /v1/models says, if not the truth
    busy: int = 0  # slots that /slots calls busy
    grandchild: bool = False  # leaves a process behind that holds the output open
    record: str = ""  # a file to append argv, the environment and every request to, as JSON lines


class FakeServer:
    """The whole of it: one thread for each connection, because some of them hang."""

    def __init__(self, argv: list[str], switches: Switches) -> None:
        self.switches = switches
        self.values = dict(itertools.pairwise(argv))
        self.health_asked = 0
        self.lock = threading.Lock()

    def main(self) -> None:
        """Print, perhaps end, listen, serve."""
        self.record({"argv": sys.argv[1:], "env": dict(os.environ), "pid": os.getpid()})
        if self.switches.ignore_term:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self.switches.grandchild:
            subprocess.Popen(["sleep", "60"])  # noqa: S607 - which sleep does not matter
        self.print_all()
        time.sleep(self.switches.start_delay_seconds)
        self.maybe_exit("start")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.values["--host"])
        listener.listen(64)
        self.maybe_exit("load")
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def print_all(self) -> None:
        """Everything that the switches want printed."""
        for line in self.switches.print_lines:
            print(line, flush=True)
        row = b"." * 99 + b"\n"
        for _ in range(self.switches.print_bytes // len(row)):
            sys.stderr.buffer.write(row)
        sys.stderr.buffer.write(bytes.fromhex(self.switches.print_raw_hex))
        sys.stderr.buffer.flush()

    def maybe_exit(self, moment: str) -> None:
        """End here, if this is the moment."""
        if self.switches.exit_at != moment:
            return
        if self.switches.exit_signal:
            os.kill(os.getpid(), self.switches.exit_signal)
            time.sleep(60)  # the signal may take another thread first
        os._exit(self.switches.exit_status)

    def serve(self, connection: socket.socket) -> None:
        """One request, one answer."""
        with connection:
            reader = connection.makefile("rb")
            method, path, _ = reader.readline().decode().split(" ", 2)
            headers = {}
            while (line := reader.readline().decode().strip()) != "":
                name, _, value = line.partition(":")
                headers[name.strip().lower()] = value.strip()
            if path == self.switches.refuse_early_at:
                self.send(connection, framed(413, b'{"error":"too large"}'))
                return
            body = reader.read(int(headers.get("content-length", "0")))
            self.record({"method": method, "path": path, "headers": headers, "body_bytes": len(body)})
            self.answer(connection, path)

    def answer(self, connection: socket.socket, path: str) -> None:
        """By path, unless a switch says otherwise."""
        switches = self.switches
        if path == switches.hang_at:
            connection.recv(1)  # until the other side leaves
            self.record({"left": path})
            return
        if path == switches.close_at:
            return
        if path == switches.garbage_at:
            connection.sendall(b"SSH-2.0-OpenSSH_9.0\r\n")
            return
        if path == "/health":
            self.health_asked += 1
            loading = self.health_asked <= switches.loading_answers
            self.send(connection, framed(503 if loading else 200, b"{}"))
        elif path in ("/completion", "/v1/embeddings", "/v1/rerank"):
            self.maybe_exit("probe")
            self.send(connection, framed(switches.probe_status, b'{"content":"a"}'))
        elif (known := self.description(path)) is not None:
            self.send(connection, framed(200, json.dumps(known).encode()))
        else:
            self.maybe_exit("request")
            parts = [text.encode() for text in switches.chunks]
            self.send(
                connection, chunked(switches.status, parts) if parts else framed(switches.status, b"{}"), cut=True
            )

    def description(self, path: str) -> Any:
        """What it says of itself."""
        slots = int(self.values["--parallel"])
        slot_ctx = self.switches.slot_ctx or int(self.values["--ctx-size"]) // slots
        if path == "/props":
            return {
                "total_slots": self.switches.total_slots or slots,
                "default_generation_settings": {"n_ctx": slot_ctx},
            }
        if path == "/v1/models":
            return {"data": [{"id": self.values["--alias"], "tags": [self.switches.tag or self.values.get("--tags")]}]}
        if path == "/slots":
            return [{"id": number, "is_processing": number < self.switches.busy} for number in range(slots)]
        return None

    def send(self, connection: socket.socket, answer: bytes, *, cut: bool = False) -> None:
        """Whole, in pieces, or a part of it."""
        if cut and self.switches.break_after_bytes >= 0:
            answer = answer[: self.switches.break_after_bytes]
        step = self.switches.segment_bytes or len(answer)
        try:
            for start in range(0, len(answer), step or 1):
                connection.sendall(answer[start : start + step])
        except OSError:
            self.record({"left": "in mid-answer"})

    def record(self, fact: dict[str, Any]) -> None:
        """Append to the record, if there is to be one."""
        if self.switches.record:
            with self.lock, Path(self.switches.record).open("a", encoding="utf-8") as file:
                file.write(json.dumps(fact) + "\n")


def framed(status: int, body: bytes) -> bytes:
    """An answer with a length, and with the headers of the real one."""
    lines = (
        f"HTTP/1.1 {status} X",
        "Server: llama.cpp",
        "Access-Control-Allow-Origin: *",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Keep-Alive: timeout=5, max=100",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


def chunked(status: int, parts: list[bytes]) -> bytes:
    """A streamed answer."""
    head = f"HTTP/1.1 {status} X\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def main() -> None:
    """Answer the questions that a found engine is asked, or serve."""
    if "--version" in sys.argv:
        print(f"version: {BUILD}", file=sys.stderr)
    elif "--help" in sys.argv:
        print(HELP)
    elif "--list-devices" in sys.argv:
        print("Available devices:\n  (none)")
    else:
        FakeServer(sys.argv[1:], Switches(**json.loads(os.environ.get("FAKE_LLAMA", "{}")))).main()


if __name__ == "__main__":
    main()
