"""From stretches of traffic to figures: what a chat and the background had of the machine under each setting.

Owns the arithmetic, the table and the marks. Pure. Must never compare stretches of different rounds: what else the
machine did is the same only within one. What was not measured is None, never 0.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from loadtest.bench.contention_traffic import Stretch
from loadtest.bench.figures import figure, middle
from loadtest.report import aligned, percentile

ALONE, PAUSE, SOLO = "alone", "pause", "solo"
SETTINGS: Mapping[str, Mapping[str, object]] = {
    "s4": {"background_max_starvation": "0s"},
    "relief": {},
    PAUSE: {"background_pause": "on"},
}
"""What `scheduler` holds in each setting, all else being as it is by itself: no low step begins beside a chat (S4);
who starves has a turn all the same (S5); and what runs stands still meanwhile (S10)."""
STRETCHES = (ALONE, *SETTINGS, SOLO)

CHAT_LIMIT = 1.15
"""With pause, the median chat may take so many times as long as with nobody else there."""
LEAST_KEPT = 0.1
"""With pause, the background keeps at least so much of the rate that it has where nobody chats."""

Round = Mapping[str, Stretch]
"""A stretch of each name in `STRETCHES`."""
Each = Mapping[str, Sequence[float | None]]
"""By figure, its value in every round."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Whether it is met, and the figure that says so."""

    name: str
    met: bool
    figure: str


def figures(rounds: Sequence[Round]) -> dict[str, Each]:
    """By name of the stretch. Names end with the unit; `_ratio` is to chat alone in the same round, `kept` to the
    background's solo rate there, `same` the part of the background's answers that are those of its solo stretch, to
    the byte, and `beside` the part of the chats' time in which something of the background ran."""
    return {
        name: {figure: [of(each, name) for each in rounds] for figure, of in _FIGURES.items()} for name in STRETCHES
    }


def _latency(share: float) -> Callable[[Round, str], float | None]:
    return lambda each, name: percentile([one.latency_seconds for one in each[name].chats], share)


def _first_token(each: Round, name: str) -> float | None:
    known = [one.first_token_seconds for one in each[name].chats if one.first_token_seconds is not None]
    return percentile(known, 0.5)


def _chat_tokens(each: Round, name: str) -> float | None:
    """Tokens a second of one person, while an answer is under way."""
    seconds = sum(one.latency_seconds for one in each[name].chats)
    return sum(one.tokens for one in each[name].chats) / seconds if seconds else None


def _written(each: Round, name: str) -> float | None:
    return each[name].tokens_per_s if name != ALONE else None


def _indexed(each: Round, name: str) -> float | None:
    return each[name].documents_per_s if name != ALONE else None


def _to(reference: str, of: Callable[[Round, str], float | None]) -> Callable[[Round, str], float | None]:
    def ratio(each: Round, name: str) -> float | None:
        value, base = of(each, name), of(each, reference)
        return value / base if value is not None and base else None

    return ratio


def _kept(each: Round, name: str) -> float | None:
    """Of both together: the mean of the parts that each keeps, so that neither counts for more."""
    parts = [_to(SOLO, of)(each, name) for of in (_written, _indexed)]
    known = [part for part in parts if part is not None]
    return fmean(known) if len(known) == len(parts) else None


def _same(each: Round, name: str) -> float | None:
    """Texts and vectors together; None where no answer of the one stretch has a fellow in the other."""
    one, other = each[name], each[SOLO]
    texts = [text == other.written[number] for number, text in one.written.items() if number in other.written]
    vectors = [those == other.vectors[number] for number, those in one.vectors.items() if number in other.vectors]
    return fmean([*texts, *vectors]) if texts or vectors else None


_FIGURES: Mapping[str, Callable[[Round, str], float | None]] = {
    "chat_p50_s": _latency(0.5),
    "chat_p95_s": _latency(0.95),
    "first_token_p50_s": _first_token,
    "chat_tokens_per_s": _chat_tokens,
    "chat_p50_ratio": _to(ALONE, _latency(0.5)),
    "chat_p95_ratio": _to(ALONE, _latency(0.95)),
    "tokens_ratio": _to(ALONE, _chat_tokens),
    "writer_tokens_per_s": _written,
    "documents_per_s": _indexed,
    "writer_kept": _to(SOLO, _written),
    "documents_kept": _to(SOLO, _indexed),
    "kept": _kept,
    "same": _same,
    "beside": lambda each, name: each[name].beside,
}
_HEADS = {
    "chat p50 s": "chat_p50_s",
    "p95 s": "chat_p95_s",
    "first token s": "first_token_p50_s",
    "tokens/s": "chat_tokens_per_s",
    "p50 / alone": "chat_p50_ratio",
    "p95 / alone": "chat_p95_ratio",
    "writer tokens/s": "writer_tokens_per_s",
    "documents/s": "documents_per_s",
    "kept": "kept",
    "beside chats": "beside",
    "same": "same",
}
_SPREAD = ("chat_p50_ratio", "chat_p95_ratio", "kept")
"""Shown with the lowest and the highest round."""


def table(all_figures: Mapping[str, Each]) -> str:
    """Medians of the rounds; ratios with their lowest and highest."""
    cells = {
        head: [_shown(each[key], spread=key in _SPREAD) for each in all_figures.values()]
        for head, key in _HEADS.items()
    }
    return aligned({"": list(all_figures)} | cells)


def _shown(values: Sequence[float | None], *, spread: bool) -> str:
    found = figure(values)
    if found is None:
        return "-"
    return f"{found.median:.2f}" + (f" ({found.lowest:.2f}-{found.highest:.2f})" if spread else "")


def marks(all_figures: Mapping[str, Each]) -> list[Mark]:
    """What must hold with pause. One whose evidence is missing is missed."""
    paused = all_figures[PAUSE]
    ratio, kept, same = (middle(paused[key]) for key in ("chat_p50_ratio", "kept", "same"))
    different = min((value for value in paused["same"] if value is not None), default=0.0)
    return [
        Mark(
            f"with pause, the median chat takes at most {CHAT_LIMIT} times as long as alone",
            ratio is not None and ratio <= CHAT_LIMIT,
            "not measured" if ratio is None else f"{ratio:.2f}",
        ),
        Mark(
            f"with pause, the background keeps at least {LEAST_KEPT} of its solo rate",
            kept is not None and kept >= LEAST_KEPT,
            "not measured" if kept is None else f"{kept:.2f}",
        ),
        Mark(
            "with pause, the background's texts and vectors are those of its solo run",
            same is not None and different == 1.0,
            "not measured" if same is None else f"{different:.0%} in the worst round",
        ),
    ]
