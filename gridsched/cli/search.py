"""`gridsched search WORDS`: models on the hub, by the server that would fetch them; of one repository what it has."""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from gridsched.cli.client import add_client_arguments, ask, run
from gridsched.cli.show import table
from gridsched.cli.streams import tell
from gridsched.cli.words import count, size, word

REPOS = ("repository", "architecture", "trained", "downloads", "updated")
FILES = ("model", "quant", "size", "file")

EXAMPLES = """\
examples:
  gridsched search qwen3 8b gguf                    repositories, the most downloaded first
  gridsched search Qwen/Qwen3-8B-GGUF               the models in one
  gridsched download Qwen/Qwen3-8B-GGUF Q4_K_M
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.epilog = EXAMPLES
    add_client_arguments(parser)
    parser.add_argument("terms", metavar="WORD", nargs="+", type=word, help="of its name; PUBLISHER/NAME for one")
    parser.add_argument("--limit", type=count, metavar="N", help="repositories at the most (20)")


def main(args: argparse.Namespace) -> int:
    """Search. 0, or 1 when the server or the hub does not answer."""
    words = args.terms
    if len(words) == 1 and words[0].count("/") == 1:
        return run(args, lambda client: ask(client, "repo_details", repo=words[0]), show_one)

    def asked(client: httpx.Client) -> Mapping[str, Any]:
        return ask(client, "search_models", q=" ".join(words), limit=args.limit)

    return run(args, asked, show)


def show(told: Mapping[str, Any]) -> None:
    """Print the repositories."""
    rows = [
        (
            str(one["id"]) + (" (gated)" if one["gated"] else ""),
            str(one["architecture"] or "-"),
            str(one["ctx_train"] or "-"),
            str(one["downloads"]),
            str(one["updated"])[:10],
        )
        for one in told["repos"]
    ]
    if rows:
        table(REPOS, rows, right=("trained", "downloads"))
    else:
        tell("nothing is called so")


def show_one(told: Mapping[str, Any]) -> None:
    """Print the models of a repository."""
    table(FILES, list(_models(told)), right=("size",))


def _models(told: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for one in told["models"]:
        files = one["files"]
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        missing = f", lacks {', '.join(one['missing'])}" if one["missing"] else ""
        first = str(files[0]["path"]) if files else "-"
        yield str(one["name"]), str(one["quantization"] or "-"), size(one["size_bytes"]), f"{first}{more}{missing}"
