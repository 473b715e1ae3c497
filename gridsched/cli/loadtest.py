"""`gridsched loadtest`: a load of clients over HTTP against a running server, and what came of it.

Owns the options and what is printed; the traffic and the figures are the load test's, which is imported only here and
only when asked for. Exit code 0 when every request was answered and no load was needless, 1 when not or when there was
nothing to test, 2 for options that cannot be, 130 when interrupted: what was measured until then is told all the same.
With --compare nothing is asked of any server: 0 when the second result is no worse than the first, else 1.
"""

import argparse
import math
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import trio

from gridsched.cli import show
from gridsched.cli.client import settle, trust
from gridsched.cli.ending import ENDING_SIGNALS
from gridsched.cli.failures import CONFIGURATION, FAILED, FAILURES, explain
from gridsched.cli.streams import tell
from gridsched.cli.where import add_server_arguments, server
from gridsched.library.names import printable

if TYPE_CHECKING:  # the load test is a package beside ours: nothing of it is loaded with the command line
    from loadtest.result import Result
    from loadtest.summary import Options

DEFAULT_SECONDS, DEFAULT_SEED, LONGEST_ANSWER_SECONDS = 300.0, 1, 300.0
INTERRUPTED = 130
MOST_CLIENTS = 500
LEAST_SECONDS, LONGEST_SECONDS = 0.1, 86_400.0
LARGEST_SEED = 2**63 - 1
LEAST_RATE, MOST_RATE = 0.001, 1000.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    from loadtest.casting import POSTS  # noqa: PLC0415 - found lazily, see the module's docstring
    from loadtest.roles import MIXES, ROLES  # noqa: PLC0415 - the same

    add_server_arguments(parser)
    text = "the same as --server: any server that speaks as OpenAI's, with or without /v1"
    parser.add_argument("--url", dest="server", metavar="URL", type=server, default=argparse.SUPPRESS, help=text)
    first, *_ = MIXES
    parser.add_argument("--mix", choices=MIXES, default=first, help=f"who makes traffic, in which numbers ({first})")
    for role in ROLES.values():
        usual = ", ".join(f"{name} {mix[role.name]}" for name, mix in MIXES.items() if mix.get(role.name))
        parser.add_argument(f"--{role.name}", type=_clients, metavar="N", help=f"{role.does} ({usual})")
    for post in POSTS:
        parser.add_argument(f"--{post}-model", metavar="MODEL", help="else chosen by what the models can do")
    parser.add_argument("--seconds", type=_seconds, default=DEFAULT_SECONDS, metavar="S", help="how long (300)")
    text = "an open loop: so many requests a second of each role, at random times, whatever becomes of them"
    parser.add_argument("--rate", type=_rate, metavar="R", help=text)
    parser.add_argument("--seed", type=_seed, default=DEFAULT_SEED, metavar="N", help="the same seed asks the same (1)")
    text = "what one request may take before it counts as failed (300)"
    parser.add_argument("--timeout", type=_seconds, default=LONGEST_ANSWER_SECONDS, metavar="S", help=text)
    parser.add_argument("--cold", action="store_true", help="without a first request to each model that loads it")
    parser.add_argument("--strict", action="store_true", help="end where a role has no model that can do it")
    parser.add_argument("--json", action="store_true", help="the result as one JSON document")
    parser.add_argument("--report", type=Path, metavar="F.html", help="the result as a page with plots, too")
    text = "no traffic: two results of --json beside one another; 1 when B has more errors or needless loads"
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("A.json", "B.json"), help=text)


def main(args: argparse.Namespace) -> int:
    """Run it, and say what came of it."""
    from loadtest import report_page  # noqa: PLC0415 - found lazily, see the module's docstring
    from loadtest.server import ServerFault  # noqa: PLC0415 - the same

    if args.report and (why := report_page.refusal(args.report)):
        show.say(why)
        return CONFIGURATION
    if args.compare:
        return _compare(args)
    try:
        settle(args)
        with show.progress() as progress:
            result = trio.run(_measure, args, options_of(args), progress)
    except FAILURES as error:
        return explain(args, error)
    except ServerFault as fault:
        show.say(f"the server at {args.server} cannot be tested: {fault}")
        return FAILED
    if args.json:
        tell(result.as_json().decode())
    else:
        _show(result)
    for problem in result.problems:
        show.say(problem)
    is_told = not args.report or _page(args.report, lambda path: report_page.write(result, path))
    return INTERRUPTED if result.interrupted else FAILED if result.problems or not is_told else 0


def _compare(args: argparse.Namespace) -> int:
    """Two results beside one another."""
    from loadtest import report_page  # noqa: PLC0415 - found lazily, see the module's docstring
    from loadtest.compare import Comparison  # noqa: PLC0415 - the same
    from loadtest.result import ResultFault  # noqa: PLC0415 - the same

    try:
        comparison = Comparison.read(*args.compare)
    except ResultFault as fault:
        show.say(str(fault))
        return CONFIGURATION
    if args.json:
        tell(comparison.as_json().decode())
    else:
        print(*(printable(line) for line in comparison.lines()), sep="\n")
    for problem in comparison.problems:
        show.say(problem)
    is_told = not args.report or _page(args.report, lambda path: report_page.write_comparison(comparison, path))
    return FAILED if comparison.problems or not is_told else 0


def _page(path: Path, write: Callable[[Path], None]) -> bool:
    """Whether the report is there; else why not is said."""
    try:
        write(path)
    except OSError as error:
        show.say(f"no report could be written to {path}: {error.strerror or error}")
        return False
    show.beside(f"the report: {path}")
    return True


def options_of(args: argparse.Namespace) -> "Options":
    """What the command line asks for."""
    from loadtest.casting import POSTS  # noqa: PLC0415 - found lazily, see the module's docstring
    from loadtest.roles import MIXES, ROLES  # noqa: PLC0415 - the same
    from loadtest.summary import Options  # noqa: PLC0415 - the same

    given = {name: getattr(args, name) for name in ROLES}
    usual = MIXES[args.mix]
    counts = {name: usual.get(name, 0) if count is None else count for name, count in given.items()}
    models = {post: getattr(args, f"{post}_model") for post in POSTS}
    return Options(
        mix=args.mix,
        counts={name: count for name, count in counts.items() if count},
        models={post: model for post, model in models.items() if model},
        seconds=args.seconds,
        seed=args.seed,
        rate=args.rate,
        cold=args.cold,
        strict=args.strict,
        longest_seconds=args.timeout,
    )


async def _measure(args: argparse.Namespace, options: "Options", progress: show.Tell) -> "Result":
    """The run; the first signal ends its traffic, a second one all of it. Raises httpx.HTTPError and ServerFault."""
    from loadtest import clients  # noqa: PLC0415 - found lazily, see the module's docstring
    from loadtest.harness import Harness  # noqa: PLC0415 - the same
    from loadtest.server import ServerFault  # noqa: PLC0415 - the same

    came: Result | httpx.HTTPError | ServerFault | None = None
    connecting = clients.connect(
        args.server, api_key=args.api_key, verify=trust(args.server, args.ca), longest_seconds=options.longest_seconds
    )
    heard = [number for number in ENDING_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    with trio.open_signal_receiver(*heard) as signals:
        async with connecting as client, trio.open_nursery() as nursery:
            harness = Harness(client, options, progress)
            nursery.start_soon(_on_signals, signals, harness.stop, nursery.cancel_scope.cancel)
            try:
                came = await harness.run()
            except (httpx.HTTPError, ServerFault) as fault:
                came = fault
            nursery.cancel_scope.cancel()
    if came is None:
        raise KeyboardInterrupt
    if isinstance(came, Exception):
        raise came
    return came


async def _on_signals(signals: AsyncIterator[int], *does: Callable[[], None]) -> None:
    """What each signal does, the first, the second …"""
    for each in does:
        await anext(signals)
        each()


# --- what is told -----------------------------------------------------------------------------------------------------


def _show(result: "Result") -> None:
    """The tables, and everything that a reader must know beside them."""
    from loadtest import report  # noqa: PLC0415 - found lazily, see the module's docstring

    print(report.table(result.classes))
    if any(row not in result.classes.values() for row in result.roles.values()):
        print("", report.table(result.roles), sep="\n")
    print()
    counted = {
        "loads": result.loads,
        "needless loads": result.needless_loads,
        "evictions": result.evictions,
        "relief steps": result.relief_steps,
        "times of thrash": result.thrash,
    }
    print(", ".join(f"{'unknown' if count is None else count} {what}" for what, count in counted.items()))
    for role, model in result.settings["models"].items():
        print(printable(f"{role}: {model}"))
    for role, why in result.left_out.items():
        print(printable(f"left out: {role}: {why}"))
    for failure in result.failures:
        print(printable(f"failed: {failure.role}: {failure.error} ({failure.count} times)"))
    for note in result.notes:
        print(printable(note))


# --- figures of the command line --------------------------------------------------------------------------------------


def _clients(text: str) -> int:
    return round(_between(text, 0, MOST_CLIENTS, "number of clients", whole=True))


def _seed(text: str) -> int:
    return round(_between(text, 0, LARGEST_SEED, "seed", whole=True))


def _seconds(text: str) -> float:
    return _between(text, LEAST_SECONDS, LONGEST_SECONDS, "number of seconds")


def _rate(text: str) -> float:
    return _between(text, LEAST_RATE, MOST_RATE, "number of requests a second")


def _between(text: str, least: float, most: float, what: str, *, whole: bool = False) -> float:
    """The figure. Raises ArgumentTypeError."""
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{printable(text)} is no {what} from {least:.15g} to {most:.15g}")
    return value
