"""What the client commands share: where the server is, and how to say that it is not there."""

import argparse
import os
import sys

import httpx

DEFAULT_URL = "http://127.0.0.1:1234"


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `--server` and `--api-key`."""
    url = os.environ.get("GRIDSCHED_URL", DEFAULT_URL)
    parser.add_argument("--server", metavar="URL", default=url, help=f"the server (GRIDSCHED_URL; {url})")
    parser.add_argument("--api-key", default=os.environ.get("GRIDSCHED_API_KEY"), help="GRIDSCHED_API_KEY")


def connect(args: argparse.Namespace) -> httpx.Client:
    """A client for the server that the arguments name. Never through a proxy of the environment."""
    headers = {"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}
    return httpx.Client(base_url=args.server, headers=headers, trust_env=False, timeout=httpx.Timeout(10.0, read=None))


def unreachable(args: argparse.Namespace, error: Exception) -> int:
    """Say that nobody answers, and what to do; the exit code."""
    print(f"gridsched: no server answers at {args.server} ({error}); start one with: gridsched serve", file=sys.stderr)
    return 1
