"""`gridsched watchdog`: the recovery sidecar's options. Imports nothing that could be broken."""

import argparse
import os
from pathlib import Path

from gridsched.watchdog import program

DAY_SECONDS = 86400


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.usage = (
        "gridsched watchdog [-h] [--port N] [--data-dir DIR] [--config FILE] [--wedged-after SECONDS] [--run]"
        " [-- serve arguments]"
    )
    parser.epilog = "examples:\n  gridsched watchdog\n  gridsched watchdog --run -- --config rig.yaml"
    parser.add_argument(
        "--port",
        type=_port,
        metavar="N",
        help="its own port on 127.0.0.1 (the configuration's watchdog.port, else 1235)",
    )
    parser.add_argument("--data-dir", type=_path, metavar="DIR", help="the gateway's (GRIDSCHED_DATA_DIR)")
    parser.add_argument("--config", type=_path, metavar="FILE", help="the gateway's (GRIDSCHED_CONFIG)")
    parser.add_argument(
        "--run", action="store_true", help="start the gateway, and start it again when it crashes or stands"
    )
    parser.add_argument(
        "--wedged-after",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="without a heartbeat for so long the gateway is wedged (30)",
    )


def main(args: argparse.Namespace) -> int:
    """Watch until told to stop; what follows `--` is for `gridsched serve`."""
    return program.watch(
        args.data_dir,
        args.config,
        args.port,
        runs=args.run,
        wedged_seconds=args.wedged_after,
        serve_words=args.words,
        environ=os.environ,
    )


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("an empty path")
    return Path(text)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**16:
        raise argparse.ArgumentTypeError(f"{text!r} is no port (0 to 65535)")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1.0 <= seconds <= DAY_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds (1 to {DAY_SECONDS})")
    return seconds
