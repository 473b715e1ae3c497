"""Files that lie, read by a process of its own: each is refused with a sentence, in no time and with no memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.gguf_header import build_header, strings, text
from tests.support.hostile_gguf import BYTES, HOLED, ODD, write_all

ROOT = Path(__file__).parents[2]
Cost = tuple[str, float, int]
LIMIT_MS, LIMIT_KIB = 50, 10 << 10
"""Of thread time, which others on the machine hardly change: the files take a hundredth of it."""


def measured(*paths: Path) -> dict[str, Cost]:
    """What reading each of them costs, by file name."""
    words = [sys.executable, "-m", "tests.support.read_costs", *map(str, paths)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    costs = json.loads(done.stdout)
    assert isinstance(costs, dict)
    return {name: (cost[0], cost[1], cost[2]) for name, cost in costs.items()}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, Cost]]:
    """By a hostile file's name: what its error says, and what reading it cost."""
    folder = tmp_path_factory.mktemp("hostile")
    said = write_all(folder)
    costs = measured(*(folder / f"{name}.gguf" for name in said))
    return {name: (words, costs[f"{name}.gguf"]) for name, words in said.items()}


def check(refused: tuple[str, Cost]) -> None:
    """Assert that the sentence is the right one, and that it cost nothing."""
    words, (said, milliseconds, kib) = refused
    assert words in said
    assert milliseconds < LIMIT_MS
    assert kib < LIMIT_KIB


def named(kind: str) -> list[str]:
    """The files of one kind of fault."""
    return [name for name, row in (*BYTES.items(), *HOLED.items()) if row[0] == kind]


@pytest.mark.slow
@pytest.mark.parametrize("name", named("F1"))
def test_F1_other_formats_and_versions_cost_nothing(refusals: dict[str, tuple[str, Cost]], name: str) -> None:
    """Told apart by their first bytes."""
    check(refusals[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", named("F4"))
def test_F4_a_hostile_tensor_table_costs_nothing(refusals: dict[str, tuple[str, Cost]], name: str) -> None:
    """Dimensions, products, offsets, names, alignment: none is believed."""
    check(refusals[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", named("F5"))
def test_F5_huge_counts_cost_nothing(refusals: dict[str, tuple[str, Cost]], name: str) -> None:
    """Neither where the file is too short for them, nor where it is long enough and full of holes."""
    check(refusals[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", named("F15"))
def test_F15_cut_files_and_claimed_lists_cost_nothing(refusals: dict[str, tuple[str, Cost]], name: str) -> None:
    """None is waited for."""
    check(refusals[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ODD)
def test_F11_what_is_no_file_costs_nothing(refusals: dict[str, tuple[str, Cost]], name: str) -> None:
    """A pipe that nobody writes to is not even opened."""
    check(refusals[name])


@pytest.mark.slow
def test_F15_a_large_vocabulary_is_read_in_little_time_and_memory(tmp_path: Path) -> None:
    """262,144 tokens, merges, scores and types: the mark is 100 ms and 20 MiB; a loaded machine may take longer."""
    count = 262_144
    lists = [
        text(f"tokenizer.ggml.{name}") + bytes((9, 0, 0, 0, kind, 0, 0, 0)) + count.to_bytes(8, "little") + body
        for name, kind, body in (
            ("tokens", 8, strings(f"▁word{number}" for number in range(count))),
            ("merges", 8, strings(f"▁wo rd{number}" for number in range(count))),
            ("scores", 6, bytes(4 * count)),
            ("token_type", 5, bytes(4 * count)),
        )
    ]
    path = tmp_path / "large.gguf"
    path.write_bytes(build_header(lists))
    said, milliseconds, kib = measured(path)["large.gguf"]
    assert said == ""
    assert milliseconds < 200
    assert kib < 4 << 10
