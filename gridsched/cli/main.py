"""`gridsched`: parses the command line and hands over to the command's own module. Owns the exit codes.

    0 done · 1 failed · 2 configuration · 3 port taken · 4 data directory in use · 75 start it again · 130 interrupted

Each command is a module with `add_arguments(parser)` and `main(args) -> int`; it is imported only when it is asked for,
so that `gridsched events` does not pay for the server.
"""

import argparse
import difflib
import errno
import gc
import importlib
import re
import signal
import sys
from typing import NoReturn, Protocol, cast

from gridsched import __version__
from gridsched.cli import streams

INTERRUPTED = 130
"""What a shell says of a program that Ctrl-C ended."""

COMMANDS = {
    "serve": "run the gateway",
    "watchdog": "the recovery sidecar: says how the gateway is, restarts it, mends its configuration, over MCP",
    "demo": "see it work: a server, a chat model and an embedder, mixed traffic, the class table",
    "check": "check the configuration, the engine, the devices and every model's fit",
    "doctor": "what is wrong with this set-up, and what to do about each",
    "estimate": "the memory that a model would take, by device and component, before it is loaded",
    "ps": "what is loaded at a running server, how busy it is, and who waits",
    "top": "a running server at a glance, live: devices, queues, who waits and why, slots, decisions",
    "models": "the models of a running server, what they take, and how far off the estimates were",
    "plan": "what a load of a model would do now: devices, context, slots, who goes; or why not",
    "load": "have a running server load a model",
    "unload": "have a running server unload a model",
    "pin": "keep a model loaded",
    "unpin": "let a model go like any other",
    "lease": "whole devices for another program, for a time or as long as a command runs; who has which",
    "release": "give a leased device back",
    "jobs": "who waits at a running server and why, and who runs",
    "explain": "why a job waits and for how long, and what was decided about it",
    "cancel": "end a job, or an operation such as a load",
    "events": "the decision log of a running server",
    "logs": "what a model's engine has written",
    "config": "the configuration of a running server: get, set, reload",
    "drain": "have a running server take nobody new, and finish those it has",
    "restart": "end a running server in peace, and have it started again",
    "search": "models on the hub, by the server that would fetch them",
    "download": "have a running server fetch a model from the hub",
    "downloads": "what a running server fetches, and has fetched",
    "benchmark": "have a running server measure a model: how fast, and how many slots are worth running",
    "servers": "name servers for these commands: add, list, use, remove",
    "keys": "API keys: add, list, revoke",
    "engine": "llama-server builds side by side: list, use, install, test, rollback",
    "install-service": "gridsched and its watchdog as services of this user (systemd)",
    "completion": "what a shell needs to complete these commands",
    "mcp": "the tools of a server and of its watchdog, for programs that speak MCP over stdio",
    "loadtest": "clients of every class against a running server, and what came of it",
    "simulate": "what if: the same workload on another card or under another policy, in virtual time",
    "replay": "run what serve --record wrote through the scheduler again, and compare",
}


TAKES_WORDS = frozenset(("estimate", "lease", "watchdog"))
"""Commands for which what follows `--` is for another program (llama-server, `gridsched serve`, any); its flags may
look like the command's own, so the command's parser does not see them."""


_NO_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")


class Command(Protocol):
    """What a command's module offers."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's options."""

    def main(self, args: argparse.Namespace) -> int:
        """Do it; the result is the exit code."""


class Parser(argparse.ArgumentParser):
    """Says which verbs there are where none was given, and which command was meant."""

    def error(self, message: str) -> NoReturn:
        """Exit code 2."""
        if "are required: VERB" in message or "are required: COMMAND" in message:
            self.print_help(sys.stderr)
            self.exit(2)
        if (wrong := _NO_CHOICE.search(message)) is not None:
            close = difflib.get_close_matches(wrong[1], re.findall(r"'([^']*)'", wrong[2]), 1)
            message = (
                f"{message[: wrong.start()]}there is no {wrong[1]!r}{f'; did you mean {close[0]}?' if close else ''}"
            )
        super().error(message)


def load(name: str) -> Command:
    """Import a command's module."""
    return cast("Command", importlib.import_module(f"gridsched.cli.{name.replace('-', '_')}"))


def build_parser(chosen: str | None, *, whole: bool = False) -> argparse.ArgumentParser:
    """The parser with every command's name and the chosen one's options; `whole`, with all of them."""
    parser = Parser(prog="gridsched", description="One scheduler owns the GPU.")
    parser.add_argument("--version", action="version", version=f"gridsched {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if whole or name == chosen:
            load(name).add_arguments(sub)
            if "examples:" not in (sub.epilog or ""):
                # Imported as commands are: the watchdog's has its own, and needs nothing here that could be broken.
                sub.epilog = importlib.import_module("gridsched.cli.examples").under(name, sub.epilog)
    return parser


def main(argv: list[str] | None = None) -> int:
    """The console script. Returns the exit code."""
    streams.prepare()
    words = sys.argv[1:] if argv is None else argv
    chosen = next((word for word in words if word in COMMANDS), None)
    if chosen == "serve":  # J11: a hang-up ends nothing, from the first moment; what serves means to read again at one
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        gc.disable()  # nearly all that a start makes stays: looking it through again and again takes a tenth of it
    ours = words.index("--") if chosen in TAKES_WORDS and "--" in words else len(words)
    try:
        args = build_parser(chosen).parse_args(words[:ours])
        args.words = words[ours + 1 :]
        code = load(args.command).main(args)
        print(end="", flush=True)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        code = 0  # whoever read our output has seen enough
        streams.mute()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO):  # a disk is full, a terminal is gone
            raise
        streams.mute()
        print(
            f"gridsched: cannot write {error.filename or 'the output, or a temporary file'}: {error.strerror}",
            file=sys.stderr,
        )
        code = 1
    finally:
        gc.enable()
    return code


if __name__ == "__main__":
    sys.exit(main())
