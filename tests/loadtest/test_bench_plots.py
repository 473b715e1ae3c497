from pathlib import Path

import pytest

from loadtest.bench import plots
from loadtest.bench.curves import BY_CLIENTS, BY_PACE, BY_STREAMS, CLIENTS, PACES, STREAMS
from loadtest.bench.result import BenchResult, Machine, Row, row_of

EACH = {"added_p50_us": [5.0, 0.0, 7.0], "added_p99_us": [100.0, None, 120.0], "requests_per_s": [900.0]}


def points() -> list[Row]:
    """Every point of every curve; the direct way is beside them and not drawn."""
    ours: dict[str, str] = {"variant": "gridsched", "upstream": "stub"}
    found = [row_of(EACH, case="small_request", clients=count, setting=BY_CLIENTS, **ours) for count in CLIENTS]
    found += [row_of(EACH, case="stream", streams=count, setting=BY_STREAMS, **ours) for count in STREAMS]
    found += [row_of(EACH, case="stream", streams=8, setting=f"{BY_PACE} {pace}", **ours) for pace in PACES]
    return [*found, row_of(EACH, case="stream", streams=8, setting=BY_STREAMS, variant="direct")]


@pytest.mark.slow
def test_curves_and_grants_are_drawn_the_same_each_time(tmp_path: Path) -> None:
    """A picture for each curve that has points, with the words as text; the same result is the same bytes."""
    grants = [
        row_of({"arrival_p99_us": [900.0]}, case="grant", variant="gridsched", setting=f"{count} waiting")
        for count in (0, 100, 10_000)
    ]
    result = BenchResult(machine=Machine(), revision="", cases=grants, curves=points())
    drawn = {path.stem: path.read_bytes() for path in plots.draw(result, tmp_path)}
    assert set(drawn) == {"cost_by_clients", "rate_by_clients", "cost_by_streams", "cost_by_pace", "grant"}
    assert b"chunks a second asked for" in drawn["cost_by_pace"]
    assert {path.stem: path.read_bytes() for path in plots.draw(result, tmp_path)} == drawn


@pytest.mark.slow
def test_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    """A run without figures leaves no pictures."""
    nothing = row_of({"added_p50_us": [None]}, case="small_request", variant="gridsched", clients=1)
    result = BenchResult(machine=Machine(), revision="", cases=[nothing], curves=[])
    assert list(plots.draw(result, tmp_path)) == []


@pytest.mark.slow
def test_a_curve_with_points_that_were_not_measured_is_drawn_without_them(tmp_path: Path) -> None:
    """Also where there is no point at all of one of its lines."""
    holes = [
        row_of({"added_p50_us": [None if count > 1 else 3.0]}, case="small_request", variant="gridsched", clients=count)
        for count in CLIENTS
    ]
    named = [
        row_of(dict(row.each), case=row.case, variant=row.variant, clients=row.clients, setting=BY_CLIENTS)
        for row in holes
    ]
    result = BenchResult(machine=Machine(), revision="", cases=[], curves=named)
    assert {path.stem for path in plots.draw(result, tmp_path)} == {"cost_by_clients", "rate_by_clients"}
