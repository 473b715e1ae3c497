#!/usr/bin/env python3
"""A stand-in for llama-server that misbehaves on request. Stand-alone, as a real engine is: it imports nothing of ours.

It takes the same command line and listens at the Unix socket that `--host` names, else at `--port`. The environment
variable FAKE_LLAMA holds its switches as JSON; each is a field of `Switches`, with its meaning. FAKE_LLAMA_FILE may
name a file with more of them, which count before the others and are read again for every request: a test changes its
mind by writing there. From SIGUSR1 on this one process answers that its device fails; at SIGUSR2 it ends itself. It is
run by path, through the real spawn.
"""

import base64
import itertools
import json
import math
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

BUILD = "fake (build 7, commit abcdef0)"
HELP = """
-h,    --help                          print usage
-m,    --model FNAME                   model path
-fit,  --fit [on|off]                  fit
--tags STRING                          tags
--api-key KEY                           what is to be told with every request (env: LLAMA_API_KEY)
--slots, --no-slots                    slots
--no-webui                             no UI
-cram, --cache-ram N                   cache
-ctxcp, --ctx-checkpoints N            checkpoints
--sse-ping-interval N                  pings
"""
DEVICE_ERROR = b'{"error":{"code":500,"message":"CUDA error: unspecified launch failure","type":"server_error"}}'
PROBES = (b"", b'{"input": "a"}', b'{"input":"a"}')  # what is asked only to see that it answers


@dataclass
class Switches:
    """What it does wrong, or slowly."""

    start_delay_seconds: float = 0.0  # before it listens
    health: list[tuple[int, str]] = field(default_factory=lambda: [(200, "{}")])  # in turn, the last one for good
    exit_at: str = ""  # "start", "load" (listening), "probe" or "request": where it ends itself
    exit_when_left: bool = False  # or when somebody leaves it in mid-answer
    exit_status: int = 1
    exit_signal: int = 0  # instead of a status
    ignore_term: bool = False
    term_delay_seconds: float = 0.0  # it ends so long after it was told to
    print_lines: list[str] = field(default_factory=list)  # before anything else
    print_bytes: int = 0  # so many more, in lines of 100
    print_raw_hex: str = ""  # and these, as they are
    print_bytes_per_request: int = 0
    print_rate_bytes: int = 0  # so many each second, as long as it lives
    grow_bytes: int = 0  # kept for each request
    card_bytes: int = 0  # held on the card that it was given, as a stand-in driver tells, from its start to its end
    card_tells: str = "listed"  # how the driver tells of it: "listed", "unknown" (without a figure), "unlisted"
    devices: list[str] = field(default_factory=list)  # what it lists: "CUDA0: NVIDIA Small (16384 MiB, 16000 MiB free)"
    hang_at: str = ""  # a path that is taken and never answered
    hang_at_request: int = 0  # the how manieth request for an answer, from 1 on, is
    close_at_request: int = 0  # the how manieth is closed without a word
    close_at: str = ""  # a path at which the connection is closed without a word
    break_after_bytes: int = -1  # so many bytes of a request's answer are sent, and the connection is closed
    garbage_at: str = ""  # a path that is answered with what is not HTTP
    answers: dict[str, str] = field(default_factory=dict)  # what else a path is answered, as it is
    refuse_early_at: str = ""  # a path that is answered 413 and closed, before its body is read
    segment_bytes: int = 0  # answers are sent in pieces of so many bytes
    segment_pause_seconds: float = 0.0  # after each of them
    replies: int = 1  # so many on one connection, then it is closed without a word; the real one's are 5
    chunks: list[str] = field(default_factory=list)  # the body of an answer to a request, chunked
    body: str = "{}"  # of an answer without chunks
    body_hex: str = ""  # or its bytes
    headers: list[str] = field(default_factory=list)  # more lines in its head
    tokens: int = 0  # an answer of so many, or as the request's max_tokens says, streamed if it is asked for
    tokens_per_second: float = 0.0  # 0: as fast as can be
    width: int = 2  # numbers in a vector
    shuffle: bool = False  # vectors come in another order than their inputs, each with its own index
    holes: bool = False  # one of a vector's numbers is none
    too_long: str = ""  # an input with this text in it is refused with the status after it
    too_long_status: int = 500
    pauses: list[float] = field(default_factory=list)  # seconds before the answers to the first requests
    bodies: bool = False  # the bodies of requests are recorded, too
    token_bytes: int = 0  # each is at least so long
    token_limit: int = 0  # it ends behind so many, whatever was asked, in this way:
    ending: str = "close"  # "exit", "close" without the end of the framing, or "garbage" in the framing
    deaf: bool = False  # it generates to the end also for somebody who has left
    status: int = 200  # of an answer to a request
    probe_status: int = 200
    no_unix_socket: bool = False  # it can listen at a port only
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
        self.requests = 0
        self.running = 0
        self.sick = False  # from SIGUSR1 on its device fails
        self.kept: list[bytes] = []
        self.lock = threading.Lock()

    def main(self) -> None:
        """Print, perhaps end, listen, serve."""
        self.record({"argv": sys.argv[1:], "env": dict(os.environ), "pid": os.getpid()})
        self.heed_signals()
        if self.switches.card_bytes:
            claim(self.switches)
        if self.switches.grandchild:
            subprocess.Popen(["sleep", "60"])  # noqa: S607 - which sleep does not matter
        self.print_all()
        time.sleep(self.switches.start_delay_seconds)
        self.maybe_exit("start")
        listener = self.listener()
        self.maybe_exit("load")
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def listener(self) -> socket.socket:
        """At the Unix socket that --host names, else at the port."""
        host = self.values["--host"]
        if not host.endswith(".sock"):
            return socket.create_server((host, int(self.values["--port"])), backlog=64)
        if self.switches.no_unix_socket:
            print(f"srv  llama_server: couldn't bind HTTP server socket, hostname: {host}, port: 8080", flush=True)
            os._exit(1)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(host)
        listener.listen(64)
        return listener

    def heed_signals(self) -> None:
        """What it does when it is told something."""
        if self.switches.ignore_term:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if delay_seconds := self.switches.term_delay_seconds:
            end = threading.Timer(delay_seconds, os._exit, (0,))
            signal.signal(signal.SIGTERM, lambda *_: end.start())
        signal.signal(signal.SIGUSR1, lambda *_: setattr(self, "sick", True))
        signal.signal(signal.SIGUSR2, lambda *_: self.exit())

    def print_all(self) -> None:
        """Everything that the switches want printed."""
        for line in self.switches.print_lines:
            print(line, flush=True)
        print_dots(self.switches.print_bytes)
        sys.stderr.buffer.write(bytes.fromhex(self.switches.print_raw_hex))
        sys.stderr.buffer.flush()
        if self.switches.print_rate_bytes:
            threading.Thread(target=self.print_on, daemon=True).start()

    def print_on(self) -> None:
        """A hundredth of the rate, a hundred times a second, without end."""
        while True:
            print_dots(self.switches.print_rate_bytes // 100)
            time.sleep(0.01)

    def maybe_exit(self, moment: str) -> None:
        """End here, if this is the moment."""
        if self.switches.exit_at == moment:
            self.exit()

    def exit(self) -> None:
        """End as the switches say."""
        if self.switches.exit_signal:
            os.kill(os.getpid(), self.switches.exit_signal)
            time.sleep(60)  # the signal may take another thread first
        os._exit(self.switches.exit_status)

    def serve(self, connection: socket.socket) -> None:
        """So many requests, each with its answer."""
        with connection, connection.makefile("rb") as reader:
            for _ in range(self.switches.replies):
                self.switches = read_switches()
                words = reader.readline().decode().split(" ", 2)
                if len(words) < len(("method", "path", "version")):
                    return
                self.serve_one(connection, reader, *words[:2])

    def serve_one(self, connection: socket.socket, reader: BinaryIO, method: str, path: str) -> None:
        """Read the rest of one request, and answer."""
        headers = {}
        while (line := reader.readline().decode().strip()) != "":
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        if path == self.switches.refuse_early_at:
            self.send(connection, framed(413, b'{"error":"too large"}'))
            return
        body = reader.read(int(headers.get("content-length", "0")))
        key = os.environ.get("LLAMA_API_KEY")
        if key and path not in ("/health", "/v1/models") and headers.get("authorization") != f"Bearer {key}":
            self.send(connection, framed(401, b'{"error":"no key"}'))
            return
        text = {"body": body.decode()} if self.switches.bodies else {}
        self.record({"method": method, "path": path, "headers": headers, "body_bytes": len(body), **text})
        self.answer(connection, path, body)

    def answer(self, connection: socket.socket, path: str, body: bytes) -> None:
        """By path, unless a switch says otherwise."""
        switches = self.switches
        if path == switches.hang_at:
            self.hang(connection, path)
        elif path == switches.close_at:
            connection.shutdown(socket.SHUT_RDWR)
        elif path == switches.garbage_at:
            connection.sendall(b"SSH-2.0-OpenSSH_9.0\r\n")
        elif path in switches.answers:
            self.send(connection, framed(200, switches.answers[path].encode()))
        elif path == "/health":
            self.send(connection, self.health())
        elif path in ("/completion", "/v1/rerank") or (path == "/v1/embeddings" and body in PROBES):
            self.maybe_exit("probe")
            self.send(connection, framed(switches.probe_status, b'{"content":"a"}'))
        elif (known := self.description(path)) is not None:
            self.send(connection, framed(200, json.dumps(known).encode()))
        else:
            self.maybe_exit("request")
            self.requests += 1
            if self.requests == switches.hang_at_request:
                self.hang(connection, path)
                return
            time.sleep(sum(switches.pauses[self.requests - 1 : self.requests]))
            if self.requests == switches.close_at_request:
                connection.shutdown(socket.SHUT_RDWR)
                return
            with self.lock:
                self.running += 1
            self.answer_request(connection, path, body)
            with self.lock:
                self.running -= 1

    def hang(self, connection: socket.socket, path: str) -> None:
        """Say nothing until the other side leaves."""
        connection.recv(1)
        self.left(path)

    def break_off(self, connection: socket.socket) -> None:
        """End in mid-answer, as the switches say."""
        if self.switches.ending == "exit":
            self.exit()
        if self.switches.ending == "garbage":
            connection.sendall(b"five\r\nwords\r\n")

    def left(self, where: str, words: int = 0) -> None:
        """Somebody did not wait for the end; so many words were written."""
        self.record({"left": where, "words": words})
        if self.switches.exit_when_left:
            self.exit()

    def health(self) -> bytes:
        """What it says of itself this time."""
        status, body = self.switches.health[min(self.health_asked, len(self.switches.health) - 1)]
        self.health_asked += 1
        return framed(status, body.encode())

    def answer_request(self, connection: socket.socket, path: str, body: bytes) -> None:
        """What somebody is waiting for."""
        switches = self.switches
        print_dots(switches.print_bytes_per_request)
        if switches.grow_bytes:
            self.kept.append(b"x" * switches.grow_bytes)
        if self.sick:
            self.send(connection, framed(500, DEVICE_ERROR), cut=True)
        elif switches.chunks:
            parts = [text.encode() for text in switches.chunks]
            self.send(connection, chunked(switches.status, parts), cut=True)
        elif path == "/v1/embeddings" and switches.status == 200:
            self.embed(connection, json.loads(body))
        elif switches.tokens and switches.status == 200:
            self.generate(connection, json.loads(body))
        else:
            body = bytes.fromhex(switches.body_hex) or switches.body.encode()
            self.send(connection, framed(switches.status, body, switches.headers), cut=True)

    def embed(self, connection: socket.socket, asked: dict[str, Any]) -> None:
        """A vector for each input, or a refusal of them all."""
        given = asked["input"]
        inputs = given if isinstance(given, list) and not isinstance(given[0], int) else [given]
        self.record({"inputs": len(inputs)})
        if self.switches.too_long and any(self.switches.too_long in str(text) for text in inputs):
            status = self.switches.too_long_status
            message = "input (600 tokens) is too large to process. increase the physical batch size"
            refusal = {"error": {"code": status, "message": message, "type": "server_error"}}
            self.send(connection, framed(status, json.dumps(refusal).encode()), cut=True)
        else:
            answer = vectors(inputs, self.switches, in_base64=asked.get("encoding_format") == "base64")
            self.send(connection, framed(200, answer), cut=True)

    def generate(self, connection: socket.socket, asked: dict[str, Any]) -> None:
        """Word after word; noticed at once when nobody listens any more."""
        switches, stream = self.switches, bool(asked.get("stream"))
        count, rate = int(asked.get("max_tokens") or switches.tokens), switches.tokens_per_second
        if stream:
            self.send(connection, head_of_stream(200))
        for number in range(count):
            if select.select([] if switches.deaf else [connection], [], [], 1 / rate if rate else 0.0)[0]:
                self.left("in mid-answer", number)
                return
            if switches.token_limit and number == switches.token_limit:
                self.break_off(connection)
                return
            if stream:
                self.send(connection, chunk(token(f"word{number} ".ljust(switches.token_bytes, "."))))
        if stream:
            self.send(connection, chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        else:
            message = {"role": "assistant", "content": " ".join(f"word{number}" for number in range(count))}
            self.send(connection, framed(200, json.dumps({"choices": [{"index": 0, "message": message}]}).encode()))

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
            busy = self.switches.busy or self.running
            return [{"id": number, "is_processing": number < busy} for number in range(slots)]
        return None

    def send(self, connection: socket.socket, answer: bytes, *, cut: bool = False) -> None:
        """Whole, in pieces, or a part of it."""
        if cut and self.switches.break_after_bytes >= 0:
            answer = answer[: self.switches.break_after_bytes]
        step = self.switches.segment_bytes or len(answer)
        try:
            for start in range(0, len(answer), step or 1):
                connection.sendall(answer[start : start + step])
                time.sleep(self.switches.segment_pause_seconds)
        except OSError:
            self.left("in mid-answer")

    def record(self, fact: dict[str, Any]) -> None:
        """Append to the record, if there is to be one."""
        if self.switches.record:
            with self.lock, Path(self.switches.record).open("a", encoding="utf-8") as file:
                file.write(json.dumps(fact) + "\n")


def read_switches() -> Switches:
    """Those of the environment, and those of the file before them."""
    told = json.loads(os.environ.get("FAKE_LLAMA", "{}"))
    if name := os.environ.get("FAKE_LLAMA_FILE"):
        told |= json.loads(Path(name).read_text(encoding="utf-8"))
    return Switches(**told)


def claim(switches: Switches) -> None:
    """Tell the stand-in driver that this process holds memory on its card: it counts as long as the process lives."""
    story = Path(os.environ["NVML_STORY"])
    cards = [line.split()[1] for line in story.read_text(encoding="utf-8").splitlines() if line.startswith("card ")]
    card = cards.index(os.environ["CUDA_VISIBLE_DEVICES"])
    with story.open("a", encoding="utf-8") as file:
        file.write(f"claims {card} {os.getpid()} {switches.card_bytes} {switches.card_tells}\n")


def print_dots(count: int) -> None:
    """So many bytes, in lines of 100."""
    row = b"." * 99 + b"\n"
    for _ in range(count // len(row)):
        sys.stderr.buffer.write(row)
    sys.stderr.buffer.flush()


def vectors(inputs: list[Any], switches: Switches, *, in_base64: bool) -> bytes:
    """A vector for each input, which begins with the first number in its text."""
    data = []
    for index, text in enumerate(inputs):
        found = re.search(r"\d+", str(text))
        vector = [float(found[0]) if found else 0.0, *[1.0] * (switches.width - 1)]
        if switches.holes:
            vector[-1] = math.nan
        written = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode() if in_base64 else vector
        data.append({"object": "embedding", "index": index, "embedding": written})
    if switches.shuffle:
        data.reverse()
    usage = {"prompt_tokens": len(inputs), "total_tokens": len(inputs)}
    return json.dumps({"object": "list", "data": data, "usage": usage}).encode()


def token(text: str) -> bytes:
    """One event of a streamed chat."""
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': {'content': text}}]})}\n\n".encode()


def framed(status: int, body: bytes, more: Iterable[str] = ()) -> bytes:
    """An answer with a length, and with the headers of the real one."""
    lines = (
        f"HTTP/1.1 {status} X",
        "Server: llama.cpp",
        "Access-Control-Allow-Origin: *",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Keep-Alive: timeout=5, max=100",
        *more,
    )
    return "\r\n".join((*lines, "", "")).encode() + body


def chunked(status: int, parts: list[bytes]) -> bytes:
    """A streamed answer."""
    return head_of_stream(status) + b"".join(map(chunk, parts)) + b"0\r\n\r\n"


def head_of_stream(status: int) -> bytes:
    """What comes before its first piece."""
    return f"HTTP/1.1 {status} X\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n".encode()


def chunk(part: bytes) -> bytes:
    """One piece of it."""
    return b"%x\r\n%b\r\n" % (len(part), part)


def main() -> None:
    """Answer the questions that a found engine is asked, or serve."""
    if "--version" in sys.argv:
        print(f"version: {BUILD}", file=sys.stderr)
    elif "--help" in sys.argv:
        print(HELP)
    elif "--list-devices" in sys.argv:
        print("\n  ".join(("Available devices:", *(read_switches().devices or ["(none)"]))))
    else:
        FakeServer(sys.argv[1:], read_switches()).main()


if __name__ == "__main__":
    main()
