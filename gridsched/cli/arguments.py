"""The options that say where everything is, as `serve`, `check`, `plan` and their like share them.

Owns the words. What is found with them is in `options`, which brings the server along.
"""

import argparse
from pathlib import Path


def add_machine_arguments(parser: argparse.ArgumentParser, *, of_scenarios: bool = False) -> None:
    """Declare the options. `of_scenarios`: --sim may name one; a word behind it is no other argument then."""
    parser.add_argument("--config", type=a_path, metavar="FILE", help="the configuration (GRIDSCHED_CONFIG)")
    parser.add_argument("--models-dir", type=a_path, metavar="DIR", help="look for GGUF files here and nowhere else")
    parser.add_argument("--data-dir", type=a_path, metavar="DIR", help="for measurements and logs (GRIDSCHED_DATA_DIR)")
    text = "simulated hardware and models: no engine, no files"
    if of_scenarios:
        text += "; those of a scenario of `gridsched simulate`, where one is named"
        parser.add_argument("--sim", nargs="?", const=True, default=False, metavar="SCENARIO", help=text)
    else:
        parser.add_argument("--sim", action="store_true", help=text)


def add_address_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where a server listens, whatever its configuration says."""
    parser.add_argument("--host", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, metavar="N", help="port to listen on (1234); 0 takes a free one")
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="without any API key, serve callers of other machines all the same (see --host)",
    )


def a_path(text: str) -> Path:
    """What was named on the command line. An empty word is a variable that was not set, not the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("an empty path")
    return Path(text)
