"""Tokens of plans: whoever has seen what would come of a verb, and has one, may have it carried out.

Owns the tokens: of one use, for a few minutes, for one verb with its arguments, one caller, and one harm. Must never
know a verb.
"""

import secrets
from dataclasses import dataclass
from typing import Final

import trio

from gridsched.control.authority import Caller

VALID_SECONDS: Final = 300.0
MOST_OPEN: Final = 1000
"""Tokens that nobody has used yet; of more the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a token stands for: a verb with its arguments, who asks, and the essence of what would come of it."""

    verb: str
    arguments: object
    caller: Caller
    essence: str


class Confirmations:
    """The tokens that were given out and not used yet."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[Asked, float]] = {}

    def offer(self, asked: Asked) -> str:
        """A token for this."""
        now = trio.current_time()
        self._open = {token: offer for token, offer in self._open.items() if offer[1] > now}
        while len(self._open) >= MOST_OPEN:
            del self._open[next(iter(self._open))]
        token = secrets.token_urlsafe(18)
        self._open[token] = (asked, now + VALID_SECONDS)
        return token

    def redeem(self, token: str, asked: Asked) -> bool:
        """Whether the token stands for this. It is used up by it, unless it is somebody else's."""
        offered, until = self._open.get(token, (None, 0.0))
        if offered is None or offered.caller != asked.caller:
            return False
        del self._open[token]
        return offered == asked and until > trio.current_time()
