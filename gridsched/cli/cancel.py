"""`gridsched cancel ID`: a job, or what else goes on, is ended; its client is told."""

import argparse

from gridsched.cli.client import add_client_arguments, ask, run
from gridsched.cli.streams import tell
from gridsched.cli.words import word
from gridsched.library.names import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_client_arguments(parser)
    parser.add_argument("id", metavar="ID", type=word, help="a job's number, or op-N; gridsched jobs has them")


def main(args: argparse.Namespace) -> int:
    """Cancel it. 0, or 1 when it is over, or nobody knows it."""
    return run(
        args,
        lambda client: ask(client, "cancel_job", job=args.id),
        lambda told: tell(printable(str(told["text"]))),
    )
