import json
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.compare import Comparison, ratio
from loadtest.report import EMBEDDINGS_ROW, Row
from loadtest.result import Result, ResultFault
from tests.loadtest.results import a_whole_result


def compared(a: Result, b: Result) -> Comparison:
    """Two that were read from files of these names."""
    return Comparison(a=a, b=b, a_path="before.json", b_path="after.json")


def test_figures_stand_below_one_another_with_their_ratio() -> None:
    """Three lines for each class."""
    a = a_whole_result()
    slower = replace(a.classes["interactive"], p50_s=1.5, requests=30)
    told = compared(a, replace(a, classes={**a.classes, "interactive": slower})).table()
    assert told[""][:3] == ["interactive A", "interactive B", "interactive B/A"]
    assert told["p50 s"][:3] == ["1.00", "1.50", "1.50"]
    assert told["requests"][:3] == ["20", "30", "1.50"]
    assert told["p50 s"][3:6] == ["4.00", "4.00", "1.00"]


def test_what_one_run_does_not_have_has_no_ratio() -> None:
    """A class that only one of them had, and figures that are not known."""
    a = a_whole_result()
    fewer = {name: row for name, row in a.classes.items() if name != EMBEDDINGS_ROW}
    told = compared(replace(a, classes=fewer), a).table()
    assert told[""][-3:] == ["embeddings A", "embeddings B", "embeddings B/A"]
    assert told["p50 s"][-3:] == ["-", "10.00", "-"]
    assert told["requests"][-3:] == ["0", "20", "-"]
    assert [ratio(None, 1.0), ratio(1.0, None), ratio(0, 3), ratio(2, 0)] == [None, None, None, 0.0]


@pytest.mark.parametrize(
    ("errors", "needless", "problems"),
    [
        ((1, 1), (1, 1), []),
        ((3, 0), (2, 0), []),
        ((0, 0), (None, None), []),
        ((1, 2), (0, 0), ["more failed requests: 1, then 2"]),
        ((0, 0), (0, 1), ["more needless loads: 0, then 1"]),
        ((0, 1), (None, 1), ["more failed requests: 0, then 1", "more needless loads: 0, then 1"]),
    ],
)
def test_more_errors_and_more_needless_loads_are_worse(
    errors: tuple[int, int], needless: tuple[int | None, int | None], problems: list[str]
) -> None:
    """Fewer are not, nor as many, nor what nobody knows."""
    a, b = (a_whole_result(errors=one, needless_loads=two) for one, two in zip(errors, needless, strict=True))
    assert compared(a, b).problems == problems


def test_slower_is_not_worse() -> None:
    """Times are shown; two runs on one machine differ."""
    a = a_whole_result()
    row: Row = replace(a.classes["interactive"], p50_s=9.0, p95_s=99.0)
    assert compared(a, replace(a, classes={"interactive": row})).problems == []


def test_runs_that_were_not_alike_say_in_what() -> None:
    """Seed, settings, those inside others, the server and the machine; nothing where all is the same."""
    a = a_whole_result()
    assert compared(a, a).differences == {}
    b = a_whole_result(
        seed=8,
        settings={**a.settings, "seconds": 60.0, "counts": {"chat": 2}, "rate": 3.0},
        machine={"cores": "64"},
        server=replace(a.server, version="10"),
        left_out={},
    )
    told = compared(a, b).differences
    assert told["seed"] == ("7", "8")
    assert told["seconds"] == ("100.0", "60.0")
    assert told["counts.chat"] == ("6", "2")
    assert told["rate"] == ("-", "3.0")
    assert told["server.version"] == ("9.9", "10")
    assert told["machine.cores"] == ("2", "64")
    assert told["left out.ocr"][1] == "-"
    assert "not the same: seed: 7, then 8" in list(compared(a, b).lines())


def test_a_comparison_as_json_has_ratios_counts_and_problems() -> None:
    """For scripts: the same as the tables."""
    a, b = a_whole_result(), a_whole_result(errors=2, relief_steps=4)
    told = json.loads(compared(a, b).as_json())
    assert (told["a"], told["b"]) == ("before.json", "after.json")
    assert told["classes"]["interactive"]["b"]["errors"] == 2
    assert told["classes"]["batch"]["ratio"]["p95_s"] == 1.0
    assert told["counts"]["relief_steps"] == {"a": None, "b": 4}
    assert told["problems"] == ["more failed requests: 0, then 2"]


def test_a_file_of_another_shape_is_named_with_its_key(tmp_path: Path) -> None:
    """Whichever of the two it is."""
    good, other = tmp_path / "good.json", tmp_path / "other.json"
    good.write_bytes(replace(a_whole_result(), settings={}, roles={}, events=()).as_json())
    other.write_text('{"classes": {}, "loads": "many"}')
    for a, b in ((good, other), (other, good)):
        with pytest.raises(ResultFault, match=r"other\.json .*loads"):
            Comparison.read(a, b)
