import pytest

from loadtest.clients import Measured
from loadtest.decisions import Counts
from loadtest.report import as_json, percentile, rows_of, table


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, None),
        ([7.0], 0.95, 7.0),
        ([4.0, 1.0, 3.0, 2.0], 0.5, 2.0),
        ([float(n) for n in range(1, 101)], 0.95, 95.0),
        ([float(n) for n in range(1, 21)], 0.95, 19.0),
        ([1.0, 2.0], 0.0, 1.0),
        ([1.0, 2.0], 1.0, 2.0),
    ],
)
def test_percentile_is_the_nearest_rank(values: list[float], share: float, expected: float | None) -> None:
    """A percentile is a value that was measured, never one between two."""
    assert percentile(values, share) == expected


def _measured(row: str, latency: float, error: str = "") -> Measured:
    return Measured(row, 200, latency, queue_seconds=0.001, first_token_seconds=latency / 2, error=error)


def test_rows_keep_the_order_in_which_they_appear_and_count_failures_apart() -> None:
    """A failed request counts as a request and as an error, and its time in no percentile."""
    rows = rows_of([_measured("chat", 1.0), _measured("batch", 9.0), _measured("chat", 99.0, error="503: no")])
    assert list(rows) == ["chat", "batch"]
    assert (rows["chat"].requests, rows["chat"].errors) == (2, 1)
    assert (rows["chat"].p50_s, rows["chat"].p99_s, rows["chat"].ttft_p50_s) == (1.0, 1.0, 0.5)


def test_a_row_without_an_answer_has_no_times() -> None:
    """Nothing measured is said as nothing, not as zero."""
    row = rows_of([Measured("chat", error="refused")])["chat"]
    assert (row.errors, row.p50_s, row.queue_p95_s, row.ttft_p50_s) == (1, None, None, None)
    assert table({"chat": row}).splitlines()[1].split() == ["chat", "1", "1", "-", "-", "-", "-", "-"]


def test_the_table_is_aligned_and_tells_waits_in_milliseconds() -> None:
    """Every column ends where its head ends."""
    text = table(rows_of([_measured("interactive", 1.234), _measured("batch", 12.0)]))
    head, chat, batch = text.splitlines()
    assert head.split()[:2] == ["requests", "errors"]
    assert chat.split() == ["interactive", "1", "0", "1.23", "1.23", "1.0", "1.0", "617.0"]
    assert len(head) == len(chat) == len(batch)


def test_the_json_has_the_public_keys() -> None:
    """The names that scripts rely on."""
    report = as_json(
        rows_of([_measured("interactive", 1.0)]), Counts(3, 1, 2, 4), seed=7, settings={"interactive_cooldown": 2.0}
    )
    keys = {"classes", "loads", "needless_loads", "evictions", "relief_steps", "seed", "settings"}
    assert set(report) == keys
    assert (report["loads"], report["needless_loads"], report["evictions"], report["relief_steps"]) == (3, 1, 2, 4)
    classes = report["classes"]
    assert isinstance(classes, dict)
    times = {"p50_s", "p95_s", "p99_s", "queue_p50_s", "queue_p95_s", "ttft_p50_s"}
    assert set(classes["interactive"]) == {"requests", "errors"} | times
