import json
from pathlib import Path

import msgspec
import pytest

from loadtest.bench.cases import Run, Setting, of_small, of_stream, rows
from loadtest.bench.compare import compared, lines
from loadtest.bench.figures import Figure, added, figure, knee, middle, ratios, saturation, verdict
from loadtest.bench.machine import without_paths
from loadtest.bench.result import BenchFault, BenchResult, Machine, Row, row_of
from loadtest.bench.table import number, table
from loadtest.bench.tools import Seen, Traffic, Values

PUBLIC = [
    *("case", "variant", "reference", "clients", "streams", "rps_ratio", "added_p50_us", "added_p99_us"),
    *("tokens_ratio", "chunks_per_s", "rounds"),
]


def seen(p50_us: float, requests: int = 100) -> Seen:
    """What the load generator saw in a second of small requests."""
    latency = Values(count=requests, p50_us=p50_us, p90_us=p50_us, p99_us=2 * p50_us, most_us=3 * p50_us)
    return Seen(
        **dict.fromkeys(("errors", "stale", "cut", "events", "texts", "bytes_up", "bytes_down", "status"), 0),
        **dict.fromkeys(("first_byte", "delay", "gap"), None),
        answers=requests,
        all_texts=0,
        requests=requests,
        seconds=1.0,
        requests_per_s=float(requests),
        events_per_s=0.0,
        cpu_s=0.0,
        latency=latency,
        failures={},
        closed_ns=[],
    )


def setting() -> Setting:
    """Small requests of one client."""
    return Setting(
        case="small_request",
        upstream="stub",
        traffic=Traffic(body=Path("body.json"), clients=1, seconds=1.0),
        figures=of_small,
        clients=1,
        differences=(("p50_us", "added_p50_us"), ("p99_us", "added_p99_us")),
        quotients=(("requests_per_s", "rps_ratio"),),
    )


def a_result(found: list[Row], left_out: dict[str, str] | None = None) -> BenchResult:
    """A run on some machine."""
    return BenchResult(
        machine=Machine(cpu="a processor", cpus=2, memory_bytes=1 << 34, versions={"trio": "0.35"}, load_before=0.5),
        revision="abc+",
        cases=found,
        left_out=left_out or {},
    )


def test_a_figure_is_the_median_of_the_rounds_that_have_a_value_with_their_ends() -> None:
    """A round that failed counts in no figure; no round at all is no figure."""
    assert figure([3.0, None, 1.0, 10.0]) == Figure(3.0, 1.0, 10.0)
    assert middle([4.0, 2.0]) == 3.0
    assert figure([None, None]) is None
    assert middle([]) is None


def test_pairs_are_of_the_same_round() -> None:
    """A machine that was slow in one round was slow for both."""
    assert ratios([10.0, 200.0, None], [10.0, 100.0, 5.0]) == [1.0, 2.0, None]
    assert added([11.0, 120.0, 3.0], [10.0, 100.0, None]) == [1.0, 20.0, None]
    assert ratios([1.0], [0.0]) == [None]
    with pytest.raises(ValueError, match="longer"):
        added([1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("paired", "lower", "says"),
    [
        ([0.8, 0.82, 0.79, 0.81, 0.9], True, "better"),
        ([0.8, 0.82, 0.79, 0.81, 0.9], False, "worse"),
        ([1.2, 1.3, 1.25, 1.21, 0.9], True, "undecided"),
        ([1.2, 1.3, 1.25, 1.21, 1.2, 1.2, 1.3, 1.3, 1.3, 0.9], True, "worse"),
        ([1.01, 0.99, 1.02, 1.05, 0.93], True, "same"),
        ([1.01, 0.99, 1.02, 1.3, 0.7], True, "undecided"),
        ([0.5, 0.5, 0.5, 0.5], True, "undecided"),
        ([0.5, None, 0.5, 0.5, 0.5, 0.5], True, "better"),
        ([None, None, None], True, "undecided"),
    ],
)
def test_a_verdict_needs_rounds_that_agree(paired: list[float | None], lower: bool, says: str) -> None:
    """Nothing is called better, worse or the same on the word of a few rounds, or of such as contradict each other."""
    assert verdict(paired, lower_is_better=lower) == says


def test_the_knee_is_where_the_cost_has_doubled_or_is_beyond_the_limit() -> None:
    """A load that could not be carried is one, too."""
    loads = [1.0, 8.0, 50.0, 100.0]
    assert knee(loads, [100.0, 150.0, 190.0, 500.0], 10_000.0) == 100.0
    assert knee(loads, [9_000.0, 10_001.0, 12_000.0, 12_000.0], 10_000.0) == 8.0
    assert knee(loads, [100.0, 120.0, None, 130.0], 10_000.0) == 50.0
    assert knee(loads, [100.0, 120.0, 110.0, 130.0], 10_000.0) is None


def test_a_rate_is_saturated_where_nearly_all_of_the_highest_is_reached() -> None:
    """A load that was not measured is passed over."""
    assert saturation([1.0, 2.0, 4.0, 8.0], [50.0, None, 96.0, 100.0]) == 4.0
    assert saturation([1.0], [None]) is None


def test_a_variant_is_set_beside_the_reference_of_its_round() -> None:
    """Differences and ratios by round, absolute figures beside them; a failed round leaves a hole and an error."""
    direct = [Run(seen(100.0, 1000), 5000.0), Run(seen(200.0, 500), 5000.0), Run(seen(100.0, 1000))]
    ours = [Run(seen(150.0, 900), 90_000.0), Run(seen(300.0, 450), 45_000.0), Run(None, why="it ended")]
    base, row = rows(setting(), {"direct": direct, "gridsched": ours})
    assert (base.variant, base.rps_ratio, base.added_p50_us, base.errors) == ("direct", 1.0, 0.0, 0)
    assert (row.variant, row.reference, row.clients, row.rounds, row.errors) == ("gridsched", "direct", 1, 3, 1)
    assert row.each["added_p50_us"] == [50.0, 100.0, None]
    assert row.added_p50_us == 75.0
    assert row.rps_ratio == 0.9
    assert row.figures["cpu_us_per_request"] == 100.0
    assert "rps_ratio" not in row.figures


def test_a_run_without_an_answer_has_no_figures() -> None:
    """Unknown is None and never 0."""
    assert set(of_small(Run(None)).values()) == {None}
    assert set(of_stream(Run(seen(1.0, 0))).values()) == {None}


def test_a_turn_that_came_to_nothing_is_an_error() -> None:
    """Also where no single request failed: silence is not success."""
    _, row = rows(setting(), {"direct": [Run(seen(100.0))], "gridsched": [Run(seen(1.0, 0), why="no whole answer")]})
    assert (row.errors, row.rps_ratio) == (1, None)


def test_processor_time_is_set_beside_all_answers_of_its_time() -> None:
    """Also beside those of the first moments, which have no latency that counts."""
    warm = msgspec.structs.replace(seen(100.0, 800), answers=1000)
    assert of_small(Run(warm, 100_000.0))["cpu_us_per_request"] == 100.0


def test_the_json_has_the_public_fields_first_and_comes_back_whole() -> None:
    """The names that scripts rely on, under the same names as ever."""
    result = a_result([row_of({"rps_ratio": [0.9, 0.8]}, case="small_request", variant="gridsched", clients=8)])
    raw = result.as_json()
    told = json.loads(raw)
    assert list(told)[:3] == ["machine", "revision", "cases"]
    assert list(told["cases"][0])[: len(PUBLIC)] == PUBLIC
    assert told["cases"][0]["rps_ratio"] == pytest.approx(0.85)
    assert BenchResult.from_json(raw).as_json() == raw


def test_a_file_of_another_shape_is_refused_with_its_key() -> None:
    """What is wrong is named."""
    with pytest.raises(BenchFault, match="revision"):
        BenchResult.from_json(b'{"machine": {}, "revision": 3, "cases": []}')


def test_the_table_shows_median_and_ends_and_what_was_left_out() -> None:
    """A figure that was not measured is a dash; a case without columns of its own shows all it has."""
    found = [
        row_of(
            {"p50_us": [500.0, 450.0, 520.0], "rps_ratio": [None]}, case="small_request", variant="gridsched", clients=1
        ),
        row_of({"p99_us": [12.5]}, case="grant", variant="gridsched", setting="100 waiting", notes=["in process"]),
    ]
    text = table(a_result(found, {"litellm": "it is not installed"}))
    assert "| gridsched | 500 (450…520) | - | - |" in text
    assert "| 100 waiting | gridsched | 12 | 0 |" in text
    assert "In process." in text
    assert "- litellm: it is not installed" in text


@pytest.mark.parametrize(("value", "said"), [(12345.6, "12,346"), (123.4, "123"), (3.14159, "3.14"), (0.0456, "0.046")])
def test_a_number_has_as_many_digits_as_say_something(value: float, said: str) -> None:
    """Thousands are told apart, small ones keep two digits."""
    assert number(value) == said


def test_two_revisions_are_compared_figure_by_figure() -> None:
    """Paired by round and load; what only one of them has is not compared; notes are told."""
    base = row_of(
        {"p50_us": [100.0, 200.0, 100.0, 10.0, 10.0], "mb_per_s": [1.0]},
        case="small_request",
        variant="base",
        clients=8,
    )
    this = row_of({"p50_us": [80.0, 150.0, 70.0, 7.5, 7.5]}, case="small_request", variant="this", clients=8)
    other = row_of({"p50_us": [1.0]}, case="small_request", variant="this", clients=50)
    (found,) = compared([base, this, other])
    assert (found.name, found.says, found.base, found.this) == ("p50_us", "better", 100.0, 70.0)
    assert found.ratio == Figure(0.75, 0.7, 0.8)
    text = "\n".join(lines("v1", [found], ["large_up: base does not answer it"]))
    assert "| small_request | 8 clients | p50 us | 100 | 70 | 0.750 (0.700…0.800) | better |" in text
    assert "this tree against v1: 1 better, 0 worse, 0 same, 0 undecided" in text
    assert "large_up: base does not answer it" in text


def test_the_table_begins_with_a_few_figures_of_all_variants_beside_one_another() -> None:
    """Of what was measured only, and of the load that is named."""
    more = {"case": "small_request", "upstream": "engine"}
    found = [
        row_of({"rps_ratio": [0.9, 0.8, 0.85]}, variant="gridsched", clients=8, **more),
        row_of({"rps_ratio": [0.75]}, variant="llama-router", clients=8, **more),
        row_of({"rps_ratio": [0.1]}, variant="llama-router", clients=50, **more),
    ]
    short = table(a_result(found)).partition("## In short")[2].partition("##")[0]
    assert short.strip().splitlines() == [
        "| | gridsched | llama-router |",
        "|---|---|---|",
        "| requests/s of 8 clients, of direct | 0.85 | 0.75 |",
    ]


def test_paths_of_this_machine_are_cut_to_their_last_part() -> None:
    """What a program says of its files tells where somebody lives; a URL's path tells nothing."""
    said = without_paths(f'File "{Path(__file__)}", line 3; POST /v1/chat/completions at http://127.0.0.1:1/etc/x')
    assert said == 'File ".../test_bench_figures.py", line 3; POST /v1/chat/completions at http://127.0.0.1:1/etc/x'


def test_the_table_says_where_the_knee_of_a_curve_is() -> None:
    """Of gridsched's points; a curve that nobody measured is not there, and one without a knee says how far it went."""
    rates = {1: [500.0], 8: [960.0], 64: [1000.0], 256: [990.0]}
    by_clients = [
        row_of({"requests_per_s": rate}, case="small_request", variant="gridsched", clients=count, setting="by clients")
        for count, rate in rates.items()
    ]
    by_pace = row_of({"added_p99_us": [50.0]}, case="stream", variant="gridsched", streams=8, setting="by pace 100")
    result = BenchResult(machine=Machine(), revision="", cases=[], curves=[*by_clients, by_pace])
    text = table(result)
    assert "The knee is at 8 clients." in text
    assert "No knee up to 800 chunks a second in 8 streams." in text
    assert "Cost by streams" not in text
