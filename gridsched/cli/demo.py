"""`gridsched demo`: a server of its own, a chat model and an embedder, mixed traffic, and what came of it.

Owns the server it starts, from the free port to the last signal: however the demo ends, that server is ended by its
pid. The traffic, the measurements and the marks are the load test's, which is imported only here and only when asked
for. Exit code 0 when every mark is met, 1 when one is missed or the demo could not run, 130 when interrupted.
"""

import argparse
import json
import math
import os
import platform
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import trio

from gridsched.cli.ending import ENDING_SIGNALS, any_end_is_ctrl_c
from gridsched.cli.events import sentence
from gridsched.engine.find import find_engine

if TYPE_CHECKING:  # the load test is a package beside ours: nothing of it is loaded with the command line
    from loadtest.decisions import Line
    from loadtest.fetch import Models
    from loadtest.mainjob import MainJob

DEFAULT_SECONDS = 60.0
LEAST_CHAT_SECONDS = 5.0
CHAT_SHARE = 1 / 3
"""People chat for about a third of the run; chat alone before it and the low work after it take the rest."""

START_SECONDS = 60.0
END_GRACE_SECONDS = 40.0
"""Longer than the server gives its running steps to finish."""

LOG_SECONDS = 5.0
"""How long the last line of the log may take to arrive after the answer it is about."""

LONGEST_SECONDS = 3600.0
INTERRUPTED = 130
TAIL_LINES = 20
LIVE_SECONDS, LIVE_SECONDS_WITHOUT_TERMINAL = 0.25, 5.0


_SERVER = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
from gridsched.cli.main import main
sys.exit(main(sys.argv[2:]))
"""
"""The server's own process: told to end by the kernel when the demo is gone, however the demo went."""


def _as_called() -> str:
    """The program's name as a person has just called it: in a fresh `.venv` it is on nobody's PATH."""
    return sys.argv[0] if Path(sys.argv[0]).name == "gridsched" else "gridsched"


class DemoFailure(Exception):
    """The demo cannot run; the sentence says why and what to do."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What the server is started with, and the names of its three models. `serve_options`: what a person's own server
    is started with to have the same ones."""

    config: Mapping[str, object]
    options: tuple[str, ...]
    serve_options: str
    chat: str
    batch: str
    embed: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--seconds", type=_seconds, default=DEFAULT_SECONDS, help="about how long (default 60)")
    parser.add_argument("--sim", action="store_true", help="on simulated hardware: no engine and no models are needed")
    parser.add_argument("--keep", action="store_true", help="leave the server up at the end, until Ctrl-C")


def main(args: argparse.Namespace) -> int:
    """Run it; the result is the exit code."""
    return run_demo(seconds=args.seconds, simulated=args.sim, keep=args.keep)


def run_demo(*, seconds: float = DEFAULT_SECONDS, simulated: bool = False, keep: bool = False) -> int:
    """The whole demo on this terminal; gives the exit code. Raises BrokenPipeError when nobody reads what it prints."""
    try:
        with any_end_is_ctrl_c():
            setting = _simulated_setting() if simulated else _real_setting()
            with tempfile.TemporaryDirectory(prefix="gridsched-demo-") as folder:
                return trio.run(_interruptible, setting, Path(folder), seconds, keep)
    except DemoFailure as failure:
        print(f"gridsched demo: {failure}", file=sys.stderr)
        return 1
    except BaseExceptionGroup as group:
        if group.split(BrokenPipeError)[1] is not None:
            raise
        raise BrokenPipeError from None


# --- the setting ------------------------------------------------------------------------------------------------


def _simulated_setting() -> Setting:
    print("Simulated hardware: one card, simulated models. The scheduler, the server and the clients are real.")
    return Setting({}, ("--sim",), "--sim", chat="sim-chat-12b", batch="sim-chat-4b", embed="sim-embed")


def _real_setting() -> Setting:
    """The real engine and models; simulated ones, said so, where the engine cannot run. Raises DemoFailure."""
    from loadtest import fetch  # noqa: PLC0415 - found lazily, see the module's docstring

    found = find_engine()
    if found.info.ok:
        try:
            return setting_for(fetch.fetch_models())
        except fetch.FetchFailure as failure:
            raise DemoFailure(str(failure)) from failure
    if not found.info.path and _has_engine_wheel():
        raise DemoFailure(
            f"{found.info.problem}. With this Python: {sys.executable} -m pip install 'gridsched[demo]'. "
            "Or run `gridsched demo --sim`, which needs no engine."
        )
    print(f"The real engine cannot run on this machine: {found.info.problem}.")
    return _simulated_setting()


def _has_engine_wheel() -> bool:
    """Whether the extra `demo` brings an engine for this system and processor."""
    return platform.system() == "Linux" and platform.machine() == "x86_64"


def setting_for(models: "Models") -> Setting:
    """A chat model with two slots, a second name over the same file for batch work, and an embedder.

    Each process takes half of the cores, so that people and the job beside them are both seen to go on (and small
    models use no more than four).
    """
    flags = ["--threads", str(max(1, min(4, (os.cpu_count() or 1) // 2)))]
    chat_path, embed_path = (str(path).replace("$", "$$") for path in models)
    chat = {"path": chat_path, "ctx_size": 4096, "parallel": 2, "flags": flags}
    batch = {"path": chat_path, "ctx_size": 2048, "parallel": 2, "class": "batch", "flags": flags}
    embed = {"path": embed_path, "parallel": 1, "flags": flags}
    config = {
        "library": {"dirs": [], "default_model": "smollm2"},
        "models": {"smollm2": chat, "smollm2-batch": batch, "minilm": embed},
    }
    serve_options = f"--models-dir {shlex.quote(str(models.chat.parent))}"
    return Setting(config, (), serve_options, chat="smollm2", batch="smollm2-batch", embed="minilm")


# --- the server -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Server:
    """The server this demo has started."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def end(self) -> None:
        """Ask it to end, wait as long as its running steps may take, then kill it."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(END_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()

    def tail(self) -> str:
        """The last lines it printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:])


def _free_port() -> int:
    """A loopback port that nobody has just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(setting: Setting, folder: Path, port: int) -> Server:
    config, log = folder / "gridsched.yaml", folder / "server.log"
    config.write_text(json.dumps(setting.config, indent=2), encoding="utf-8")  # JSON is YAML 1.2
    command = [sys.executable, "-c", _SERVER, str(os.getpid()), "serve", *setting.options, "--config", str(config)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--data-dir", str(folder / "data")]
    with log.open("wb") as output:
        # A session of its own keeps the terminal's Ctrl-C away from it: it is told to end once, by us.
        process = subprocess.Popen(  # noqa: S603 - ourselves
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    return Server(process, f"http://127.0.0.1:{port}", log)


@asynccontextmanager
async def _running_server(setting: Setting, folder: Path) -> AsyncIterator[Server]:
    """A server that can serve, ended when the block is left, however it is left. Raises DemoFailure."""
    server = _start(setting, folder, _free_port())
    try:
        await _until_it_can_serve(server)
        yield server
    finally:
        server.end()


async def _until_it_can_serve(server: Server) -> None:
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=5.0) as client:
        with trio.move_on_after(START_SECONDS):
            while server.process.poll() is None:
                if await _can_serve(client):
                    return
                await trio.sleep(0.1)
    raise DemoFailure(f"the server did not come up. Its last lines:\n{server.tail()}")


async def _can_serve(client: httpx.AsyncClient) -> bool:
    try:
        return bool((await client.get("/health")).json().get("can_serve"))
    except (httpx.HTTPError, ValueError):
        return False


# --- the run ----------------------------------------------------------------------------------------------------

OPENING = """
A gateway is up at {url}. First people chat with nobody else there, then again while a job of 1,000
embeddings (background, in steps of 32) and some generations (batch, on a process of their own) want the same machine.
"""

HEADINGS = (
    "What the scheduler decided around the first chat that overtook (a line a decision; rule: the reason behind it):",
    "And from the end of the last chat:",
)


async def _interruptible(setting: Setting, folder: Path, seconds: float, keep: bool) -> int:
    """The run, cut short in good order by Ctrl-C or SIGTERM; after the run, that is how --keep ends."""
    result = INTERRUPTED
    nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    heard = [number for number in ENDING_SIGNALS if not (nohup and number is signal.SIGHUP)]
    # Received until the server has ended: a second Ctrl-C must not cut its end short.
    with trio.open_signal_receiver(*heard) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_on_signal, signals, nursery.cancel_scope)
            try:
                async with _running_server(setting, folder) as server:
                    print(OPENING.format(url=server.url), flush=True)
                    result = await _measure_and_tell(setting, server, seconds)
                    if keep:
                        print(how_to_use(server.url, setting.chat), flush=True)
                        await trio.sleep_forever()
                print(f"\nFor a server of your own with the same models: {_as_called()} serve {setting.serve_options}")
            except DemoFailure as failure:
                print(f"gridsched demo: {failure}", file=sys.stderr)
                result = 1
            nursery.cancel_scope.cancel()
    return result


async def _cancel_on_signal(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for _ in signals:
        scope.cancel()


async def _measure_and_tell(setting: Setting, server: Server, seconds: float) -> int:
    """The traffic, then everything there is to say about it. Raises DemoFailure."""
    from loadtest import clients, mainjob  # noqa: PLC0415 - found lazily, see the module's docstring
    from loadtest.decisions import Followed  # noqa: PLC0415 - the same

    plan = mainjob.Plan(
        chat_model=setting.chat,
        batch_model=setting.batch,
        embed_model=setting.embed,
        chat_seconds=max(LEAST_CHAT_SECONDS, seconds * CHAT_SHARE),
    )
    followed, failed = Followed(), ""
    async with clients.connect(server.url) as client, trio.open_nursery() as nursery:
        job = mainjob.MainJob(client, plan)
        nursery.start_soon(followed.follow, client.http)
        nursery.start_soon(_show_progress, job, followed.lines)
        try:
            await job.run()
            await followed.wait_for(mainjob.is_end_of_job, at_most_seconds=LOG_SECONDS)
        except mainjob.SetupFailure as failure:
            failed = str(failure)
        nursery.cancel_scope.cancel()
    if failed or server.process.poll() is not None:
        raise DemoFailure(f"{failed or 'the server ended'}. The server's last lines:\n{server.tail()}")
    return _tell(job, followed.lines, followed.fault)


async def _show_progress(job: "MainJob", lines: "Sequence[Line]") -> None:
    """One line that is kept up to date on a terminal; elsewhere a new line now and then."""
    from loadtest import story  # noqa: PLC0415 - found lazily, see the module's docstring

    terminal = sys.stdout.isatty()
    try:
        while True:
            text = story.live_line(job, lines)
            print(f"\r\x1b[2K{text}" if terminal else text, end="" if terminal else "\n", flush=True)
            await trio.sleep(LIVE_SECONDS if terminal else LIVE_SECONDS_WITHOUT_TERMINAL)
    finally:
        if terminal:
            print(flush=True)


def _tell(job: "MainJob", lines: "Sequence[Line]", fault: str) -> int:
    """The log around the overtaking, the table, the sentence, the marks; gives the exit code."""
    from loadtest import mainjob, marks, report, story  # noqa: PLC0415 - found lazily, see the module's docstring

    for heading, excerpt in zip(HEADINGS, story.excerpts(lines), strict=False):  # the log may hold one, or none
        print("", heading, *(f"  {sentence(line.raw)}" for line in excerpt), sep="\n")
    print("", report.table(report.rows_of(mainjob.reported(job.result))), sep="\n")
    print("", story.closing_sentence(lines, job.result), "", sep="\n")
    judged = marks.judge(lines, job.result, job.plan)
    for mark in judged:
        print(f"  {'met   ' if mark.met else 'MISSED'}  {mark.name}: {mark.figure}")
    if fault:
        print(f"  {fault}")
    print(f"\n{sum(mark.met for mark in judged)} of {len(judged)} met.")
    return 0 if all(mark.met for mark in judged) else 1


def how_to_use(url: str, model: str) -> str:
    """Lines that can be pasted: a shell's, and the OpenAI SDK's."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Say hello."}]})
    return f"""
The server stays up until Ctrl-C. From a shell:

  curl -s {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'
  {sys.executable} -m gridsched events --server {url} --follow

With the OpenAI SDK:

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="unused")
  messages = [{{"role": "user", "content": "Say hello."}}]
  print(client.chat.completions.create(model="{model}", messages=messages).choices[0].message.content)
"""


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0 and up to {LONGEST_SECONDS:.0f}")
    return value
