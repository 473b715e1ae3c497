"""`gridsched serve --sim SCENARIO`: the word behind the option, and the machine that it names."""

import argparse
from pathlib import Path

import pytest

from gridsched.app import StartError
from gridsched.cli import plan, serve
from gridsched.cli.options import simulated_machine
from gridsched.settings.schema import Settings


def sim_of(words: list[str]) -> object:
    """What `serve` makes of the command line."""
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    return parser.parse_args(words).sim


def test_sim_may_name_a_scenario_and_need_not() -> None:
    """Bare it is a switch, as ever; where a word may follow that is another argument, it stays one."""
    assert (sim_of([]), sim_of(["--sim"]), sim_of(["--sim", "--port", "1"])) == (False, True, True)
    assert sim_of(["--sim", "4060ti-mixed"]) == "4060ti-mixed"
    parser = argparse.ArgumentParser()
    plan.add_arguments(parser)
    assert parser.parse_args(["--sim", "sim-embed"]).model == "sim-embed"


def test_a_scenario_is_served_by_its_name_or_file_and_bare_sim_is_as_ever() -> None:
    """The models are the scenario's."""
    named = simulated_machine(Settings(), "4060ti-mixed").parts.catalog
    assert [str(model.name) for model in named.models()] == ["gemma4-12b", "gemma4-e4b", "gemma4-e2b", "embedder"]
    bare = simulated_machine(Settings()).parts.catalog
    assert "sim-chat-12b" in [str(model.name) for model in bare.models()]


def test_what_is_no_scenario_is_a_sentence_before_the_start(tmp_path: Path) -> None:
    """A name that nobody knows, and a file with a fault, whose line is named."""
    with pytest.raises(StartError, match=r"nobody.*cannot be read") as caught:
        simulated_machine(Settings(), "nobody")
    assert caught.value.code == 2
    file = tmp_path / "mine.yaml"
    file.write_text("seconds: soon\n")
    with pytest.raises(StartError, match=r"mine\.yaml:1"):
        simulated_machine(Settings(), str(file))
