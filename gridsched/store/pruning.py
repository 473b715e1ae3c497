"""Which kept measurements are of no more use, each with the reason that a person is told (L2).

Owns the reasons. Looks at files only for whether they are there; deletes nothing itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gridsched.ports import Account, LaunchFacts

DAY_SECONDS = 24 * 3600.0
ABSENT_DAYS = 30
"""How long what belongs to another engine or card is kept: builds are rolled back, cards are lent. A guess."""

UNUSED_DAYS = 365
"""How long anything is kept that is not loaded. A guess."""


@dataclass(frozen=True, slots=True)
class Known:
    """What there is now: fingerprints by path of the files that are served, this engine's build, the cards."""

    fingerprints: Mapping[str, str]
    engine_build: str
    devices: frozenset[str]


def reason_to_forget(account: Account | None, kept_at: float, known: Known, now: float) -> str | None:
    """Why a measurement that was last used at `kept_at` is forgotten at `now`, both in seconds since the epoch; None
    for one that is kept."""
    days = (now - kept_at) / DAY_SECONDS
    if days > UNUSED_DAYS:
        return f"not loaded for {UNUSED_DAYS} days"
    if account is None:
        return None
    return _unlike(account.facts, known) or (_absent(account.facts, known) if days > ABSENT_DAYS else None)


def _unlike(facts: LaunchFacts, known: Known) -> str | None:
    """The file is another, or none."""
    served = known.fingerprints.get(facts.path)
    if served is not None:
        same = facts.fingerprint.partition("\n")[0] == served  # what goes with a model may go with it again
        return None if same else f"{facts.path} has changed"
    return f"{facts.path} is gone" if _is_gone(Path(facts.path)) else None


def _absent(facts: LaunchFacts, known: Known) -> str | None:
    """What it was measured with is not here."""
    if facts.engine_build != known.engine_build:
        return f"the engine {facts.engine_build} was not used for {ABSENT_DAYS} days"
    absent = sorted(set(facts.devices) - known.devices)
    return f"the device {', '.join(absent)} was not there for {ABSENT_DAYS} days" if absent else None


def _is_gone(path: Path) -> bool:
    """A file whose folder is not there either may be on a disk that is not mounted."""
    try:
        return path.parent.is_dir() and not path.exists()
    except (OSError, ValueError):
        return False
