"""`gridsched replay FILE`: what `serve --record FILE` wrote, heard again by a scheduler and compared, step by step."""

import argparse
import json
import sys
from collections.abc import Iterator

from gridsched.app import CONFIGURATION
from gridsched.cli.arguments import a_path
from gridsched.core.commands import Command
from gridsched.core.errors import CoreError
from gridsched.core.scheduler import Scheduler
from gridsched.library.names import printable
from gridsched.runtime.tape import Step, Tape, TapeError, answer_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("file", type=a_path, metavar="FILE", help="what serve --record wrote")
    parser.add_argument("--check", action="store_true", help="check every invariant after every step")


def main(args: argparse.Namespace) -> int:
    """Replay. 0 where every step answers the same, 1 at the first that does not, 2 for a file that is no tape."""
    try:
        lines, code = replay(Tape(args.file), check=args.check)
    except TapeError as error:
        lines, code = [f"gridsched: {error}"], CONFIGURATION
    except OSError as error:
        lines, code = [f"gridsched: {args.file}: {error.strerror}"], CONFIGURATION
    print("\n".join(map(printable, lines)), file=sys.stderr if code == CONFIGURATION else sys.stdout)
    return code


def replay(tape: Tape, *, check: bool = False) -> tuple[list[str], int]:
    """What came of it, and the exit code. Raises TapeError where a line is wrong."""
    scheduler = Scheduler(tape.policy, check_invariants=check)
    events = commands = 0
    for step in tape:
        events += 1
        try:
            answered = scheduler.step(step.event, step.at)
        except CoreError as bug:
            return _broken(step, events, bug)
        commands += len(answered)
        did, digest = answer_of(answered)
        if digest != step.digest:
            return list(_difference(step, events, answered, json.loads(did))), 1
    torn = "; the last line is cut off and was left out" if tape.torn else ""
    return [f"{events} events, {commands} commands, the same{torn}"], 0


def _broken(step: Step, number: int, bug: CoreError) -> tuple[list[str], int]:
    """The scheduler's own checks failed: as on the tape, or here alone."""
    told = str(bug).splitlines()
    if step.did is None:
        return [f"{number} events, the last of them ends in the same bug:", *told], 0
    return [
        f"line {step.line}, event {number}, {step.event}",
        "was answered on the tape and meets a bug here:",
        *told,
    ], 1


def _difference(step: Step, number: int, answered: tuple[Command, ...], did: list[object]) -> Iterator[str]:
    """The first step that differs: what was heard, and both answers; the log only where nothing else differs."""
    yield f"line {step.line}, event {number} at {step.at:.6f}: {step.event}"
    if step.did is None:
        yield "ended in a bug on the tape, and does not here"
    elif step.did != did:
        yield "tape:"
        yield from (f"  {json.dumps(one)}" for one in step.did)
    else:
        yield "does the same, but the decision log says something else; the tape keeps only its fingerprint"
    yield "here:"
    yield from (f"  {command}" for command in answered)
