"""How long a benchmark is to be, and how far it is: a line for each step, with its number and the time so far.

Owns these lines and the two numbers of the command line. Must never write to standard output, which is the table's.
"""

import argparse
import sys
import time

MOST_ROUNDS = 1000
LEAST_SECONDS, MOST_SECONDS = 0.01, 60.0


class Progress:
    """So many steps are to come; who does one names it."""

    def __init__(self) -> None:
        self._done, self._steps = 0, 0
        self._began = time.monotonic()

    def expect(self, steps: int) -> None:
        """So many more are to come; fewer than none: so many of them fall away."""
        self._steps += steps

    def step(self, what: str) -> None:
        """The next one begins."""
        self._done += 1
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        self.say(f"{self._done} of {self._steps}, {minutes}:{seconds:02}: {what}")

    def say(self, sentence: str) -> None:
        """Whatever else there is to tell."""
        print(f"== {sentence}", file=sys.stderr, flush=True)


def rounds(word: str) -> int:
    """A number of rounds, from the command line. Raises argparse.ArgumentTypeError."""
    if not word.isdecimal() or not 1 <= int(word) <= MOST_ROUNDS:
        raise argparse.ArgumentTypeError(f"1 to {MOST_ROUNDS} rounds, not {word}")
    return int(word)


def seconds(word: str) -> float:
    """A time of load, from the command line. Raises argparse.ArgumentTypeError."""
    try:
        found = float(word)
    except ValueError:
        found = 0.0
    if not LEAST_SECONDS <= found <= MOST_SECONDS:  # what is no number is in no order
        raise argparse.ArgumentTypeError(f"{LEAST_SECONDS:g} to {MOST_SECONDS:g} seconds, not {word}")
    return found
