"""`gridsched top` on a terminal of its own and in pipes, beside a real server that is killed and comes back."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.gateway import Gateway, begin, clean_environment, command, start

LONGEST_SECONDS = 60.0
LEFT = b"\x1b[?1049l"
"""What leaves the screen that was taken."""

TAKEN = b"\x1b[?1049h"

_CODES = re.compile(rb"\x1b(\[[0-9;?]*[a-zA-Z]|[()][A-Z0-9]|[=>78])")
HELLO = {"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


class Terminal:
    """A person's: 80 by 24, unless told."""

    def __init__(self, *words: str, size: tuple[int, int] = (24, 80)) -> None:
        self.fd, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        self.before = termios.tcgetattr(inside)
        self._inside = inside
        self.screen = b""
        env = clean_environment() | {"TERM": "xterm-256color", "PYTHONUTF8": "1"}
        self.process = subprocess.Popen(
            command(*words), stdin=inside, stdout=inside, stderr=inside, env=env, start_new_session=True
        )

    def until(self, words: str) -> str:
        """Read until a picture has these words; the picture."""
        ends_at = time.monotonic() + LONGEST_SECONDS
        while time.monotonic() < ends_at:
            if not select.select([self.fd], [], [], 0.2)[0]:
                continue
            self.screen += os.read(self.fd, 65536)
            picture = _CODES.sub(b"", self.screen.rpartition(b"\x1b[H")[2]).decode("utf-8", "replace")
            if words in picture:
                return picture
        pytest.fail(f"never showed {words!r}: {self.screen[-3000:]!r}")

    def ends(self) -> int:
        """Its exit code; the terminal is as it was."""
        ends_at = time.monotonic() + LONGEST_SECONDS
        while self.process.poll() is None and time.monotonic() < ends_at:
            if select.select([self.fd], [], [], 0.1)[0]:
                self.screen += os.read(self.fd, 65536)
        code = self.process.wait(1)
        assert termios.tcgetattr(self._inside) == self.before
        assert b"Traceback" not in self.screen
        assert LEFT in self.screen
        return code

    def close(self) -> None:
        """Whatever happened."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        os.close(self.fd)
        os.close(self._inside)


@contextmanager
def terminal(*words: str) -> Iterator[Terminal]:
    """For the length of a block."""
    found = Terminal(*words)
    try:
        yield found
    finally:
        found.close()


@contextmanager
def ended(gateway: Gateway) -> Iterator[Gateway]:
    """A server that is ended with the block."""
    try:
        yield gateway
    finally:
        gateway.stop()


def once(gateway: Gateway, *more: str) -> subprocess.CompletedProcess[str]:
    """One view, in a pipe."""
    words = command("top", "--server", gateway.url, "--once", *more)
    env = clean_environment()
    return subprocess.run(words, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False, env=env)


@pytest.mark.slow
def test_top_lives_on_when_its_server_is_killed_and_comes_back(tmp_path: Path) -> None:
    """It says that it is gone, keeps what it knew, and goes on by itself; `q`, Ctrl-C and SIGTERM end it and
    give the terminal back."""
    with ended(start(tmp_path, "--sim")) as gateway:
        assert gateway.post("/v1/chat/completions", HELLO).status_code == 200
        piped = once(gateway)
        assert (piped.returncode, piped.stderr) == (0, "")
        assert "\x1b" not in piped.stdout
        assert "sim-chat-4b  ready" in piped.stdout
        assert "complete interactive" in piped.stdout
        (document,) = map(json.loads, once(gateway, "--json").stdout.splitlines())
        assert document["status"]["instances"][0]["model"] == "sim-chat-4b"
        assert max(document["ran"]["interactive"]) == 1
        assert document["decisions"][-1]["event"]
        port = gateway.url.rpartition(":")[2]
        with terminal("top", "--server", gateway.url) as seen:
            picture = seen.until("last decisions")
            assert "connected" in picture
            assert "sim-chat-4b" in picture
            assert "▂" in picture  # a chat ran
            gateway.process.kill()
            gateway.process.wait(10)
            seen.until("and waited for")
            with ended(begin(tmp_path, "--sim", "--port", port)):
                seen.until("nothing is loaded")
                os.write(seen.fd, b"q")
                assert seen.ends() == 0
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
                    with terminal("top", "--server", gateway.url) as other:
                        other.until("nothing is loaded")
                        other.process.send_signal(number)
                        assert other.ends() == 130


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTSTP, signal.SIGCONT])
def test_top_put_aside_gives_the_terminal_back_and_takes_it_again(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-Z and `fg`; or a stop that nobody hears of, after which the terminal's modes are a shell's."""
    with ended(start(tmp_path, "--sim")) as gateway, terminal("top", "--server", gateway.url) as seen:
        seen.until("nothing is loaded")
        termios.tcsetattr(seen.fd, termios.TCSANOW, seen.before)
        assert seen.screen.count(LEFT) == 0
        seen.process.send_signal(number)
        ends_at = time.monotonic() + LONGEST_SECONDS
        while seen.screen.count(TAKEN) < 2 and time.monotonic() < ends_at:
            seen.screen += os.read(seen.fd, 65536)
        assert seen.screen.count(LEFT) == 1
        seen.until("nothing is loaded")
        os.write(seen.fd, b"q")
        assert seen.ends() == 0
