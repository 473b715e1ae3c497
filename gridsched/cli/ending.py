"""What ends a command from outside while it has something to put away: each such end is Ctrl-C to it.

Owns which signals those are. Must never make a command deaf to one, or hear what whoever started it has it ignore.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def any_end_is_ctrl_c() -> Iterator[None]:
    """Meanwhile SIGTERM and a terminal that closes leave nothing behind either: KeyboardInterrupt is raised. Where
    Ctrl-C is ignored, as of a script's `command &`, they end the command as they always do."""
    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    for number, handler in before.items():
        if handler is signal.SIG_DFL and before[signal.SIGINT] is not signal.SIG_IGN:
            signal.signal(number, _as_ctrl_c)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _as_ctrl_c(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as signal calls it
    """Not raised here: trio puts Ctrl-C off until it can be borne."""
    signal.raise_signal(signal.SIGINT)
