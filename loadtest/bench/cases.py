"""The cases that are HTTP from end to end: small requests, streams, large bodies, clients that leave.

Owns what each asks, and how often. Within a round every variant has its turn, in an order that moves on from round to
round, and is paired with the direct way of the same round. Must never leave a failure out: a turn that came to
nothing has no figures in its round, and errors are counted and told.
"""

import base64
import bisect
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from loadtest.bench.figures import added, middle, ratios
from loadtest.bench.processes import MIB
from loadtest.bench.result import BenchFault, Plan, Row, row_of
from loadtest.bench.tools import Seen, Traffic, Values, drive
from loadtest.bench.variants import EMBEDDER, LITELLM, MODEL, SEER, STUBBED, VECTOR_NUMBERS, Variant, answers

CLIENTS = (1, 8, 50)
STREAMS = (1, 8, 50)
ENGINE_STREAMS = (1, 8)
FLOODS = (1, 8)
EVENTS_PER_S = 100
"""Of each paced stream: a fast model's tokens."""
LEAST_EVENTS = 20
"""Of a stream, which otherwise lasts half a second: so first bytes are seen often enough."""
ENGINE_TOKENS = 200
IMAGE_BYTES = 10 * MIB
INPUTS = 2048
"""OpenAI's limit of one request."""
CANCEL_PAUSE_MS = 20
CANCEL_AFTER_EVENTS = 3
LEAST_CANCEL_SECONDS = 1.0
FLOOD_EVENTS = 5000
"""Of each stream of a flood. Not without end: a proxy may go on with a stream that nobody listens to any more."""
SETTLE_SECONDS, SETTLE_STEP_SECONDS, SETTLE_SHARE = 10.0, 0.03, 0.3
"""How long one may go on after its turn, how often it is looked at, and what part of a processor is rest."""
MS_PER_S, US_PER_S, NS_PER_US, BYTES_PER_MB = 1e3, 1e6, 1e3, 1e6

Figures = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Run:
    """One turn of a variant: what its clients saw, and what it took. `seen` is None where it failed, `why` why."""

    seen: Seen | None
    cpu_us: float = 0.0
    peak_bytes: int = 0
    freed_ns: Sequence[float] = ()
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One load of a case. `what` gives the figures of one run of its own; `pairs` names those that are set beside
    the reference's, as (figure of a run, name of its difference or ratio)."""

    case: str
    upstream: str
    traffic: Traffic
    figures: Callable[[Run], Figures]
    clients: int | None = None
    streams: int | None = None
    setting: str = ""
    differences: Sequence[tuple[str, str]] = ()
    quotients: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    rounds: int | None = None
    skip: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What cases are run with: the plan, the load generator, and who is up, the reference first."""

    plan: Plan
    load: Path
    up: Sequence[Variant]
    upstream: str
    failures: list[str] = field(default_factory=list)

    def body(self, name: str, content: Mapping[str, object]) -> Path:
        """A request's body as a file."""
        path = self.plan.folder / f"{name}.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        return path


def measured(bench: Bench, setting: Setting) -> Iterator[Row]:
    """Run one setting's rounds, and give a row for each variant that could be asked."""
    wanted = [variant for variant in bench.up if variant.name not in setting.skip]
    up = [variant for variant in wanted if _can(bench, setting, variant)]
    if not up or up[0] is not bench.up[0]:
        up = []
    rounds = setting.rounds or bench.plan.rounds
    runs: dict[str, list[Run]] = {variant.name: [] for variant in up}
    for number in range(rounds):
        for variant in _rotated(up, number):
            run = one_run(bench, setting, variant)
            if run.why:
                bench.failures.append(f"{_title(setting)}, {variant.name}, round {number + 1}: {run.why}")
            runs[variant.name].append(run)
    if up:
        yield from rows(setting, runs)
    yield from (_row(setting, {}, variant.name, bench.up[0].name, 1) for variant in wanted if variant not in up)


def _rotated(up: Sequence[Variant], number: int) -> Sequence[Variant]:
    start = number % len(up)
    return [*up[start:], *up[:start]]


def _can(bench: Bench, setting: Setting, variant: Variant) -> bool:
    """Whether it answers this at all. It is asked once, which also warms it up."""
    why = answers(variant, setting.traffic.path, _short(setting.traffic.body))
    if why:
        bench.failures.append(f"{_title(setting)}: {variant.name} does not answer it ({why})")
    return not why


def _short(body: Path) -> bytes:
    """The same request, with little to wait for."""
    content = json.loads(body.read_bytes())
    return json.dumps(content | ({"max_tokens": 1} if "messages" in content else {})).encode()


def _title(setting: Setting) -> str:
    count = setting.clients if setting.clients is not None else setting.streams
    unit = "clients" if setting.clients is not None else "streams"
    return f"{setting.case} ({setting.upstream}{f', {setting.setting}' if setting.setting else ''}, {count} {unit})"


def one_run(bench: Bench, setting: Setting, variant: Variant) -> Run:
    """One turn. A failure of the load generator is told, not raised."""
    variant.child.reset_peak()
    told = _size(variant.events)
    before = variant.child.cpu_us()
    try:
        seen = drive(bench.load, variant.port, variant.key, setting.traffic)
    except BenchFault as fault:
        return Run(None, why=str(fault))
    took = max(0.0, variant.child.cpu_us() - before)
    freed = _freed(seen, variant.events, told)
    nothing = "" if seen.requests or seen.texts else "no whole answer within its time"
    busy = "" if _settled(variant) else f"still busy {SETTLE_SECONDS:g} s after its clients had left"
    return Run(seen, took, variant.child.memory_bytes("VmHWM"), freed, seen.failed or nothing or busy)


def _settled(variant: Variant) -> bool:
    """Wait until it rests: what one variant still does is not to slow the next one's turn."""
    until = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < until:
        before = variant.child.cpu_us()
        time.sleep(SETTLE_STEP_SECONDS)
        if variant.child.cpu_us() - before < SETTLE_SHARE * SETTLE_STEP_SECONDS * US_PER_S:
            return True
    return False


def _size(path: Path | None) -> int:
    return path.stat().st_size if path is not None and path.exists() else 0


def _freed(seen: Seen, events: Path | None, since: int) -> Sequence[float]:
    """For each client that left, after how many nanoseconds the engine knew: the first that it was told of between this
    client's leaving and the next one's."""
    if not seen.closed_ns or events is None or not events.exists():
        return ()
    lines = events.read_bytes()[since:].decode().splitlines()
    told = sorted(float(line.split()[1]) for line in lines if line.startswith("left "))
    found = []
    for moment, following in zip(seen.closed_ns, [*seen.closed_ns[1:], float("inf")], strict=True):
        at = bisect.bisect_left(told, moment)
        if at < len(told) and told[at] < following:
            found.append(told[at] - moment)
    return found


def rows(setting: Setting, runs: Mapping[str, Sequence[Run]]) -> Iterator[Row]:
    """From the rounds of all variants, the reference first, to a row for each. Pure."""
    by_name = {name: _columns([setting.figures(run) for run in taken]) for name, taken in runs.items()}
    reference = next(iter(by_name))
    base = by_name[reference]
    for name, own in by_name.items():
        each = dict(own)
        for figure, called in setting.differences:
            each[called] = added(own[figure], base[figure])
        for figure, called in setting.quotients:
            each[called] = ratios(own[figure], base[figure])
        yield _row(setting, each, name, reference, sum(map(_errors, runs[name])))


def _row(
    setting: Setting, each: Mapping[str, Sequence[float | None]], variant: str, reference: str, errors: int
) -> Row:
    return row_of(
        each,
        case=setting.case,
        variant=variant,
        reference=reference,
        clients=setting.clients,
        streams=setting.streams,
        upstream=setting.upstream,
        setting=setting.setting,
        errors=errors,
        notes=list(setting.notes),
    )


def _errors(run: Run) -> int:
    """Its failed requests; a turn that came to nothing is one."""
    if run.seen is None:
        return 1
    return run.seen.errors or int(not (run.seen.requests or run.seen.texts))


def _columns(rounds: Sequence[Figures]) -> Mapping[str, Sequence[float | None]]:
    return {name: [one.get(name) for one in rounds] for name in rounds[0]}


# --- figures of one run -----------------------------------------------------------------------------------------


def _times(prefix: str, values: Values | None) -> Figures:
    return {
        f"{prefix}p50_us": values.p50_us if values else None,
        f"{prefix}p99_us": values.p99_us if values else None,
    }


def _each(run: Run, count: int) -> float | None:
    return run.cpu_us / count if count and run.cpu_us else None


def of_small(run: Run) -> Figures:
    """Latency, rate and processor time of whole answers, and how many they are that have a latency."""
    seen = run.seen
    return {
        "answers": seen.latency.count if seen and seen.latency else None,
        **_times("", seen.latency if seen else None),
        "requests_per_s": seen.requests_per_s if seen and seen.answers else None,
        "cpu_us_per_request": _each(run, seen.answers) if seen else None,
    }


def of_stream(run: Run) -> Figures:
    """How late events were, how soon the first byte came, how many there were."""
    seen = run.seen
    return {
        **_times("delay_", seen.delay if seen else None),
        **_times("gap_", seen.gap if seen else None),
        **_times("first_byte_", seen.first_byte if seen else None),
        "chunks_per_s": seen.texts / seen.seconds if seen and seen.texts else None,
        "cpu_us_per_chunk": _each(run, seen.all_texts) if seen else None,
    }


def of_large(run: Run) -> Figures:
    """Bytes a second, whichever way, and the most memory that the server held meanwhile."""
    seen = run.seen
    size = max(seen.bytes_up, seen.bytes_down) / seen.requests if seen and seen.requests else 0.0
    return {
        **_times("", seen.latency if seen else None),
        "mb_per_s": size * seen.requests_per_s / BYTES_PER_MB if seen and size else None,
        "peak_mib": run.peak_bytes / MIB if run.peak_bytes else None,
        "cpu_us_per_request": _each(run, seen.answers) if seen else None,
    }


def of_cancel(run: Run) -> Figures:
    """After how long the engine knew that the client had left, and of how many it never did in time."""
    freed = sorted(run.freed_ns)
    left = len(run.seen.closed_ns) if run.seen else 0
    return {
        "freed_p50_us": (middle(freed) or 0.0) / NS_PER_US if freed else None,
        "freed_p99_us": freed[min(len(freed) - 1, int(len(freed) * 0.99))] / NS_PER_US if freed else None,
        "left": float(left),
        "unseen": float(left - len(freed)),
    }


# --- the cases --------------------------------------------------------------------------------------------------

LATENCY = (("p50_us", "added_p50_us"), ("p99_us", "added_p99_us"))
DELAY = (
    ("delay_p50_us", "added_p50_us"),
    ("delay_p99_us", "added_p99_us"),
    ("first_byte_p50_us", "first_byte_added_p50_us"),
    ("first_byte_p99_us", "first_byte_added_p99_us"),
)


def _chat(**more: object) -> dict[str, object]:
    asked = [{"role": "user", "content": "Say hello, and a word about the weather."}]
    return {"model": MODEL, "temperature": 0, **more, "messages": asked}


def small_settings(bench: Bench, clients: Iterable[int] = CLIENTS) -> Iterator[Setting]:
    """One short question, one short answer."""
    body = bench.body("small", _chat(max_tokens=1))
    for count in clients:
        yield Setting(
            case="small_request",
            upstream=bench.upstream,
            traffic=Traffic(body=body, clients=count, seconds=bench.plan.seconds),
            figures=of_small,
            clients=count,
            differences=LATENCY,
            quotients=(("requests_per_s", "rps_ratio"),),
        )


def paced(bench: Bench, streams: int, events_per_s: int = EVENTS_PER_S, setting: str = "") -> Setting:
    """So many streams of the stub, of so many events a second each."""
    gap_us = int(US_PER_S / events_per_s)
    body = bench.body(
        f"paced-{gap_us}", _chat(stream=True, max_tokens=max(LEAST_EVENTS, events_per_s // 2), seed=gap_us)
    )
    return Setting(
        case="stream",
        upstream=bench.upstream,
        traffic=Traffic(body=body, clients=streams, seconds=max(bench.plan.seconds, 0.3)),
        figures=of_stream,
        streams=streams,
        setting=setting or f"{events_per_s}/s each",
        differences=DELAY,
        quotients=(("chunks_per_s", "tokens_ratio"),),
    )


def _flood(bench: Bench, streams: int) -> Setting:
    body = bench.body("flood", _chat(stream=True, max_tokens=FLOOD_EVENTS, seed=0))
    setting = paced(bench, streams, setting="flood")
    notes = ["of a flood the delay is what lies in buffers: not shown"]
    many = streams > 1
    if many:
        notes.append("LiteLLM is not flooded by several: for a minute it goes on with what its clients have left")
    return replace(
        setting,
        traffic=replace(setting.traffic, body=body),
        differences=(),
        notes=notes,
        skip=frozenset({LITELLM} if many else ()),
    )


def stream_settings(bench: Bench) -> Iterator[Setting]:
    """Paced streams and floods of the stub; as fast as it can of a real engine."""
    if bench.upstream == STUBBED:
        yield from (paced(bench, streams) for streams in STREAMS)
        yield from (_flood(bench, streams) for streams in FLOODS)
        return
    body = bench.body("tokens", _chat(stream=True, max_tokens=ENGINE_TOKENS, ignore_eos=True))
    for streams in ENGINE_STREAMS:
        setting = paced(bench, streams, setting=f"{ENGINE_TOKENS} tokens")
        seconds = max(bench.plan.seconds, 0.3)
        yield replace(
            setting,
            traffic=replace(setting.traffic, body=body, seconds=seconds, warm_s=0.5),
            differences=DELAY[2:],
        )


def _large(bench: Bench, case: str, body: Path, path: str) -> Setting:
    return Setting(
        case=case,
        upstream=bench.upstream,
        traffic=Traffic(body=body, clients=1, seconds=1.5 * bench.plan.seconds, warm_s=0.0, path=path),
        figures=of_large,
        clients=1,
        differences=LATENCY,
        quotients=(("mb_per_s", "rps_ratio"),),
    )


def large_up_settings(bench: Bench) -> Iterator[Setting]:
    """A picture of ten mebibytes in a chat."""
    if bench.upstream != STUBBED:
        return
    noise = random.Random(1).randbytes(IMAGE_BYTES * 3 // 4)  # noqa: S311 - a picture's bytes, the same each time
    url = f"data:image/png;base64,{base64.b64encode(noise).decode()}"
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": url}}]
    body = bench.body("large-up", {"model": SEER, "max_tokens": 1, "messages": [{"role": "user", "content": parts}]})
    yield _large(bench, "large_up", body, "/v1/chat/completions")


def large_down_settings(bench: Bench) -> Iterator[Setting]:
    """As many vectors as one request may ask for."""
    if bench.upstream != STUBBED:
        return
    inputs = [f"document {number}" for number in range(INPUTS)]
    body = bench.body("large-down", {"model": EMBEDDER, "encoding_format": "float", "input": inputs})
    note = f"{INPUTS} vectors of {VECTOR_NUMBERS} numbers; gridsched asks for 32 at a time, so that chats go first"
    yield replace(_large(bench, "large_down", body, "/v1/embeddings"), notes=(note,))


def cancel_settings(bench: Bench) -> Iterator[Setting]:
    """A client leaves its stream, one after the other."""
    if bench.upstream != STUBBED:
        return
    setting = paced(bench, 1, setting="client leaves")
    words = ("--cancel-after", str(CANCEL_AFTER_EVENTS), "--pause-ms", str(CANCEL_PAUSE_MS))
    traffic = replace(setting.traffic, more=words, seconds=max(LEAST_CANCEL_SECONDS, bench.plan.seconds))
    pairs = (("freed_p50_us", "added_p50_us"), ("freed_p99_us", "added_p99_us"))
    yield replace(
        setting,
        case="cancel",
        traffic=traffic,
        figures=of_cancel,
        clients=1,
        streams=None,
        differences=pairs,
        quotients=(),
    )


SETTINGS: Mapping[str, Callable[[Bench], Iterator[Setting]]] = {
    "small_request": small_settings,
    "large_up": large_up_settings,
    "large_down": large_down_settings,
    "cancel": cancel_settings,
    "stream": stream_settings,
}
"""In the order in which they are run: whoever has not got over a flood disturbs no other case."""


def steps(bench: Bench, case: str) -> int:
    """How many loads a case has over one upstream, of which `measure` tells."""
    return sum(1 for _ in SETTINGS[case](bench))


def measure(bench: Bench, case: str) -> Iterator[Row]:
    """All rows of a case over one upstream."""
    for setting in SETTINGS[case](bench):
        bench.plan.step(_title(setting))
        yield from measured(bench, setting)
