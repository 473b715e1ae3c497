import pytest

from loadtest.clients import Measured
from loadtest.report import percentile, row_of, rows_of, table


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
    assert table({"chat": row}).splitlines()[1].split() == ["chat", "1", "1", "-"]


def test_the_table_is_aligned_and_tells_waits_in_milliseconds() -> None:
    """Every column ends where its head ends."""
    text = table(rows_of([_measured("interactive", 1.234), _measured("batch", 12.0)]))
    head, chat, batch = text.splitlines()
    assert head.split()[:2] == ["requests", "errors"]
    assert chat.split() == ["interactive", "1", "0", "1.23", "1.23", "1.23", "1.0", "1.0", "617.0"]
    assert len(head) == len(chat) == len(batch)


def test_gaps_of_all_streams_are_taken_together_and_tokens_over_the_time_they_were_counted() -> None:
    """A slow stream of many texts weighs as many gaps as it has; a failed one adds neither gaps nor tokens."""
    streams = [
        Measured("chat", 200, 1.0, tokens=6, gaps=(0.1,) * 5),
        Measured("chat", 200, 2.0, tokens=4, gaps=(0.5, 0.5)),
        Measured("chat", 200, 9.0, tokens=50, gaps=(7.0,) * 20, error="broke off"),
    ]
    row = row_of(streams, seconds=4.0)
    assert (row.inter_token_p50_s, row.inter_token_p95_s) == (0.1, 0.5)
    assert row.tokens_per_s == 2.5
    assert row_of(streams).tokens_per_s is None
