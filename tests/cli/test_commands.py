"""The commands that ask a server: what they have in common, and what they do to a whole one."""

import argparse
import ast
import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gridsched.cli import paths
from gridsched.cli.main import COMMANDS, build_parser, main
from tests.support.answering import answering
from tests.support.gateway import clean_environment, command

WORDS: dict[str, list[str]] = {
    "ps": [],
    "top": [],
    "models": [],
    "load": ["m"],
    "unload": ["m"],
    "pin": ["m"],
    "unpin": ["m"],
    "plan": ["m"],
    "jobs": [],
    "explain": ["1"],
    "cancel": ["1"],
    "lease": [],
    "release": ["gpu0"],
    "logs": ["m"],
    "config get": [],
    "config set": ["server.port=1"],
    "config reload": [],
    "search": ["qwen"],
    "download": ["a/b"],
    "downloads": [],
    "benchmark": ["m"],
    "events": [],
    "loadtest": ["--seconds", "1"],
    "restart": ["--api-key", "k"],
    "drain": ["--api-key", "k"],
}
"""Every command that asks a server, with what it needs to ask."""

THIN = tuple(name for name in WORDS if name not in ("plan", "events", "restart", "drain", "loadtest"))
"""Those that show one answer."""


def parsers(parser: argparse.ArgumentParser, name: str = "") -> dict[str, argparse.ArgumentParser]:
    """Every command's own, and those of its verbs."""
    told = {name.strip(): parser}
    for each in parser._actions:
        if isinstance(each, argparse._SubParsersAction):
            for word, below in each.choices.items():
                told |= parsers(below, f"{name} {word}")
    return told


def test_every_command_that_asks_a_server_is_tried_here() -> None:
    """By the option that names one; each has `--json`, and a sentence on its line of the list."""
    every = parsers(build_parser(None, whole=True))
    asks = {name for name, parser in every.items() if "--server" in parser._option_string_actions}
    asks.remove("mcp")  # serves programs itself, also while nobody answers
    assert asks == set(WORDS)
    for name in asks:
        assert {"--json", "--api-key", "--data-dir"} <= every[name]._option_string_actions.keys(), name


@pytest.mark.parametrize("name", WORDS)
def test_where_no_server_answers_it_is_said_in_a_sentence(
    name: str, capsys: pytest.CaptureFixture[str], refused_port: int
) -> None:
    """Exit code 1, the address, what to do, and nothing on standard output, as JSON or not."""
    for form in ([], ["--json"]):
        code = main([*name.split(), *WORDS[name], "--server", f"http://127.0.0.1:{refused_port}", *form])
        said = capsys.readouterr()
        assert (code, said.out) == (1, "")
        assert said.err.startswith(f"gridsched: no server answers at http://127.0.0.1:{refused_port} (")
        assert "start one (gridsched serve) or name it (--server)" in said.err


@pytest.mark.parametrize("name", THIN)
def test_what_is_no_gridsched_is_told_from_one(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Other JSON, and an error that is none of ours."""
    with answering({"hello": "world"}) as url:
        assert main([*name.split(), *WORDS[name], "--server", url]) == 1
        assert f"gridsched: what answers at {url} is no gridsched" in capsys.readouterr().err
    with answering("no", 500) as url:
        assert main([*name.split(), *WORDS[name], "--server", url]) == 1
        assert f"the server at {url} answers 500 here; is it a gridsched?" in capsys.readouterr().err


REFUSED: tuple[tuple[int, dict[str, object], tuple[str, ...]], ...] = (
    (401, {"code": "invalid_api_key", "message": "this server wants an API key"}, ("--api-key", "gridsched servers")),
    (403, {"code": "insufficient_scope", "message": "it needs admin, and has read"}, ("needs admin",)),
    (403, {"code": "remote_admin_requires_credential", "message": "the admin token"}, ("admin.token", "--data-dir")),
    (404, {"code": "model_not_found", "message": "no model 'x'. Did you mean m?"}, ("Did you mean m?",)),
    (409, {"code": "conflict", "message": "3 jobs wait for m"}, ("3 jobs wait for m",)),
    (503, {"code": "starting", "message": "later", "gridsched": {"do": "Ask again."}}, ("try      Ask again.",)),
)


@pytest.mark.parametrize(("status", "error", "words"), REFUSED)
def test_a_refusal_is_in_the_servers_words_and_says_what_to_do(
    status: int, error: dict[str, object], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 1; as JSON the error as it came, on standard output."""
    with answering({"error": error}, status) as url:
        assert main(["load", "x", "--server", url, "--json"]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out) == {"error": error}
    for word in (str(error["message"]), *words):
        assert word in said.err


def test_L7_a_507_is_shown_with_its_arithmetic(capsys: pytest.CaptureFixture[str]) -> None:
    """Who needs, has and holds what; what would fit; what to try."""
    gib = 1 << 30
    detail = {
        "per_device": [{"device": "gpu0", "required_bytes": 20 * gib, "available_bytes": 9 * gib, "pinned_bytes": gib}],
        "holders": [{"model": "a\x1b", "device": "gpu0", "bytes": 6 * gib, "state": "ready"}],
        "max_ctx_that_fits": 8192,
        "max_parallel_that_fits": 0,
        "suggestions": ["Lower ctx_size"],
    }
    error = {"code": "insufficient_vram", "message": "m does not fit", "gridsched": detail}
    with answering({"error": error}, 507) as url:
        assert main(["load", "m", "--server", url]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "gridsched: m does not fit",
        "  gpu0: needs 20 GiB, 9 GiB can be had (pinned 1 GiB)",
        r"held     a\x1b: 6 GiB of gpu0, ready",
        "at most  8192 tokens in all",
        "try      Lower ctx_size",
    ]


def test_force_is_asked_for_at_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A no, or nothing, does nothing; `--yes` is a yes. What it comes to is said before the question."""
    seen: list[tuple[str, str, str]] = []
    for typed, code, asked in (("\n", 1, 0), ("no\n", 1, 0), ("y\n", 0, 1)):
        monkeypatch.setattr("sys.stdin", typing(typed))
        seen.clear()
        with answering({"model": "m", "was": "cold", "text": "2 requests end"}, seen=seen) as url:
            assert main(["unload", "m", "--force", "--server", url]) == code
        assert [path.partition("?")[2] for _, path, _ in seen] == ["dry_run=true"] + asked * [""]
        assert "gridsched: 2 requests end\nBreak off what m is answering? [y/N]" in capsys.readouterr().err
    with answering({"model": "m", "was": "cold"}, seen=seen) as url:
        assert main(["unload", "m", "--force", "--yes", "--server", url]) == 0
    assert capsys.readouterr() == ("m was not loaded\n", "")


def typing(text: str) -> object:
    """A terminal at which somebody types."""

    class Keys:
        isatty: Callable[[], bool] = staticmethod(lambda: True)
        readline: Callable[[], str] = staticmethod(lambda: text)

    return Keys()


@pytest.mark.parametrize(
    "words",
    [
        ["load", ""],
        ["load", "m", "--ctx", "0"],
        ["load", "m", "--ctx", "many"],
        ["load", "m", "--ttl", "0s"],
        ["load", "m", "--ttl", "2"],
        ["logs", "m", "--lines", "0"],
        ["search", "m", "--limit", "-1"],
        ["ps", "--server", "nobody"],
        ["completion", "cmd"],
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_asked(words: list[str]) -> None:
    """Exit code 2."""
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2


CALLERS = {"ask", "do", "until_done", "whole", "_put_away"}


def test_a_verb_is_asked_where_the_table_has_it() -> None:
    """`verbs.json` is as `python -m gridsched.cli.paths` writes it for the verbs that it has, and has all that a
    command uses."""
    table = paths.from_table()
    assert {name: row for name, row in paths.known().items() if table.get(name) != row} == {}
    used = {
        node.args[1].value
        for path in Path(paths.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in CALLERS
        if len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
    }
    assert {"load_model", "drain", "list_leases"} <= used <= paths.known().keys()


@pytest.mark.slow
def test_bash_completes_commands_options_and_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    """The script is loaded in a real one."""
    assert main(["completion", "bash"]) == 0
    tries = """
try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _shtab_gridsched; echo "${COMPREPLY[*]}"; }
try gridsched unl; try gridsched load --dr; try gridsched servers re; try gridsched load sim-chat
"""
    stand_in = 'gridsched() { printf "sim-chat-4b\\n\\$(echo bad)\\n"; }\n'
    script = capsys.readouterr().out + stand_in + tries
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=False)  # noqa: S607 - from PATH
    assert done.stdout.splitlines() == ["unload", "--dry-run", "remove", "sim-chat-4b"], done.stderr


@pytest.mark.slow
def test_a_client_command_does_not_pay_for_the_server() -> None:
    """What is slow to import is not: the server's framework, its settings, its devices."""
    heavy = {"quart", "hypercorn", "pydantic", "ruamel.yaml", "mcp", "gguf", "gridsched.app", "gridsched.control"}
    text = "import sys; from gridsched.cli.main import main; main(sys.argv[1:]); print(*sys.modules)"
    words = ["ps", "--server", "http://127.0.0.1:9"]
    done = subprocess.run(
        [command()[0], "-c", text, *words], capture_output=True, text=True, check=False, env=clean_environment()
    )
    assert heavy & set(done.stdout.split()) == set()


def test_every_help_has_examples_that_can_be_typed() -> None:
    """Each line of them is taken by the parser that shows it."""
    whole = build_parser(None, whole=True)
    every = parsers(whole)
    for name in COMMANDS:
        epilog = every[name].epilog or ""
        lines = re.findall(r"^(?:  |examples: )(?:source <\()?gridsched (.*)$", epilog, re.MULTILINE)
        assert lines, f"{name} has no examples"
        for line in lines:
            words = shlex.split(re.split(r"  |[<>)]|(?:^| )-- ", line)[0])
            assert whole.parse_args(words).command == words[0], line


@pytest.mark.parametrize("name", [".", "..", "..."])
def test_a_name_of_dots_leads_nowhere_else(name: str) -> None:
    """An address is tidied on its way: `/api/jobs/..` would be another one."""
    seen: list[tuple[str, str, str]] = []
    with answering({"text": "gone"}, seen=seen) as url:
        main(["cancel", name, "--server", url])
        main(["load", name, "--dry-run", "--server", url])
    dots = "%2E" * len(name)
    assert [path for _, path, _ in seen] == [f"/api/jobs/{dots}", f"/api/models/{dots}/plan"]


def test_H6_a_key_that_cannot_be_sent_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Two lines, as of a file that was read whole: said without the words of it."""
    with answering({}) as url:
        assert main(["ps", "--server", url, "--api-key", "secret\nkey"]) == 1
    said = capsys.readouterr().err
    assert "the key has letters that cannot be sent" in said
    assert "secret" not in said
