"""`gridsched drain`: a running server takes nobody new and finishes those it has; then it waits to be ended."""

import argparse

from gridsched.cli import local
from gridsched.cli.client import add_client_arguments
from gridsched.cli.streams import tell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_client_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Ask for it. 0 when the server has agreed, 1 when it refuses or is not there."""
    return local.ask(args, "drain", lambda told: tell(_sentence(told["in_flight"])))


def _sentence(in_flight: int) -> str:
    rest = (
        f", and finishes {'the one that runs' if in_flight == 1 else f'the {in_flight} that run'}" if in_flight else ""
    )
    return f"the server takes no new request{rest}; it serves again after: gridsched restart"
