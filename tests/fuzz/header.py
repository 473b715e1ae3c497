"""The fuzzer of the header reader: `python -m tests.fuzz.header --runs 200000 --seed 1`.

Owns two ways to find bytes: damage done to real headers with a seed, and, with `--coverage`, atheris, which keeps what
reaches new lines. Both are judged by `property`. A find is written to a file and told with how to see it again; the
exit code is 1 then.
"""

import argparse
import resource
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from random import Random
from time import thread_time

LONGEST_SECONDS = 1.0
"""Of processor time for one input, under 128 KiB: a thousand times what they take."""

MOST_GROWTH_MIB = 64
"""By how much the process may grow over all of them."""


def grown_mib() -> float:
    """The most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def tell(data: bytes, what: str) -> None:
    """Write down an input that broke something."""
    with tempfile.NamedTemporaryFile(prefix="find-", suffix=".bin", delete=False) as file:
        file.write(data)
    sys.stdout.write(f"{what}\nthe input is in {file.name}: python -m tests.fuzz.header --input {file.name}\n")


def damaged(runs: int, seed: int) -> int:
    """Damage so many headers. 1 if there was a find."""
    from tests.fuzz.mutation import mutated, seeds  # noqa: PLC0415 - atheris has to be there before what it watches
    from tests.fuzz.property import check  # noqa: PLC0415 - the same

    for data in seeds():
        check(data)
    ends: Counter[str] = Counter()
    before, longest, started = grown_mib(), 0.0, thread_time()
    for run in range(runs):
        data = mutated(Random(f"{seed}:{run}"))  # noqa: S311 - the same each time, and nothing secret
        began = thread_time()
        try:
            ends[type(check(data)).__name__] += 1
        except Exception:  # noqa: BLE001 - whatever it is, it is what we look for
            tell(data, f"seed {seed}, run {run}:\n{traceback.format_exc()}")
            return 1
        longest = max(longest, thread_time() - began)
        if longest > LONGEST_SECONDS:
            tell(data, f"seed {seed}, run {run}: {longest:.1f} s")
            return 1
    growth = grown_mib() - before
    known = ", ".join(f"{count:,} {end}" for end, count in ends.most_common())
    sys.stdout.write(
        f"{runs:,} damaged headers in {thread_time() - started:.0f} s: {known}; the longest took"
        f" {longest * 1000:.0f} ms, the process grew by {growth:.0f} MiB\n"
    )
    return int(growth > MOST_GROWTH_MIB)


def covered(runs: int, seed: int) -> int:
    """Let atheris look for inputs that reach new lines. It ends the process itself, and not with 0 on a find."""
    try:
        import atheris  # noqa: PLC0415 - not everybody has it
    except ImportError:
        sys.stdout.write("atheris is not installed here (it has wheels for Linux on x86-64): nothing more was tried\n")
        return 0

    with atheris.instrument_imports(include=["gridsched"]):
        from tests.fuzz.mutation import seeds  # noqa: PLC0415 - after atheris
        from tests.fuzz.property import check  # noqa: PLC0415 - the same

    def target(data: bytes) -> None:
        check(bytes(data))

    with tempfile.TemporaryDirectory(prefix="corpus-") as corpus:
        for number, data in enumerate(seeds()):
            (Path(corpus) / f"{number:03}").write_bytes(data)
        limits = [f"-runs={runs}", f"-seed={seed}", "-max_len=65536", "-rss_limit_mb=1024", "-timeout=10"]
        atheris.Setup([sys.argv[0], *limits, "-print_final_stats=1", corpus], target)
        atheris.Fuzz()
    return 0


def main() -> int:
    """Read the command line, and look."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.header", description="fuzz the header reader")
    parser.add_argument("--runs", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--coverage", action="store_true", help="with atheris, where it is installed")
    parser.add_argument("--input", type=Path, help="check this file alone")
    options = parser.parse_args()
    if options.input:
        from tests.fuzz.property import check  # noqa: PLC0415 - the same as above

        sys.stdout.write(f"{check(options.input.read_bytes())!r}\n")
        return 0
    return (covered if options.coverage else damaged)(options.runs, options.seed)


if __name__ == "__main__":
    sys.exit(main())
