"""Every rule and every attack that the scheduler was proved against has a test that carries its name."""

import re
from functools import cache
from pathlib import Path

STORIES = Path(__file__).parents[1] / "stories"
NAME = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)

RULES = [
    "S1",
    "S2",
    "S3",
    "S4",
    "S5",
    "S5a",
    "S5b",
    "S6",
    "S6a",
    "S6b",
    "S6c",
    "S7",
    "S8",
    "S9",
    "S9b",
    "S10",
    "S11",
    "R1",
    "R2",
    "R3",
    "R4",
    "R4a",
    "R4b",
    "R5",
    "R6",
    "R6a",
    "R7",
    "R8",
    "R9",
    "R10",
    "L1",
    "L2",
    "L3",
    "L4",
    "L5",
    "L6",
    "L6a",
    "L6b",
    "L6c",
    "L6d",
    "L7",
]
"""As in the README of core: scheduling, residency, the ledger."""

ATTACKS = [f"{letter}{number}" for letter, last in (("A", 14), ("B", 13), ("C", 13)) for number in range(1, last + 1)]
"""Short sequences of events that broke a draft of the rules: deadlocks, starvation, contradictions."""


@cache
def words_of_stories() -> set[str]:
    """All words of the names of the stories."""
    texts = (path.read_text(encoding="utf-8") for path in STORIES.glob("test_*.py"))
    return {word for text in texts for name in NAME.findall(text) for word in name.split("_")}


def test_every_rule_has_a_story() -> None:
    """Events in, commands out: a rule without a story is a rule that nobody keeps."""
    assert [rule for rule in RULES if rule not in words_of_stories()] == []


def test_every_attack_has_a_story() -> None:
    """What broke a draft once must not break the rules again."""
    assert [attack for attack in ATTACKS if attack not in words_of_stories()] == []
