"""`python -m loadtest.bench`: run the cases, show the table, leave JSON, table and pictures.

Owns the command line and the order. Exit code 1 when a request failed, directly or through gridsched, and 2 when it
cannot run at all. What is not there is said, and named in the result; so is what others failed of.
"""

import argparse
import importlib
import importlib.util
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from loadtest.bench import cases, curves, machine, table
from loadtest.bench.processes import ROOT, Processes, interrupted
from loadtest.bench.progress import Progress, rounds, seconds
from loadtest.bench.result import CASES, LONG_CASES, BenchFault, BenchResult, LeftOut, Plan, Row
from loadtest.bench.tools import LOAD, STUB, compiled
from loadtest.bench.variants import (
    DIRECT,
    GRIDSCHED,
    LITELLM,
    REAL,
    ROUTER,
    STUBBED,
    Site,
    make_models,
    real_engine,
    started,
    versions,
)

VARIANTS = (GRIDSCHED, ROUTER, LITELLM)
UPSTREAMS = (STUBBED, REAL)
RESULTS = ROOT / "loadtest" / "results"
LITELLM_FOLDER = ROOT / ".cache" / "bench" / "litellm"
CURVES = "curves"
BUSY = 0.25
"""Of each processor: who wants that much already will be felt."""


@dataclass
class Collected:
    """What has come together so far; whatever ends the run, this much is shown."""

    rows: list[Row] = field(default_factory=list)
    curves: list[Row] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)


def main(words: Sequence[str] | None = None) -> int:
    """Run it."""
    args = _arguments().parse_args(words)
    signal.signal(signal.SIGTERM, interrupted)
    began, clock = datetime.now(UTC), time.monotonic()
    found, here = Collected(), machine.machine({})
    cut_short = False
    try:
        _check_folder(args.out)
        if (here.load_before or 0.0) > BUSY * here.cpus:
            _say(
                f"the machine is busy (load {here.load_before:.1f} on {here.cpus} processors): rounds will be far apart"
            )
        _run(args, found)
    except BenchFault as fault:
        print(f"the benchmark cannot run: {fault}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        cut_short = True
    result = BenchResult(
        machine=replace(here, versions={**here.versions, **found.versions}, load_after=machine.load()),
        revision=machine.revision(),
        cases=found.rows,
        curves=found.curves,
        left_out={what: machine.without_paths(why) for what, why in found.left_out.items()},
        notes=[machine.without_paths(note) for note in found.notes],
        began=began.strftime("%Y-%m-%d %H:%M UTC"),
        took_s=time.monotonic() - clock,
        settings={"rounds": args.rounds, "seconds": args.seconds, "cases": args.cases, "upstreams": args.upstreams},
    )
    print(table.table(result))
    if cut_short:
        print("interrupted: nothing is written, and every process has been ended", file=sys.stderr)
        return 130
    if not found.rows and not found.curves:
        print("the benchmark cannot run: nothing of it could be measured here", file=sys.stderr)
        return 2
    _leave(result, args.out)
    missing = any(what.startswith(f"{GRIDSCHED} (") for what in found.left_out)
    return int(missing or any(row.errors for row in (*found.rows, *found.curves) if row.variant in (DIRECT, GRIDSCHED)))


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench", description=__doc__)
    parser.add_argument("--rounds", type=rounds, default=5, help="rounds of each case (5)")
    parser.add_argument("--seconds", type=seconds, default=0.8, help="seconds of load of each variant in a round (0.8)")
    usual = [*CASES, CURVES]
    text = f"{', '.join(usual)}; only by name: {', '.join(LONG_CASES)}"
    parser.add_argument("--cases", nargs="+", choices=[*usual, *LONG_CASES], default=usual, metavar="CASE", help=text)
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, default=list(VARIANTS), help="beside the direct way")
    parser.add_argument("--upstreams", nargs="+", choices=UPSTREAMS, default=list(UPSTREAMS), help="engines in turn")
    parser.add_argument("--engine", default="", metavar="PATH", help="a llama-server; else PATH's, else the wheel's")
    parser.add_argument(
        "--litellm", type=Path, default=LITELLM_FOLDER, metavar="FOLDER", help="environment of its proxy"
    )
    text = "another proxy: a command line in which {port} and {upstream} stand for where it listens and whom it asks"
    parser.add_argument("--proxy", action="append", default=[], metavar="NAME=COMMAND", help=text)
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help="for JSON, table and pictures")
    return parser


def _proxies(given: Sequence[str]) -> Mapping[str, str]:
    named = [one.partition("=") for one in given]
    for name, _, command in named:
        if not name.strip() or not command.strip():
            raise BenchFault("--proxy takes NAME=COMMAND")
        if "/" in name or name in (DIRECT, *VARIANTS):
            raise BenchFault(f"--proxy: {name} is no name for another proxy")
        try:
            shlex.split(command)
        except ValueError as error:
            raise BenchFault(f"--proxy: the command of {name} cannot be read: {error}") from None
    return {name: command for name, _, command in named}


def _run(args: argparse.Namespace, found: Collected) -> None:
    """All cases. Raises BenchFault where nothing can be measured."""
    proxies = _proxies(args.proxy)
    with tempfile.TemporaryDirectory(prefix="gridsched-bench-") as name, Processes(Path(name)) as processes:
        folder = Path(name)
        _say("compiling the load generator and the stub engine, making a tiny model")
        load, stub = compiled(LOAD, folder), compiled(STUB, folder)
        site = Site(
            processes=processes,
            folder=folder,
            models=make_models(folder),
            stub=stub,
            litellm=args.litellm,
            proxies=proxies,
        )
        try:
            site = replace(site, engine=real_engine(args.engine))
        except LeftOut as why:
            site = replace(site, no_engine=str(why))
        found.versions.update(versions(site))
        progress = Progress()
        plan = Plan(rounds=args.rounds, seconds=args.seconds, folder=folder, say=progress.say, step=progress.step)
        progress.expect(sum(_loads(args, plan, upstream) for upstream in args.upstreams))
        progress.expect(sum(case not in cases.SETTINGS and case != CURVES for case in args.cases))
        for upstream in args.upstreams:
            if any(case in cases.SETTINGS or case == CURVES for case in args.cases):
                try:
                    _over(args, found, site, plan, load, upstream)
                except (LeftOut, BenchFault) as why:
                    found.left_out[upstream] = str(why)
                    _say(f"left out: {upstream}: {why}")
                    progress.expect(-_loads(args, plan, upstream))
            processes.end()
        _others(args, found, plan)


def _loads(args: argparse.Namespace, plan: Plan, upstream: str) -> int:
    """How many loads there are over one kind of engine."""
    bench = cases.Bench(plan=plan, load=plan.folder, up=(), upstream=upstream)
    count = sum(cases.steps(bench, case) for case in args.cases if case in cases.SETTINGS)
    return count + (curves.steps(bench) if CURVES in args.cases and upstream == STUBBED else 0)


def _over(args: argparse.Namespace, found: Collected, site: Site, plan: Plan, load: Path, upstream: str) -> None:
    """The cases over one kind of engine. Raises LeftOut and BenchFault where there is none."""
    up, left_out = started(site, upstream, args.variants, _say)
    for name, reason in left_out.items():
        found.left_out[f"{name} ({upstream})"] = reason
        _say(f"left out: {name} ({upstream}): {reason}")
    bench = cases.Bench(plan=plan, load=load, up=up, upstream=upstream)
    for case in cases.SETTINGS:
        if case in args.cases:
            found.rows.extend(cases.measure(bench, case))
    if CURVES in args.cases and upstream == STUBBED:
        found.curves.extend(curves.measure(bench))
    found.notes.extend(bench.failures)


def _others(args: argparse.Namespace, found: Collected, plan: Plan) -> None:
    """The cases that have a module of their own."""
    for case in args.cases:
        if case in cases.SETTINGS or case == CURVES:
            continue
        if importlib.util.find_spec(f"loadtest.bench.{case}") is None:
            found.left_out[case] = "it has no module here"
            continue
        plan.step(case)
        try:
            found.rows.extend(importlib.import_module(f"loadtest.bench.{case}").measure(plan))
        except (LeftOut, BenchFault) as why:
            found.left_out[case] = str(why)
            _say(f"left out: {case}: {why}")


def _check_folder(folder: Path) -> None:
    """Raises BenchFault where nothing can be left: before anything is measured, not behind it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BenchFault(f"nothing can be written to {folder}: {error.strerror}") from None


def _leave(result: BenchResult, folder: Path) -> None:
    (folder / "latest.json").write_bytes(result.as_json())
    (folder / "latest.md").write_text(table.table(result), encoding="utf-8")
    _say(f"written: {folder / 'latest.json'}, {folder / 'latest.md'}")
    try:
        plots = importlib.import_module("loadtest.bench.plots")
    except ImportError:
        _say("without pictures: matplotlib is not installed (the extra report)")
        return
    for path in plots.draw(result, folder):
        _say(f"drawn: {path.name}")


def _say(sentence: str) -> None:
    print(f"== {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
