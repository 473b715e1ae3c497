"""`gridsched lease`: whole devices for another program (R8), for a time, or for as long as a command runs.

    gridsched lease                                    who has which
    gridsched lease gpu0 --for ComfyUI --ttl 2h
    gridsched lease gpu0 --for training -- python train.py

Owns how a lease is tied to a command: its end, by whatever signal, gives the devices back. Must never release what is
somebody else's.
"""

import argparse
import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import httpx

from gridsched.cli.client import add_client_arguments, ask, connect, is_operation, run
from gridsched.cli.ending import any_end_is_ctrl_c
from gridsched.cli.failures import CONFIGURATION, FAILURES, explain
from gridsched.cli.show import say, table
from gridsched.cli.streams import tell
from gridsched.cli.waiting import follow_shown, result, until_done
from gridsched.cli.where import is_here
from gridsched.cli.words import duration, span, word
from gridsched.library.names import printable

HEADS = ("device", "for", "state", "left", "process", "comes back")
PR_SET_PDEATHSIG = 1
"""Of `prctl`, as Linux numbers it."""

NOT_FOUND, FROM_SIGNAL = 127, 128
"""What a shell says of a command that is not there; and, with its number, of one that a signal ended."""

EXAMPLES = """\
examples:
  gridsched lease                                     who has which device
  gridsched lease gpu0 --for ComfyUI --ttl 2h         until then, or until: gridsched release gpu0
  gridsched lease gpu0 gpu1 --for training -- python train.py

With a command the lease lasts as long as it runs, and is given back at its end, whatever ends it; the exit code is the
command's. Models that had to go come back by themselves.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.epilog = EXAMPLES
    parser.usage = "gridsched lease [DEVICE ... --for TEXT [--ttl 2h]] [option ...] [-- COMMAND ...]"
    add_client_arguments(parser)
    parser.add_argument("devices", metavar="DEVICE", nargs="*", type=word, help="all of these or none; all: every one")
    parser.add_argument("--for", dest="owner", metavar="TEXT", type=word, help="what for: shown to whoever asks")
    parser.add_argument("--ttl", type=duration, metavar="2h", help="for how long at the most")
    parser.add_argument("--no-wait", action="store_true", help="come back before what runs there has ended")


def main(args: argparse.Namespace) -> int:
    """Lease, or list. 0, 1 when it is refused, 2 where it is not said for what; with a command its exit code."""
    if (fault := _fault(args)) is not None:
        say(fault)
        return CONFIGURATION
    if not args.devices:
        return run(args, lambda client: ask(client, "list_leases"), show)
    if args.words:
        return _with_command(args, args.words)
    given = {"devices": args.devices, "owner": args.owner, "ttl_s": args.ttl}
    return until_done(args, "reserve_gpus", _leased, **given)


def _fault(args: argparse.Namespace) -> str | None:
    """Why what was said can be no lease."""
    if not args.devices:
        is_list = not (args.words or args.owner or args.ttl)
        return None if is_list else "name the devices (gridsched ps --json has them), or all"
    if not args.owner:
        return "say what for: --for TEXT"
    if args.words and (args.json or args.no_wait):
        return "with a command there is no --json and no --no-wait: the output is the command's"
    return None if args.words or args.ttl else "a lease ends by itself: say --ttl 2h, or -- COMMAND"


def show(told: Mapping[str, Any]) -> None:
    """Print who has what."""
    rows = [
        (
            str(one["device"]),
            str(one["owner"]),
            str(one["state"]),
            span(one["left_s"]),
            str(one["pid"] or "-"),
            ", ".join(one["displaced"]) or "-",
        )
        for one in told["leases"]
    ]
    if rows:
        table(HEADS, rows, right=("left", "process"))
    else:
        tell("no device is leased")


def _leased(told: Mapping[str, Any]) -> None:
    until = f" for {span(told['ttl_s'])}" if told.get("ttl_s") else ""
    gone = f"; to come back: {', '.join(told['displaced'])}" if told.get("displaced") else ""
    tell(printable(f"{', '.join(told['devices'])}: leased to {told['owner']}{until}{gone}"))
    if told.get("note"):
        say(str(told["note"]))


# --- with a command -------------------------------------------------------------------------------------------------


def _with_command(args: argparse.Namespace, words: Sequence[str]) -> int:
    if shutil.which(words[0]) is None:
        say(f"there is no command {words[0]}; nothing was leased")
        return NOT_FOUND
    try:
        with any_end_is_ctrl_c(), connect(args) as client:
            pid = os.getpid() if is_here(args) else None
            if pid is None and args.ttl is None:
                say("that server is not of this machine, and cannot see when the command ends: say --ttl, too")
                return CONFIGURATION
            given = {"devices": args.devices, "owner": args.owner, "ttl_s": args.ttl, "pid": pid}
            with _held(client, given):
                return _run(words)
    except FAILURES as error:
        return explain(args, error)


@contextmanager
def _held(client: httpx.Client, given: Mapping[str, Any]) -> Iterator[None]:
    """The devices for the length of the block. Raises httpx.HTTPError, Refused and NotOurs."""
    begun = ask(client, "reserve_gpus", **given)
    devices: Sequence[str] = ()
    try:
        devices = result(follow_shown(client, begun)).get("devices") or ()
        yield
    except KeyboardInterrupt:
        if not devices and is_operation(begun):
            _put_away(client, "cancel_job", job=begun["id"])
        raise
    finally:
        _give_back(client, devices, given)


def _give_back(client: httpx.Client, devices: Sequence[str], given: Mapping[str, Any]) -> None:
    """Those that are still ours: one whose time is over may be somebody else's by now."""
    leases = _put_away(client, "list_leases") if devices else None
    for one in (leases or {}).get("leases", ()):
        if one["device"] in devices and (one["owner"], one["pid"]) == (given["owner"].strip(), given["pid"]):
            _put_away(client, "release_gpus", device=one["device"])


def _put_away(client: httpx.Client, verb: str, **given: object) -> Mapping[str, Any] | None:
    try:
        return ask(client, verb, **given)
    except FAILURES as error:
        say(f"the lease could not be given back ({error}); the server ends it by itself, or: gridsched release")
        return None


def _run(words: Sequence[str]) -> int:
    """The command's exit code. What would end us is passed on to it, and we go after it."""
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def passed_on(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as signal calls it
        if number == signal.SIGINT and _hears_the_terminal():
            return  # so does the command, and it may not want to end
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    before = {number: signal.signal(number, passed_on) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        sys.stdout.flush()
        child = subprocess.Popen(words, preexec_fn=_end_with_us)  # noqa: S603, PLW1509 - the user's own; one thread
        for number in early:
            child.send_signal(number)
        code = child.wait()
    except OSError as error:
        say(f"{words[0]} cannot be run: {error.strerror}")
        return NOT_FOUND - 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return FROM_SIGNAL - code if code < 0 else code


def _end_with_us() -> None:
    """In the command's process, before it begins: where we are killed, and the devices go back, it is told to end."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _hears_the_terminal() -> bool:
    """Whether Ctrl-C reaches us and the command alike."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
