"""`python -m loadtest.bench.compare BASE`: is this tree faster than another revision, or slower?

Owns the comparison: both gateways up at once before a stub engine each, their turns interleaved, every figure's ratio
taken within a round. Exit code 0 when it was compared, 1 when requests failed, 2 when it cannot be. Must never call a
difference what the rounds do not agree on.
"""

import argparse
import signal
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.bench import cases, machine
from loadtest.bench.figures import Figure, figure, ratios, verdict
from loadtest.bench.processes import ROOT, Processes, interrupted, printed
from loadtest.bench.progress import Progress, rounds, seconds
from loadtest.bench.result import BenchFault, LeftOut, Plan, Row
from loadtest.bench.table import load_of, number
from loadtest.bench.tools import compiled
from loadtest.bench.variants import STUBBED, Site, gridsched, make_models

BASE, THIS = "base", "this"
COMPARED: Mapping[str, bool] = {
    "p50_us": True,
    "p99_us": True,
    "requests_per_s": False,
    "cpu_us_per_request": True,
    "delay_p50_us": True,
    "delay_p99_us": True,
    "first_byte_p50_us": True,
    "chunks_per_s": False,
    "cpu_us_per_chunk": True,
    "mb_per_s": False,
    "peak_mib": True,
    "freed_p50_us": True,
    "freed_p99_us": True,
}
"""Figures, and whether less of it is better."""
PINS = "constraints/constraints.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One figure under one load: this tree over the base, of each round."""

    case: str
    load: str
    name: str
    ratio: Figure | None
    says: str
    base: float | None
    this: float | None


def main(words: Sequence[str] | None = None) -> int:
    """Compare, and show it."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.compare", description=__doc__)
    parser.add_argument("base", metavar="BASE", help="a revision: a tag, a commit, HEAD~1")
    parser.add_argument("--rounds", type=rounds, default=5, help="rounds of each case (5)")
    parser.add_argument("--seconds", type=seconds, default=0.8, help="seconds of load of each side in a round (0.8)")
    known = list(cases.SETTINGS)
    parser.add_argument("--cases", nargs="+", choices=known, default=known, metavar="CASE", help=", ".join(known))
    args = parser.parse_args(words)
    signal.signal(signal.SIGTERM, interrupted)
    try:
        found, notes = _run(args)
    except (BenchFault, LeftOut) as fault:
        print(f"nothing can be compared: {fault}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: every process has been ended", file=sys.stderr)
        return 130
    print("\n".join(lines(args.base, list(compared(found)), notes)))
    return int(any(row.errors for row in found if row.each))  # what a side does not answer at all is noted


def _run(args: argparse.Namespace) -> tuple[Sequence[Row], Sequence[str]]:
    """The rows of both, and what could not be compared. Raises BenchFault and LeftOut."""
    with tempfile.TemporaryDirectory(prefix="gridsched-compare-") as name, Processes(Path(name)) as processes:
        folder = Path(name)
        tree, notes = checked_out(args.base, folder), []
        if (tree / PINS).read_bytes() != (ROOT / PINS).read_bytes():
            notes.append(f"both run with this tree's packages: those pinned at {args.base} are others")
        site = Site(
            processes=processes, folder=folder, models=make_models(folder), stub=compiled("engine_stub", folder)
        )
        base = Site(processes=processes, folder=folder, models=site.models, stub=site.stub, tree=tree)
        _say(f"starting {args.base} ({machine.revision(ROOT)} is this tree)")
        up = [gridsched(base, STUBBED, BASE), gridsched(site, STUBBED, THIS)]
        progress = Progress()
        plan = Plan(rounds=args.rounds, seconds=args.seconds, folder=folder, say=progress.say, step=progress.step)
        bench = cases.Bench(plan=plan, load=compiled("load", folder), up=up, upstream=STUBBED)
        progress.expect(sum(cases.steps(bench, case) for case in args.cases))
        rows = [row for case in args.cases for row in cases.measure(bench, case)]
        return rows, [*notes, *bench.failures]


def checked_out(revision: str, folder: Path) -> Path:
    """The files of a revision, in a folder of their own. Raises BenchFault where there is no such revision."""
    archive, tree = folder / "base.tar", folder / "base-tree"
    commit = printed(("git", "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}"), cwd=ROOT)
    printed(("git", "archive", "--format=tar", "--output", str(archive), commit), cwd=ROOT)
    with tarfile.open(archive) as files:
        files.extractall(tree, filter="data")
    return tree


def compared(rows: Sequence[Row]) -> Iterator[Compared]:
    """Every figure that both have. Pure."""
    by_load = {(row.case, load_of(row), row.variant): row for row in rows}
    for (case, load, variant), this in by_load.items():
        base = by_load.get((case, load, BASE))
        if variant != THIS or base is None:
            continue
        for name, lower_is_better in COMPARED.items():
            if name not in this.each or name not in base.each:
                continue
            paired = ratios(this.each[name], base.each[name])
            yield Compared(
                case=case,
                load=load,
                name=name,
                ratio=figure(paired),
                says=verdict(paired, lower_is_better=lower_is_better),
                base=_middle(base, name),
                this=_middle(this, name),
            )


def _middle(row: Row, name: str) -> float | None:
    found = figure(row.each[name])
    return found.median if found else None


def lines(base: str, found: Sequence[Compared], notes: Sequence[str]) -> Iterator[str]:
    """The table, the verdict, and what could not be compared."""
    yield f"| case | load | figure | {base} | this tree | ratio (lowest…highest) | |"
    yield "|---|---|---|---|---|---|---|"
    for one in found:
        ratio = one.ratio
        told = f"{ratio.median:.3f} ({ratio.lowest:.3f}…{ratio.highest:.3f})" if ratio else "-"
        sides = " | ".join("-" if side is None else number(side) for side in (one.base, one.this))
        yield f"| {one.case} | {one.load} | {one.name.replace('_', ' ')} | {sides} | {told} | {one.says} |"
    yield ""
    counts = {what: sum(one.says == what for one in found) for what in ("better", "worse", "same", "undecided")}
    yield f"this tree against {base}: " + ", ".join(f"{count} {what}" for what, count in counts.items())
    for note in notes:
        yield f"not compared, or not quite: {note}"


def _say(sentence: str) -> None:
    print(f"== {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
