"""`gridsched restart`: drains a running server and has it end with 75, on which whoever runs it starts it again."""

import argparse

from gridsched.cli import local
from gridsched.cli.client import add_client_arguments
from gridsched.cli.streams import tell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_client_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Ask for it. 0 when the server has agreed, 1 when it refuses or is not there."""
    return local.ask(args, "restart", lambda told: tell(_sentence(told["in_flight"])))


def _sentence(in_flight: int) -> str:
    return (
        f"the server ends{local.until_done(in_flight)}, and asks to be started again: systemd and gridsched watchdog"
        " --run do it, a terminal does not"
    )
