"""`gridsched completion SHELL`: what a shell needs to complete these commands, by shtab.

Owns nothing but that script's beginning. Models are completed by asking the server, so they are those of the moment.
"""

import argparse

from gridsched.cli.main import build_parser

SHELLS = ("bash", "zsh", "fish", "tcsh")

_NAMES = "gridsched models --names 2>/dev/null | grep -E '^[A-Za-z0-9._/@:+-]+$'"
"""Others are not completed: a shell would expand what it finds in them."""

PREAMBLE = {
    "bash": f'_gridsched_models() {{ compgen -W "$({_NAMES})" -- "$1"; }}',
    "zsh": f'_gridsched_models() {{ local -a names; names=("${{(@f)$({_NAMES})}}"); compadd -a names; }}',
}

EXAMPLES = """\
examples:
  source <(gridsched completion bash)                              in ~/.bashrc
  gridsched completion zsh > "${fpath[1]}/_gridsched"
  gridsched completion fish > ~/.config/fish/completions/gridsched.fish
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.epilog = EXAMPLES
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def main(args: argparse.Namespace) -> int:
    """Print the script."""
    import shtab  # noqa: PLC0415 - no other command needs it

    print(shtab.complete(build_parser(None, whole=True), shell=args.shell, preamble=PREAMBLE.get(args.shell, "")))
    return 0
