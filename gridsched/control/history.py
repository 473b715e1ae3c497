"""What became of one job, read from the lines that the decision log has about it: also of a run before.

Owns what lines mean for a job: its waits with the rules that held it, its steps, its end. Must never guess: what no
line says is null.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime
from operator import itemgetter
from typing import Annotated, Final

from msgspec import Meta

from gridsched.control.verb import Answer
from gridsched.core import words
from gridsched.runtime.decisions import Line

ENDS: Final = {"complete": "completed", "cancel": "cancelled", "reject": "refused"}
LOST: Final = "lost"
"""How a job ended that the server did not outlive."""

Seconds = Annotated[float, Meta(description="Seconds.")]
Time = Annotated[str | None, Meta(description="RFC 3339; null where no line is kept that says it.")]


class Wait(Answer, frozen=True, kw_only=True):
    """How long a job waited once one rule held it; which others did before the end no line says."""

    rule: Annotated[str, Meta(description="What held it when it came to wait.")]
    why: Annotated[str | None, Meta(description="The same in words, of the longest of these waits.")]
    seconds: Seconds
    waits: Annotated[int, Meta(description="How many steps waited so.")]


class History(Answer, frozen=True, kw_only=True):
    """A job from its arrival to its end, as far as that has come."""

    arrived: Time
    granted: Annotated[Time, Meta(description="When its first step was.")]
    ended: Time
    outcome: Annotated[
        str | None,
        Meta(description="complete, cancel, reject; lost where the server ended before it; null while it lives."),
    ]
    rule: Annotated[str | None, Meta(description="By which rule it was refused or cancelled.")]
    code: Annotated[str | None, Meta(description="Of a refusal, as its client was told.")]
    waited_s: Annotated[float, Meta(description="For all of its steps, and for what it did not get.")]
    held: Annotated[tuple[Wait, ...], Meta(description="By which rules, the longest wait first.")]
    ran_s: Annotated[float, Meta(description="All of its steps.")]
    steps_done: int
    steps: int | None
    devices: Annotated[tuple[str, ...], Meta(description="Where it ran.")]


def history_of(lines: Sequence[Line], *, lives: bool) -> History:
    """What the lines about one job say, oldest first; some, at least."""
    first, last = lines[0], lines[-1]
    granted = [line for line in lines if line["event"] == "dispatch"]
    ran = [line for line in lines if line["event"] in ("step", "complete", "cancel") and "ms" in line]
    end = last if last["event"] in ENDS else None
    held = _waits(granted, end, lines)
    return History(
        arrived=first["time"] if first["event"] in ("enqueue", "reject") else None,
        granted=granted[0]["time"] if granted else None,
        ended=end["time"] if end is not None else None,
        outcome=end["event"] if end is not None else None if lives else LOST,
        rule=end.get("rule") if end is not None else None,
        code=end.get("code") if end is not None else None,
        waited_s=round(sum(wait.seconds for wait in held), 3),
        held=held,
        ran_s=round(sum(float(line["ms"]) for line in ran) / 1000, 3),
        steps_done=sum("outcome" not in line for line in ran),
        steps=last.get("steps"),
        devices=tuple(dict.fromkeys(line["device"] for line in granted if "device" in line)),
    )


def _waits(granted: Sequence[Line], end: Line | None, lines: Sequence[Line]) -> tuple[Wait, ...]:
    """How long which rule held it: of each step that did not begin at once, and of the one that never did."""
    seconds, times = defaultdict[str, float](float), Counter[str]()
    longest = dict[str, tuple[float, str | None]]()

    def note(rule: str, why: str | None, waited: float) -> None:
        seconds[rule] += waited
        times[rule] += 1
        longest[rule] = max(longest.get(rule, (0.0, None)), (waited, why), key=lambda each: each[0])

    for line in granted:
        if waited := float(line.get("queue_ms", 0.0)) / 1000:
            note(str(line.get("held") or line.get("rule", "")), line.get("why"), waited)
    if end is not None and len(lines) > 1 and lines[-2]["event"] in ("enqueue", "step"):
        waited = _at(end) - _at(lines[-2])
        if waited > 0 and "ms" not in end:
            note(str(end.get("held") or end.get("rule", "")), end.get("why"), waited)
    return tuple(
        Wait(rule=rule, why=longest[rule][1], seconds=round(waited, 3), waits=times[rule])
        for rule, waited in sorted(seconds.items(), key=itemgetter(1), reverse=True)
    )


def sentence(told: History) -> str:
    """How a job that is over ended: `completed; waited 3.4s, most of it begun by S6c (loading m); ran 0.1s`."""
    if told.outcome == LOST:
        text = "lost: the server ended before it"
    else:
        text = ENDS[told.outcome or ""] + (f" with {told.code} by {told.rule}" if told.code else "")
    parts = [text]
    if told.held:
        most = told.held[0]
        why = f" ({most.why})" if most.why else ""
        parts.append(f"waited {words.duration(told.waited_s)}, most of it begun by {most.rule}{why}")
    if told.granted is not None:
        of = f" of {told.steps}" if told.steps is not None and told.steps != told.steps_done else ""
        steps = f" in {told.steps_done}{of} steps" if told.steps != 1 else ""
        parts.append(f"ran {words.duration(told.ran_s)}{steps}")
    return "; ".join(parts)


def _at(line: Line) -> float:
    return datetime.fromisoformat(str(line["time"])).timestamp()
