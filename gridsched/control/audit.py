"""Who has changed what, and from where: a row for every use of a verb that changes something, and every refused one.

Owns what a row says, and that no secret is in one. `use` notes what comes by a verb; what comes by a signal or a file
is noted by whoever hears of it. Must never hold anybody up, and never be what a change fails by.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from gridsched.control.asker import Asker
from gridsched.control.masking import LONGEST_KEPT, is_deep, masked, masked_sentence
from gridsched.control.operations import Operation
from gridsched.control.problems import Problem
from gridsched.ports import Clock
from gridsched.store.journal import Journal

FILE: Final = "audit.jsonl"
MOST_ITEMS = 1000

REFUSED_AN_HOUR = 60
"""Refused attempts of one caller that get rows of their own: whoever is refused all day must not push out what was
done. The row after them counts the others. Whoever shows no credential that is known is one caller, from however many
addresses: half a megabyte a day, of the sixteen that are kept."""

HOUR_SECONDS = 3600.0
_TEXT: Final = "text"
"""The argument that is a whole file: it is not written down."""


@dataclass(slots=True)
class _Attempts:
    """Refused attempts of one caller: when an hour of them began, how many it had, how many have no row."""

    began_at: float
    count: int = 0
    unsaid: int = 0


class Audit:
    """The rows of one server, kept in a journal."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._attempts: dict[str, _Attempts] = {}

    @property
    def journal(self) -> Journal:
        """Where they are."""
        return self._journal

    def note(
        self,
        verb: str,
        arguments: Mapping[str, object],
        asker: Asker,
        outcome: str,
        problem: Problem | None = None,
        operation: str | None = None,
    ) -> None:
        """Write one row. `problem` says why it was refused, or has failed."""
        who = asker.who
        others = self._others_refused(who, refused=outcome == "refused")
        if others is None:
            return
        row: dict[str, object] = {
            "time": _rfc3339(self._clock.wall_seconds()),
            "verb": masked_sentence(verb)[:LONGEST_KEPT],
            "arguments": _kept(arguments),
            "who": who,
            "address": asker.address,
            "via": asker.via,
            "request_id": asker.request_id[:LONGEST_KEPT],
            "outcome": outcome,
        }
        if problem is not None:
            row |= {"code": problem.code, "message": masked_sentence(problem.message)[:LONGEST_KEPT]}
        if operation is not None:
            row["operation"] = operation
        if others:
            row["others_refused"] = others
        self._journal.write(row)

    def _others_refused(self, caller: str, *, refused: bool) -> int | None:
        """How many of this caller's attempts have had no row before this one; None where this one has none either."""
        now = self._clock.awake_seconds()
        if caller not in self._attempts and not refused:
            return 0
        known = self._attempts.setdefault(caller, _Attempts(now))
        if now - known.began_at >= HOUR_SECONDS:
            known.began_at, known.count = now, 0
        if refused:
            known.count += 1
            if known.count > REFUSED_AN_HOUR:
                known.unsaid += 1
                return None
        unsaid, known.unsaid = known.unsaid, 0
        return unsaid

    def note_end(self, operation: Operation, asker: Asker) -> None:
        """An operation is over."""
        self.note(operation.verb, operation.arguments, asker, operation.state.value, operation.problem, operation.id)


def _kept(arguments: Mapping[str, object]) -> Mapping[str, object]:
    """Arguments as a row has them: no secret, no whole file, no endless text."""
    if is_deep(arguments):
        return dict.fromkeys(list(arguments)[:MOST_ITEMS], "nested too deeply")
    told = {name: _short(masked(value, name)) for name, value in arguments.items() if name != _TEXT}
    text = arguments.get(_TEXT)
    return told if text is None else {**told, _TEXT: f"{len(str(text))} characters"}


def _short(value: object) -> object:
    match value:
        case Mapping():
            return {str(key)[:LONGEST_KEPT]: _short(each) for key, each in list(value.items())[:MOST_ITEMS]}
        case list():
            return [_short(each) for each in value[:MOST_ITEMS]]
    return value[:LONGEST_KEPT] if isinstance(value, str) else value


def _rfc3339(wall_seconds: float) -> str:
    return datetime.fromtimestamp(wall_seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
