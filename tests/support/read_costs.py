"""What reading model files costs a process that does nothing else: `python -m tests.support.read_costs FILE...`.

Prints one JSON object: for each file its error (or "" for a header), thread time in milliseconds, and by how many KiB
the process grew at its most. Reads each file once before it measures, so that what is made once is not counted.
"""

import json
import resource
import sys
from contextlib import suppress
from pathlib import Path
from time import thread_time

from gridsched.library.read import Unreadable, read_file


def peak_kib() -> int:
    """The most memory the process has had since `forget_peak`, or ever where the system keeps no other count."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def forget_peak() -> None:
    """Count the peak from here on, where the system lets us."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def cost(path: Path) -> tuple[str, float, int]:
    """One reading: its error, its milliseconds, its KiB."""
    forget_peak()
    before, started = peak_kib(), thread_time()
    try:
        read_file(path)
    except Unreadable as error:
        said = str(error)
    else:
        said = ""
    return said, (thread_time() - started) * 1000, peak_kib() - before


def main() -> None:
    """Measure what the command line names."""
    paths = [Path(word) for word in sys.argv[1:]]
    cost(paths[0])
    json.dump({path.name: cost(path) for path in paths}, sys.stdout)


if __name__ == "__main__":
    main()
