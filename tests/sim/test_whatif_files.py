"""A what-if's file: every fault with its place and key, and exit code 2."""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE

import pytest

from gridsched.cli import main as cli
from gridsched.cli import scenario as files
from gridsched.cli import simulate
from gridsched.settings.faults import SettingsError
from sim.whatif import SHIPPED

README = Path(__file__).parents[2] / "sim/README.md"

GOOD = """\
seconds: 30s
seeds: 2
cards: {gpu0: 16GiB}
headroom: 2%
engine: {overlap: [1, 1.19], stream_weight: 10%, prompt_share: 15%}
models:
  big: {memory: 8GiB, slots: 2, load: 5s, weight: 0.58, stream_cost: 0.2}
  small: {memory: 2GiB, slots: 4, load: 2s, weight: 0.42, stream_cost: 0.35}
clients:
  people: {class: interactive, count: 2, model: big, think: 2s, solo: 1s}
  work: {class: background, count: 2, model: small, think: 450ms, solo: 500ms}
policies:
  default: {}
variants:
  other: {cards: {gpu0: 24GiB}, models: {big: {slots: 4}}, clients: {work: {count: 8}}}
"""

FAULTS = {
    "an unknown key": ("slots: 4, load: 2s", "slotz: 4, load: 2s", "s.yaml:8:25: models.small.slotz", "mean slots?"),
    "an unknown key at the top": ("headroom: 2%", "hedroom: 2%", "s.yaml:4:1: hedroom", "did you mean headroom?"),
    "an unknown key of a policy": ("default: {}", "default: {relief_slot: 2}", "s.yaml:13:13: ", "relief_slots"),
    "an unknown key of a variant": (
        "{slots: 4}}",
        "{slts: 4}}",
        "s.yaml:15:48: variants.other.models.big.slts",
        "slots",
    ),
    "a model bigger than every card": (
        "8GiB",
        "18GiB",
        "s.yaml:7:17: models.big.memory",
        "no card has more than 15.68",
    ),
    "zero slots": ("slots: 2", "slots: 0", "s.yaml:7:30: models.big.slots", "must be from 1 to 256, got 0"),
    "an unknown model": ("model: big", "model: bgi", "s.yaml:10:49: clients.people.model", "did you mean big?"),
    "an unknown class": (
        "interactive",
        "interactiv",
        "s.yaml:10:19: clients.people.class",
        "did you mean interactive?",
    ),
    "a duplicate key": ("seeds: 2", "seconds: 2s", "s.yaml:2:1: seconds", "already set on line 1"),
    "a negative time": ("think: 2s", "think: -2s", "s.yaml:10:61: clients.people.think", "expected a duration"),
    "a time without a unit": ("solo: 1s", "solo: 1", "s.yaml:10:71: clients.people.solo", "got 1"),
    "a missing key": ("seconds: 30s\n", "", "s.yaml:1:1: `seconds` is missing", ""),
    "a missing key of a model": ("memory: 2GiB, ", "", "s.yaml:8:3: models.small", "`memory` is missing"),
    "steps of a chat": ("solo: 1s}", "solo: 1s, steps: [1, 2]}", "clients.people.steps", "only embeddings"),
    "no clients": (GOOD[GOOD.index("clients:") : GOOD.index("policies")], "clients: {}\n", "s.yaml:9:", "at least one"),
    "a share of nothing": ("default: {}", "default: {background_share: 0}", "background_share", "must be above 0"),
    "slots that are all kept": ("default: {}", "default: {interactive_reserved_slots: 4}", "s.yaml:13:", "never run"),
    "a name that is taken": ("default: {}", "alone: {}", "s.yaml:13:10: policies.alone", "is taken"),
    "a variant of no model": ("{big: {slots: 4}}", "{bigg: {slots: 4}}", "variants.other.models.bigg", "mean big?"),
    "a variant's smaller card": ("24GiB", "8GiB", "s.yaml:", "big needs 8.00 GiB, and no card has more than 7.84"),
    "a card that is not there": ("load: 5s", "load: 5s, card: gpu1", "models.big.card", "there is no card gpu1"),
    "too much at the start": (
        "load: 5s",
        "load: 5s, loaded: true, weight: 1, stream_cost: 0}\n  huge: {memory: 12GiB, slots: 1, load: 1s, loaded: true",
        "s.yaml:3:8: cards",
        "the models that are loaded at the start need 20.00 GiB",
    ),
    "a list of nothing": ("[1, 1.19]", "[]", "engine.overlap", "got nothing"),
    "a figure in quotes": ("weight: 0.42", 'weight: "0.42"', "models.small.weight", "expected a number"),
    "a percentage over all": ("headroom: 2%", "headroom: 200%", "s.yaml:4:11: headroom", "must be below 100%"),
    "no YAML": ("policies:", "policies: [", "s.yaml:1", "this is not YAML"),
}


def test_a_good_file_is_read() -> None:
    """Cards less their headroom, policies with their own figures, variants with what they change."""
    scenario = files.parse(GOOD, "s.yaml")
    assert scenario.cards[0].headroom_bytes == 16 * 2**30 * 2 // 100
    assert scenario.seeds == (1, 2)
    other = scenario.variants["other"]
    assert (other.cards[0].total_bytes, other.models[0].slots, other.clients[1].count) == (24 * 2**30, 4, 8)
    assert (other.models[1], other.clients[0]) == (scenario.models[1], scenario.clients[0])


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_told_with_its_place_and_key(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, the file, line and column, the key, and what would do."""
    old, new, place, words = FAULTS[kind]
    assert GOOD.count(old) >= 1
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(GOOD.replace(old, new, 1), encoding="utf-8")
    assert cli.main(["simulate", "s.yaml"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert place in said.err
    assert words in said.err
    assert "Traceback" not in said.err


def test_all_faults_are_told_at_once() -> None:
    """Two in one file are two lines."""
    with pytest.raises(SettingsError) as caught:
        files.parse(GOOD.replace("slots: 2", "slots: 0").replace("think: 2s", "think: -2s"), "s.yaml")
    assert len(caught.value.problems) == 2


def test_a_file_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """With its name, and exit code 2."""
    assert cli.main(["simulate", "nowhere.yaml"]) == 2
    assert "nowhere.yaml: cannot be read" in capsys.readouterr().err


def test_a_configuration_is_one_more_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--config` runs the figures of the user's own file beside the scenario's; a faulty one is told as ever."""
    (tmp_path / "s.yaml").write_text(GOOD, encoding="utf-8")
    (tmp_path / "gridsched.yaml").write_text("scheduler: {relief_slots: 2}\n", encoding="utf-8")
    command = ["simulate", str(tmp_path / "s.yaml"), "--config", str(tmp_path / "gridsched.yaml"), "--seed", "1"]
    assert cli.main(command) == 0
    said = capsys.readouterr().out
    assert "policy config: relief_slots 2" in said
    assert "policy default: the defaults" in said
    (tmp_path / "gridsched.yaml").write_text("scheduler: {relief_slots: 0}\n", encoding="utf-8")
    assert cli.main(command) == 2


def test_the_readme_names_every_key() -> None:
    """Whoever writes a scenario finds what may stand in it, and no key that may not."""
    table = [line for line in README.read_text(encoding="utf-8").split("## What if")[1].splitlines() if line[:1] == "|"]
    rows = {
        row[1].strip(" `"): set(re.findall("`([a-z_]+)`", "".join(row[2:]))) for row in (x.split("|") for x in table)
    }
    sections = {"the file": (), "engine": ("engine",), "a model": ("models", "*"), "clients": ("clients", "*")}
    values = {"clients": {"chat", "embeddings"}}
    for name, way in sections.items():
        keys = {str(field.alias) for field in files._SECTIONS[way].model_fields.values()}
        assert rows[name] - values.get(name, set()) == keys, name
    changes = (files.ModelChange, files.ClientsChange)
    assert rows["a variant"] == {"cards"} | {str(x.alias) for change in changes for x in change.model_fields.values()}


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_scenario_can_be_used(path: Path) -> None:
    """It is read without a fault, and says what its figures mean."""
    scenario = files.load(path)
    assert scenario.policies
    assert path.read_text(encoding="utf-8").startswith("# ")


def test_a_picture_that_cannot_be_written_is_told_before_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1, the path, and not a line of figures; a picture that can be is not there before it is drawn."""
    path = tmp_path / "s.yaml"
    path.write_text(GOOD.replace("seeds: 2", "seeds: 1000").replace("seconds: 30s", "seconds: 24h"), encoding="utf-8")
    for wrong in (tmp_path, tmp_path / "nowhere" / "f.svg"):
        assert cli.main(["simulate", str(path), "--plot", str(wrong)]) == 1
        said = capsys.readouterr()
        assert said.err.startswith(f"gridsched: cannot write {wrong}: ")
        assert said.out == ""
    assert simulate.unwritable(tmp_path / "f.svg") == ""
    assert "File name too long" in simulate.unwritable(tmp_path / ("f" * 300))
    assert cli.main(["simulate", "f" * 300]) == 2
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="one processor makes its runs in one process")
def test_an_interrupt_ends_all_runs_at_once_and_without_a_word(tmp_path: Path) -> None:
    """Ctrl-C at a terminal reaches every process: 130, in a moment, whatever they are at, and no traceback."""
    path = tmp_path / "s.yaml"
    path.write_text(GOOD.replace("seeds: 2", "seeds: 1000").replace("seconds: 30s", "seconds: 24h"), encoding="utf-8")
    command = (sys.executable, "-m", "gridsched.cli.main", "simulate", str(path))
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, start_new_session=True) as run:
        try:
            while not any(map(_works, _children(run.pid))):
                with suppress(subprocess.TimeoutExpired):  # asked ten times a second: they need the processors
                    pytest.fail(f"it has ended: {run.wait(0.1)}")
            os.killpg(run.pid, signal.SIGINT)
            _, told = run.communicate(timeout=30)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
    assert (run.returncode, told) == (130, b"")


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()


def _works(pid: str) -> bool:
    """It has computed for longer than it takes to begin: it is at a run, which takes hours."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return False
    return int(stat.rpartition(")")[2].split()[11]) > 2 * os.sysconf("SC_CLK_TCK")
