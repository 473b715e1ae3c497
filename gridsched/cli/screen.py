"""A terminal's whole screen, for a command that draws on it until it is ended: taken, put aside, given back.

Owns the terminal's modes and the keys. Whatever ends the command, and Ctrl-Z too, leaves the terminal as it was. Must
never decide what is drawn.
"""

import os
import select
import signal
import sys
import termios
import tty
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live

from gridsched.cli.ending import any_end_is_ctrl_c

QUIT = frozenset(b"qQ")
NOT_FOR_SCREENS = ("", "dumb", "unknown")
"""Kinds of terminal that only take lines."""


def has_screen() -> bool:
    """Whether somebody looks, at a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in NOT_FOR_SCREENS


class Screen:
    """Taken for the length of a block, in which SIGTERM, a closed terminal and SIGQUIT are Ctrl-C."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._ends = any_end_is_ctrl_c()
        self._keyboard = [sys.stdin.fileno()] if sys.stdin.isatty() else []
        self._before = [termios.tcgetattr(each) for each in self._keyboard]
        self._live: Live | None = None
        self._woken, self._bell = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._bell, False)

    def __enter__(self) -> Self:
        self._ends.__enter__()
        signal.set_wakeup_fd(self._bell, warn_on_full_buffer=False)
        for number in (signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, _heard)
        signal.signal(signal.SIGQUIT, signal.default_int_handler)
        self._take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        self._ends.__exit__(kind, error, trace)
        os.close(self._woken)
        os.close(self._bell)

    def draw(self, picture: RenderableType) -> None:
        """In place of what is there."""
        if self._live is not None:
            self._live.update(picture, refresh=True)

    def is_ended(self, seconds: float) -> bool:
        """Wait so long, or until the terminal has another size or is back; whether `q` was typed."""
        ready, _, _ = select.select([self._woken, *self._keyboard], [], [], seconds)
        if self._woken in ready:
            self._obey(os.read(self._woken, 1024))
        return any(each in ready and _is_end(each) for each in self._keyboard)

    def _obey(self, signals: bytes) -> None:
        if signal.SIGTSTP in signals:
            self._give_back()
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)  # here it stands until it is wanted again
            signal.signal(signal.SIGTSTP, _heard)
            self._take()
        elif signal.SIGCONT in signals:  # after a stop that cannot be heard, the terminal is as a shell has left it
            self._give_back()
            self._take()

    def _take(self) -> None:
        for each in self._keyboard:
            tty.setcbreak(each)
        self._live = Live(
            console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._live.start()

    def _give_back(self) -> None:
        try:
            if self._live is not None:
                self._live.stop()
        finally:
            self._live = None
            for each, before in zip(self._keyboard, self._before, strict=True):
                with suppress(termios.error):
                    termios.tcsetattr(each, termios.TCSADRAIN, before)


def _heard(number: int, frame: FrameType | None) -> None:
    """The pipe has its number."""


def _is_end(keyboard: int) -> bool:
    """Whether what was typed ends it; a terminal that is gone does."""
    with suppress(OSError):
        typed = os.read(keyboard, 1024)
        return not typed or not QUIT.isdisjoint(typed)
    return True
