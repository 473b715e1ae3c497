"""A benchmark's result as tables in Markdown, for people. Owns what is shown of a row, and in which unit."""

from collections.abc import Iterator, Mapping, Sequence

from loadtest.bench import curves
from loadtest.bench.figures import figure
from loadtest.bench.result import CASES, BenchResult, Row

TITLES: Mapping[str, str] = {
    "small_request": "A small request, not streamed",
    "stream": "Streams",
    "large_up": "A picture of 10 MiB up",
    "large_down": "2,048 vectors of 1,024 numbers down",
    "cancel": "A client leaves: until the engine knows",
    "grant": "From arrival to grant",
    "memory": "Memory",
    "startup": "Start",
    "contention": "The chat and the background",
}
COLUMNS: Mapping[str, Sequence[tuple[str, str]]] = {
    "small_request": (
        ("p50 µs", "p50_us"),
        ("added p50 µs", "added_p50_us"),
        ("added p99 µs", "added_p99_us"),
        ("requests/s", "requests_per_s"),
        ("of direct", "rps_ratio"),
        ("CPU µs", "cpu_us_per_request"),
    ),
    "stream": (
        ("chunks/s", "chunks_per_s"),
        ("of direct", "tokens_ratio"),
        ("added p50 µs", "added_p50_us"),
        ("added p99 µs", "added_p99_us"),
        ("first byte: added p50 µs", "first_byte_added_p50_us"),
        ("CPU µs", "cpu_us_per_chunk"),
    ),
    "large_up": (("MB/s", "mb_per_s"), ("of direct", "rps_ratio"), ("peak MiB", "peak_mib")),
    "large_down": (("MB/s", "mb_per_s"), ("of direct", "rps_ratio"), ("peak MiB", "peak_mib")),
    "cancel": (
        ("p50 µs", "freed_p50_us"),
        ("p99 µs", "freed_p99_us"),
        ("clients that left", "left"),
        ("never seen", "unseen"),
    ),
    "contention": (
        ("chat p50 s", "chat_p50_s"),
        ("p95 s", "chat_p95_s"),
        ("first token s", "first_token_p50_s"),
        ("tokens/s", "chat_tokens_per_s"),
        ("p50 of alone", "chat_p50_ratio"),
        ("p95 of alone", "chat_p95_ratio"),
        ("writer tokens/s", "writer_tokens_per_s"),
        ("documents/s", "documents_per_s"),
        ("kept of solo", "kept"),
        ("beside chats", "beside"),
        ("same answers", "same"),
    ),
}
"""Heads and figures. A case without columns here shows all the figures it has."""
CURVES = {
    curves.BY_CLIENTS: "clients",
    curves.BY_STREAMS: "streams of 100 chunks a second",
    curves.BY_PACE: f"chunks a second in {curves.PACED_STREAMS} streams",
}
SMALL, LARGE = 10.0, 1000.0
ENGINES: Mapping[str, str] = {"engine": "llama-server"}
"""What is in front of what is said so in words."""


SHORT: Sequence[tuple[str, str, Mapping[str, object], str]] = (
    ("adds to a small request, p50 µs", "small_request", {"upstream": "stub", "clients": 1}, "added_p50_us"),
    ("the same, in front of llama-server", "small_request", {"upstream": "engine", "clients": 1}, "added_p50_us"),
    ("its p99 µs", "small_request", {"upstream": "engine", "clients": 1}, "added_p99_us"),
    ("requests/s of 8 clients, of direct", "small_request", {"upstream": "engine", "clients": 8}, "rps_ratio"),
    ("adds to a chunk of 8 streams, p50 µs", "stream", {"setting": "100/s each", "streams": 8}, "added_p50_us"),
    ("tokens/s of 8 streams, of direct", "stream", {"upstream": "engine", "streams": 8}, "tokens_ratio"),
    ("chunks/s of one stream, at most", "stream", {"setting": "flood", "streams": 1}, "chunks_per_s"),
)
"""What is told first: in words, of which case, under which load, which figure."""


def table(result: BenchResult) -> str:
    """The whole result."""
    return "\n".join([*_head(result), *_short(result), *_cases(result), *_curves(result), *_tail(result)]) + "\n"


def _head(result: BenchResult) -> Iterator[str]:
    machine = result.machine
    yield "# The benchmark's figures"
    yield ""
    yield "Written by `make bench`; [what each case is](../bench/README.md). The median of the rounds, in brackets the"
    yield "lowest and the highest. Differences and ratios are to the way without anybody between, in the same round."
    yield ""
    yield f"- {machine.cpu}, {machine.cpus} processors, {machine.memory_bytes / 2**30:.1f} GiB, {machine.kernel}"
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items() if version)
    yield f"- Python {machine.python}, {versions}"
    load = [f"{value:.1f}" for value in (machine.load_before, machine.load_after) if value is not None]
    yield f"- revision {result.revision or 'unknown'}, {result.began}, {result.took_s:.0f} s; load {' to '.join(load)}"


def _short(result: BenchResult) -> Iterator[str]:
    """A few figures with all variants beside one another, as far as they were measured."""
    lines: dict[str, dict[str, str]] = {}
    for words, case, load, name in SHORT:
        for row in result.cases:
            found = figure(row.each.get(name, ()))
            if row.case == case and found and all(getattr(row, what) == value for what, value in load.items()):
                lines.setdefault(words, {})[row.variant] = number(found.median)
    variants = dict.fromkeys(variant for told in lines.values() for variant in told)
    if not lines:
        return
    yield from ("", "## In short", "", f"| | {' | '.join(variants)} |", f"|---|{'---|' * len(variants)}")
    for words, told in lines.items():
        yield f"| {words} | {' | '.join(told.get(variant, '-') for variant in variants)} |"


def _cases(result: BenchResult) -> Iterator[str]:
    names = dict.fromkeys([*CASES, *(row.case for row in result.cases)])
    for case in names:
        found = [row for row in result.cases if row.case == case]
        if found:
            yield ""
            yield f"## {TITLES.get(case, case)}"
            yield ""
            yield from _lines(case, found)
            notes = dict.fromkeys(note for row in found for note in row.notes)
            for note in notes:
                yield ""
                yield f"{note[:1].upper()}{note[1:]}."


def _lines(case: str, found: Sequence[Row]) -> Iterator[str]:
    columns = COLUMNS.get(case) or _all_figures(found)
    loads = [load_of(row) for row in found]
    heads = ["in front of", *(["load"] if any(loads) else []), "variant", *(head for head, _ in columns), "errors"]
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row, load in zip(found, loads, strict=True):
        cells = [
            ENGINES.get(row.upstream, row.upstream),
            *([load] if any(loads) else []),
            row.variant,
            *(_cell(row, name) for _, name in columns),
        ]
        yield f"| {' | '.join([*cells, str(row.errors)])} |"


def _all_figures(found: Sequence[Row]) -> Sequence[tuple[str, str]]:
    return [(name.replace("_", " "), name) for name in dict.fromkeys(name for row in found for name in row.each)]


def load_of(row: Row) -> str:
    """Under which load a row was measured, in words."""
    clients = f"{row.clients} client{'s' * (row.clients != 1)}" if row.clients is not None else ""
    streams = f"{row.streams} stream{'s' * (row.streams != 1)}" if row.streams is not None else ""
    return ", ".join(part for part in (clients, streams, row.setting) if part)


def _cell(row: Row, name: str) -> str:
    found = figure(row.each.get(name, ()))
    if found is None:
        return "-"
    if len(row.each[name]) == 1:
        return number(found.median)
    return f"{number(found.median)} ({number(found.lowest)}…{number(found.highest)})"


def number(value: float) -> str:
    """As many digits as say something."""
    size = abs(value)
    if size >= LARGE:
        return f"{value:,.0f}"
    if size >= SMALL:
        return f"{value:.0f}"
    return f"{value:.3g}" if size >= 1 else f"{value:.2g}"


def _curves(result: BenchResult) -> Iterator[str]:
    """Cost against load, through gridsched; the direct way's rows are in the JSON."""
    for setting, unit in CURVES.items():
        found = curves.points(result.curves, setting)
        if found:
            yield ""
            yield f"## Cost {setting}"
            yield ""
            yield from _lines(found[0].case, found)
            at = curves.knee_of(found)
            yield ""
            yield (
                f"The knee is at {at:,.0f} {unit}."
                if at is not None
                else f"No knee up to {curves.load_at(found[-1]):,.0f} {unit}."
            )


def _tail(result: BenchResult) -> Iterator[str]:
    if result.left_out:
        yield ""
        yield "## Left out"
        yield ""
        for what, why in result.left_out.items():
            yield f"- {what}: {why}"
    if result.notes:
        yield ""
        yield "## Noted"
        yield ""
        for note in result.notes:
            yield f"- {note}"
