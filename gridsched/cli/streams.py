"""Standard output and error, whatever they were left as. Owns nothing but their descriptors.

A reader may have gone, a disk may be full, a descriptor may be closed, a locale may lack a letter: nothing of that is a
reason to stop serving, or to end with a traceback.
"""

import io
import os
import select
import sys
from contextlib import suppress


def prepare() -> None:
    """Make printing safe: no file of ours may become descriptor 0, 1 or 2, and a letter without a code is escaped."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def mute() -> None:
    """What is still to be printed goes nowhere: the interpreter tries again at its end, and would complain."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)


def tell(line: str) -> None:
    """Print a line for whoever still listens."""
    try:
        print(line, flush=True)
    except OSError:
        mute()


def expect_reader() -> None:
    """Whoever is silent for long would never learn that nobody reads it any more. Raises BrokenPipeError."""
    output = select.poll()
    output.register(1, 0)  # what is wrong with it is told always
    if output.poll(0):
        raise BrokenPipeError
