"""Who uses a verb, and through which door. Owns this vocabulary."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gridsched.control.authority import ANYBODY, NOBODY, Caller
from gridsched.credentials import Scope


@dataclass(frozen=True, slots=True)
class Asker:
    """Who uses a verb, what he may, and for the audit log where from (`address`), through which door (`via`: rest, mcp,
    signal, file) and by which request. Of the `headers` only the credential is looked at, to word a refusal."""

    caller: Caller
    address: str = ""
    via: str = "rest"
    request_id: str = ""
    headers: Mapping[bytes, bytes] = field(default_factory=dict)

    @property
    def who(self) -> str:
        """Whose credential was shown."""
        if self.caller.key:
            return f"key {self.caller.key}"
        if self.via in {"signal", "file"}:
            return "whoever runs this machine"
        if self.caller == NOBODY:
            return "nobody"
        return "anybody on this machine" if self.caller == ANYBODY else "admin token"


def by_hand(via: str) -> Asker:
    """Who changes something without a request: by a signal, or a file."""
    return Asker(Caller(frozenset(Scope)), via=via)
