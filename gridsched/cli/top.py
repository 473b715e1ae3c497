"""`gridsched top`: a running server at a glance, live: devices, queues, who waits and why, slots, the last decisions.

On a terminal it draws until it is ended, also over a restart of the server; where
nobody looks, or with `--once`, it is one view in plain lines.
"""

import argparse
import json
import select
import sys
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.text import Text

from gridsched.cli.board import CLASSES, STRIP_SECONDS, Board
from gridsched.cli.client import settle
from gridsched.cli.failures import FAILED, FAILURES, explain
from gridsched.cli.screen import Screen, has_screen
from gridsched.cli.show import console, is_terminal
from gridsched.cli.streams import tell
from gridsched.cli.top_view import view
from gridsched.cli.watching import Failed, Gone, Status, Watch
from gridsched.cli.where import add_server_arguments

DRAW_SECONDS = 0.5
"""Ages are shown, so that a picture is never older; none is drawn sooner, however much there is to tell."""

SETTLED_SECONDS = 0.3
"""With one view alone: so long nothing more comes of what the log kept."""

LONGEST_SECONDS = 3.0
"""The same of a server that always has news."""

CELLS = 60
"""Of the time that `--json` tells which class ran in."""

MOST_DECISIONS = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_server_arguments(parser)
    parser.add_argument("--once", action="store_true", help="one view, in plain lines where nobody looks")
    parser.add_argument(
        "--json", action="store_true", help="one JSON document a line: of each change, or one with --once"
    )


def main(args: argparse.Namespace) -> int:
    """Show it. 0 when it is ended by `q`, 130 by Ctrl-C, 1 when no server answers, or another program."""
    try:
        settle(args)
        watch, board = Watch(args), Board(args.server)
        if args.json:
            return _documents(args, watch, board)
        if args.once or not has_screen():
            return _once(args, watch, board)
        return _live(args, watch, board)
    except FAILURES as error:
        return explain(args, error)


# --- one view ---------------------------------------------------------------------------------------------------


def _once(args: argparse.Namespace, watch: Watch, board: Board) -> int:
    """As wide as the terminal, or as a page; as long as it is."""
    if (failed := _first(watch, board)) is not None:
        return explain(args, failed.why)
    screen = console(sys.stdout)
    for line in view(board, screen.width, letters=_has_no_blocks()):
        line.rstrip()
        screen.print(_cut(line, screen.width) if is_terminal(sys.stdout) else line, soft_wrap=True)
    return 0


def _first(watch: Watch, board: Board) -> Failed | None:
    """Wait for a status and for the kept lines; what is in the way."""
    until: float | None = None
    while until is None or time.monotonic() < until:
        if not select.select([watch.readable], [], [], None if until is None else SETTLED_SECONDS)[0]:
            break
        for news in watch.take():
            if isinstance(news, Failed):
                return news
            board.hear(news)
        if until is None and board.status is not None:
            until = time.monotonic() + LONGEST_SECONDS
    return None


def _documents(args: argparse.Namespace, watch: Watch, board: Board) -> int:
    if args.once:
        if (failed := _first(watch, board)) is not None:
            return explain(args, failed.why)
        tell(json.dumps(document(board)))
        return 0
    while select.select([watch.readable], [], [])[0]:
        for news in watch.take():
            if isinstance(news, Failed):
                return explain(args, news.why)
            was_gone = board.gone_since is not None
            board.hear(news)
            if isinstance(news, Status) or (isinstance(news, Gone) and not was_gone):
                print(json.dumps(document(board)), flush=True)
    return FAILED


def document(board: Board) -> Mapping[str, Any]:
    """What a view shows, for a program; `ran` is how many steps of a class ran at once in each part of the last
    `ran_seconds`, `status` what `GET /api/status` answers."""
    return {
        "server": board.server,
        "version": board.version,
        "connected": board.gone_since is None,
        "status": board.status,
        "ran_seconds": STRIP_SECONDS,
        "ran": {name: board.ran(name, CELLS) for name in CLASSES},
        "decisions": list(board.lines)[-MOST_DECISIONS:],
    }


# --- a screen ---------------------------------------------------------------------------------------------------


def _live(args: argparse.Namespace, watch: Watch, board: Board) -> int:
    look = console(sys.stdout)
    failed: Failed | None = None
    with Screen(look) as screen:
        while failed is None:
            for news in watch.take():
                if isinstance(news, Failed):
                    failed = news
                board.hear(news)
            screen.draw(_picture(board, look))
            if failed is None and screen.is_ended(DRAW_SECONDS):
                return 0
    return explain(args, failed.why)


def _picture(board: Board, screen: Console) -> Group:
    width, height = screen.size
    return Group(*(_cut(line, width) for line in view(board, width, height, letters=_has_no_blocks())))


def _cut(line: Text, width: int) -> Text:
    line.truncate(width, overflow="crop" if _has_no_blocks() else "ellipsis")
    return line


def _has_no_blocks() -> bool:
    """Whether the terminal's letters lack the blocks of the strip."""
    try:
        "▂…".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return True
    return False
