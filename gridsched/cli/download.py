"""`gridsched download REPO [FILE]`: the server fetches a model from the hub, with a bar; again, it goes on."""

import argparse
from collections.abc import Mapping
from typing import Any

from gridsched.cli.client import add_client_arguments
from gridsched.cli.streams import tell
from gridsched.cli.waiting import add_wait_arguments, until_done
from gridsched.cli.words import word
from gridsched.library.names import printable

SUFFIX = ".gguf"

EXAMPLES = """\
examples:
  gridsched download Qwen/Qwen3-8B-GGUF Q4_K_M
  gridsched download Qwen/Qwen3-8B-GGUF Qwen3-8B-Q4_K_M.gguf --no-wait

One that was broken off goes on where it was. Ctrl-C leaves it going on; gridsched cancel ends it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.epilog = EXAMPLES
    add_client_arguments(parser)
    parser.add_argument("repo", metavar="REPO", type=word, help="PUBLISHER/NAME on the hub; gridsched search finds it")
    text = "a file of the model, whose other parts come too; or a quantization, such as Q4_K_M"
    parser.add_argument("file", metavar="FILE", nargs="?", type=word, help=text)
    parser.add_argument("--revision", metavar="REV", type=word, help="a branch, tag or commit")
    add_wait_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Download it. 0 when it is there, 1 when it cannot be."""
    is_file = bool(args.file) and args.file.casefold().endswith(SUFFIX)
    given = {"repo": args.repo, "revision": args.revision, "file" if is_file else "quant": args.file}
    return until_done(args, "download_model", show, **given)


def show(told: Mapping[str, Any]) -> None:
    """Say that it is there, and how it is called."""
    name = told.get("model")
    tell(printable(f"{name} is here; gridsched load {name}" if name else str(told["text"])))
