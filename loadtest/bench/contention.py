"""The chat and the background on the real engine: what each has of the machine under each way to share it.

Owns the run: a server for each setting, all of them up at once, their stretches of traffic in turns within each round,
no two at the same time. Must never leave a process behind, and never judge a time that is no ratio within a round.

`python -m loadtest.bench.contention` prints the table and the marks; exit code 1 when a mark is missed, 2 when it
cannot run.
"""

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import trio

from loadtest import fetch
from loadtest.bench import contention_result
from loadtest.bench.contention_log import beside
from loadtest.bench.contention_result import ALONE, PAUSE, SETTINGS, SOLO, STRETCHES, Each, Round, marks
from loadtest.bench.contention_server import Machine, Server, ServerFault, started
from loadtest.bench.contention_traffic import Load, Stretch, TrafficFault, stretch, warm_up
from loadtest.bench.result import LeftOut, Plan, Row, row_of
from loadtest.clients import Client, connect
from loadtest.decisions import Followed

MARGIN_SECONDS = 0.1
"""So much later than a chat's cool-down the next stretch begins on the same server: the background is not held off."""
CASE, UPSTREAM = "contention", "engine"
SERVER_OF = {ALONE: "s4", SOLO: "relief"}
"""Where one side is alone its setting does not matter; every server has one more stretch at most."""
Say = Callable[[str], None]


@dataclass(slots=True)
class Place:
    """A server with its client and its decisions so far. `quiet_at` is when its last chat is forgotten, on trio's
    clock, `quiet_seconds` after it."""

    client: Client
    quiet_seconds: float
    log: Followed = field(default_factory=Followed)
    quiet_at: float = 0.0


async def measure_rounds(machine: Machine, load: Load, rounds: int, folder: Path, say: Say) -> list[Round]:
    """All rounds. Raises ServerFault, TrafficFault."""
    with ExitStack() as servers:
        all_started = {
            name: servers.enter_context(started(folder / name, machine.settings(scheduler)))
            for name, scheduler in SETTINGS.items()
        }
        async with AsyncExitStack() as clients:
            quiet_seconds = machine.cool_down_seconds + MARGIN_SECONDS
            places = {
                name: Place(await clients.enter_async_context(connect(one.url)), quiet_seconds)
                for name, one in all_started.items()
            }
            say("starting servers and engines")
            async with trio.open_nursery() as nursery:
                for name, server in all_started.items():
                    nursery.start_soon(_get_ready, server, places[name])
            return [await _round(places, load, number, say) for number in range(rounds)]


async def _get_ready(server: Server, place: Place) -> None:
    await server.comes_up()
    await warm_up(place.client)
    place.quiet_at = trio.current_time() + place.quiet_seconds


async def _round(places: Mapping[str, Place], load: Load, number: int, say: Say) -> Round:
    """Every stretch once, each round beginning with another."""
    seen: dict[str, Stretch] = {}
    first = number % len(STRETCHES)
    for name in (*STRETCHES[first:], *STRETCHES[:first]):
        place = places[SERVER_OF.get(name, name)]
        await trio.sleep_until(place.quiet_at)
        await place.log.catch_up(place.client.http, 0)
        before = len(place.log.lines)
        seen[name] = await stretch(place.client, load, people=name != SOLO, background=name != ALONE)
        await place.log.catch_up(place.client.http, 0)
        seen[name].beside = beside(place.log.lines[before:], seen[name].began_time)
        if name != SOLO:
            place.quiet_at = trio.current_time() + place.quiet_seconds
        say(f"round {number + 1}, {name}: {len(seen[name].chats)} chats in {seen[name].seconds:.1f} s")
    return {name: seen[name] for name in STRETCHES}


def rows(all_figures: Mapping[str, Each], load: Load) -> list[Row]:
    """A row for each stretch; what is marked is noted with the setting that it is about."""
    told = [f"{'met' if mark.met else 'missed'}: {mark.name}: {mark.figure}" for mark in marks(all_figures)]
    return [
        row_of(
            each,
            case=CASE,
            variant=name,
            reference=ALONE,
            clients=load.people,
            upstream=UPSTREAM,
            notes=told if name == PAUSE else (),
        )
        for name, each in all_figures.items()
    ]


def measure(plan: Plan) -> list[Row]:
    """The case for the whole benchmark, so many times as long as others: a stretch of less holds no relief turn. Raises
    LeftOut where models, engine or server are not to be had."""
    load = Load(
        chat_seconds=plan.seconds * Load().chat_seconds, settle_seconds=min(1.0, plan.seconds) * Load().settle_seconds
    )
    machine = partial(_machine, None, None, load.people)
    return rows(contention_result.figures(run(machine, load, plan.rounds, plan.folder / CASE, plan.say)), load)


def run(machine: Callable[[], Machine], load: Load, number: int, folder: Path, say: Say) -> list[Round]:
    """So many rounds. Raises LeftOut where they cannot be, with the sentence of whatever failed first, and
    KeyboardInterrupt itself, in no group."""
    why: list[str] = []
    try:
        return trio.run(measure_rounds, machine(), load, number, folder, say)
    except* (fetch.FetchFailure, ServerFault, TrafficFault) as faults:
        why = [str(fault) for fault in _leaves(faults)]
    except* KeyboardInterrupt:
        pass
    if why:
        raise LeftOut(why[0])
    raise KeyboardInterrupt


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for fault in group.exceptions:
        if isinstance(fault, BaseExceptionGroup):
            yield from _leaves(fault)
        else:
            yield fault


# --- the command ------------------------------------------------------------------------------------------------


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.contention", description=__doc__)
    usual = Load()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seconds", type=float, default=usual.chat_seconds, help="people are measured for so long at a time"
    )
    parser.add_argument("--people", type=int, default=usual.people)
    parser.add_argument("--think", type=float, default=usual.think_seconds, help="seconds between answer and question")
    parser.add_argument("--sentences", type=int, default=usual.sentences, help="of a document, eight words each")
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument("--threads", type=int, default=0, help="of each process; 0: as many as the engine takes")
    parser.add_argument("--engine", type=Path, help="llama-server; the one that a server finds")
    parser.add_argument("--chat-model", type=Path, help="a GGUF file; the demo's")
    parser.add_argument("--embed-model", type=Path, help="a GGUF file; the demo's")
    parser.add_argument("--json", type=Path, help="write the figures there")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run it; the result is the exit code."""
    args = _arguments().parse_args(argv)
    # Either signal ends it in good order, also where a shell has had it ignore Ctrl-C in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    load = Load(
        people=args.people,
        chat_seconds=args.seconds,
        think_seconds=args.think,
        sentences=args.sentences,
        seed=args.seed,
    )
    folder = Path(tempfile.mkdtemp(prefix="gridsched-contention-"))
    machine = partial(_machine, args.chat_model, args.embed_model, args.people, args.engine, args.threads)
    try:
        rounds = run(machine, load, args.rounds, folder, _say)
    except LeftOut as why:
        print(f"contention: {why}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return _tell(contention_result.figures(rounds), load, args.json)


def _machine(
    chat: Path | None, embedder: Path | None, people: int, engine: Path | None = None, threads: int = 0
) -> Machine:
    """With the demo's models where others are not named. Raises FetchFailure."""
    if not (chat and embedder):
        models = fetch.fetch_models()
        chat, embedder = chat or models.chat, embedder or models.embedder
    return Machine(chat, embedder, people, engine, threads)


def _tell(all_figures: Mapping[str, Each], load: Load, json_path: Path | None) -> int:
    judged = marks(all_figures)
    print("", contention_result.table(all_figures), "", sep="\n")
    for mark in judged:
        print(f"  {'met   ' if mark.met else 'MISSED'}  {mark.name}: {mark.figure}")
    if json_path:
        told = {"load": load, "cases": rows(all_figures, load)}
        json_path.write_bytes(msgspec.json.format(msgspec.json.encode(told), indent=1) + b"\n")
    return 0 if all(mark.met for mark in judged) else 1


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
