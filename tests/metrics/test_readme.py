"""The README's table is the catalog."""

from pathlib import Path

import gridsched.metrics
from gridsched.metrics.catalog import FAMILIES


def test_the_readme_lists_every_family_as_it_is() -> None:
    """Name, kind, labels and help, in the catalog's order, and nothing else."""
    readme = Path(gridsched.metrics.__file__).with_name("README.md").read_text(encoding="utf-8")
    rows = [line for line in readme.splitlines() if line.startswith("| `gridsched_")]
    expected = []
    for family in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in family.labels) or "-"
        expected.append(f"| `{family.name}` | {family.kind.value} | {labels} | {family.help} |")
    assert rows == expected
