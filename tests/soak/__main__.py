"""`python -m tests.soak --minutes 3 --seed 7`: one run and its table; 1 where something is unexplained or left."""

import argparse
import sys

from tests.soak.judge import table
from tests.soak.run import soak


def main() -> int:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    result = soak(args.seed, args.minutes * 60)
    print(f"seed {args.seed}")
    for line in table(result):
        print(line)
    return 1 if result.faults() else 0


if __name__ == "__main__":
    sys.exit(main())
