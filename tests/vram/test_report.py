"""The report of estimates against facts: its sums, its files, its picture."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.vram import report
from tests.vram.models import MIB
from tests.vram.report import Bound


def bound(over_mib: float, kind: str = "plain", **changes: object) -> Bound:
    facts = {"architecture": "llama", "flags": ("-np",), "theirs": 100 * MIB, "device_bytes": 1000 * MIB} | changes
    return Bound(kind=kind, ours=int((100 + over_mib) * MIB), **facts)  # type: ignore[arg-type] # facts by name


def test_what_lies_below_the_truth_is_counted_as_short() -> None:
    """One of three is; the spread goes from it to the highest."""
    table = report.bound_table("kind", [("plain", [bound(2), bound(-1), bound(50)])])
    assert table[1] == ("plain", "3", "1", "-1.0", "2.0", "2.0", "50.0", "0.20%", "5.0%")


def test_a_launch_stands_in_the_group_of_each_of_its_flags() -> None:
    """A switch with its value; sizes and placements without; a part of the layers by name."""
    words = ["-c", "8192", "-np", "2", "-ngl", "20", "-fa", "off", "-ctk", "q8_0", "-ctv", "q8_0", "-ts", "1,2"]
    assert report.marks(words) == ("-np", "-fa off", "-ctk q8_0", "-ts", "-ngl of some layers")


def test_the_picture_is_whole_and_shows_what_is_short_in_red() -> None:
    """Well-formed, one strip for each kind and architecture."""
    picture = report.svg([bound(2), bound(-1)], [bound(300)])
    ET.fromstring(picture)  # noqa: S314 - our own picture
    red = f'stroke="{report.COLOURS[True]}"'
    assert picture.count(red) == 2  # in its kind, and in its architecture
    assert red not in report.svg([bound(2)], [bound(300)])


@pytest.mark.slow
def test_the_report_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of the facts, in a folder that is made for it."""
    assert report.main([str(tmp_path / "new")]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith((tmp_path / "new" / "vram-report.md").read_text(encoding="utf-8"))
    assert "| gemma3n " in printed
    ET.parse(tmp_path / "new" / "vram-report.svg")  # noqa: S314 - our own picture
    (tmp_path / "file").touch()
    assert report.main([str(tmp_path / "file")]) == 2
    assert "the report cannot be written" in capsys.readouterr().err
