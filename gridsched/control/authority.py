"""Who asks, and what that allows (H6): the admin token, API keys, and callers of this machine where there are no keys.

Owns the credentials while the server runs, and how many requests of each key are open. A secret comes in with a request
and is compared as its digest, with all there are, so that how long it takes tells nothing about any of them. Must never
keep a secret, say one, or let anybody in because keys could not be read.
"""

import hmac
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from gridsched.control.attempts import Attempts
from gridsched.control.problems import Header, Problem, RequestError
from gridsched.core.job import JobClass
from gridsched.credentials import ApiKey, Scope

__all__ = ["ANYBODY", "NOBODY", "Authority", "Caller", "Scope"]

CHALLENGE: Final[tuple[Header, ...]] = ((b"www-authenticate", b"Bearer"),)
KEY_HEADERS = (b"x-api-key", b"api-key")
"""What clients send in place of `Authorization: Bearer`: Anthropic's SDK, and Azure's."""

CONCURRENCY_RETRY_SECONDS = 1.0
"""When a key that has all its requests open may ask again. A guess: nobody knows when one of them ends."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what that allows. `key` is the API key's name, "" without keys. `default_class` is for those that
    name none, `highest_class` the best that may be asked for. `models` are the names that may be asked for, empty for
    all. `concurrency` bounds the requests that are open at once, `queue_share` the part of a class's queue that may be
    taken (0 to 1); None for no bound."""

    scopes: frozenset[Scope]
    key: str = ""
    default_class: JobClass | None = None
    highest_class: JobClass | None = None
    models: tuple[str, ...] = ()
    concurrency: int | None = None
    queue_share: float | None = None


ANYBODY: Final = Caller(frozenset({Scope.INFERENCE, Scope.READ, Scope.RESIDENCY}))
"""A caller from this machine where no keys are configured."""

NOBODY: Final = Caller(frozenset())
"""Whoever asks what needs no credential."""

_ADMIN: Final = Caller(frozenset(Scope))


class Authority:
    """Knows the credentials. Without an admin token nobody has that one's rights."""

    def __init__(self, admin_token: str = "", keys: Sequence[ApiKey] | None = (), *, insecure: bool = False) -> None:
        """`insecure`: callers of other machines need no key either, as long as there are none."""
        self._admin = [(sha256(admin_token.encode()).digest(), _ADMIN)] if admin_token else []
        self._open: Counter[str] = Counter()
        self._attempts = Attempts()
        self.insecure = insecure
        self.keep(keys)

    def keep(self, keys: Sequence[ApiKey] | None) -> None:
        """These are the keys from now on; requests that are open may finish, but those that follow the log. None: they
        are not known, and nobody is let in but by the admin token."""
        self._readable = keys is not None
        self._known = [*self._admin, *((bytes.fromhex(key.sha256), _caller(key)) for key in keys or ())]

    @property
    def has_keys(self) -> bool:
        """Whether everybody must show one; so it is where they could not be read."""
        return not self._readable or len(self._known) > len(self._admin)

    @property
    def lets_all_in(self) -> bool:
        """Whether callers of other machines need no key."""
        return self.insecure and not self.has_keys

    def identify(
        self, headers: Mapping[bytes, bytes], *, here: bool, address: str = "", now: float = 0.0
    ) -> Caller | Problem:
        """Who asks, or a 401; a 429 for an address that has shown too many wrong credentials by `now` (seconds of a
        clock that does not go back). `here`: whether the request comes from this machine, whose callers are always
        looked at: somebody's program with a wrong key must not lock out who is to mend it."""
        digests = [sha256(secret).digest() for secret in _secrets(headers)]
        wait_seconds = 0.0 if here or not digests else self._attempts.wait_seconds(address, digests, now)
        if wait_seconds:
            return _too_many(wait_seconds)
        for digest in digests:
            known = self._caller_by(digest)
            if known is not None:
                self._attempts.succeeded(address, digest)
                return known
        if self.has_keys and digests:
            self._attempts.failed(address, now)
        return self._without_credential(headers, here=here)

    def _without_credential(self, headers: Mapping[bytes, bytes], *, here: bool) -> Caller | Problem:
        if not self._readable:
            return _unknown("this server cannot read its API keys, so it takes none; its log says what is wrong")
        if self.has_keys:
            said = "this API key is not known here" if _is_said(headers) else "this server wants an API key"
            return _unknown(f"{said}; show one as Authorization: Bearer KEY or x-api-key: KEY")
        if here or self.insecure:
            return ANYBODY
        return _unknown(
            "this server has no API keys, and without one serves only callers on its own machine; make a key there:"
            " gridsched keys add NAME"
        )

    def lasting(self, caller: Caller, headers: Mapping[bytes, bytes]) -> Callable[[], bool]:
        """For what has no end of its own: asks, as often as one likes, if the caller who was let in with these headers
        would be let in now. He is looked at again only when the keys have become others; such as cannot be read tell
        nothing about him."""
        digests, known = [sha256(secret).digest() for secret in _secrets(headers)], self._known
        is_let_in = True

        def lasts() -> bool:
            nonlocal known, is_let_in
            if self._readable and known is not self._known:
                known = self._known
                found = ANYBODY if not self.has_keys else None
                is_let_in = caller == next(filter(None, map(self._caller_by, digests)), found)
            return is_let_in

        return lasts

    @property
    def knows_keys(self) -> bool:
        """Whether the keys could be read."""
        return self._readable

    def named(self, key: str) -> Caller | Problem:
        """Who asked models by this key, for what is done for him later; "" is a caller without one. Or why that is done
        no longer: the key was revoked, or made anew with other scopes."""
        caller = ANYBODY if not key else next((caller for _, caller in self._known if caller.key == key), None)
        if caller is None:
            return Problem("invalid_api_key", f"the API key {key} has been revoked")
        return self.refuse(caller, (Scope.INFERENCE,), {}) or caller

    def _caller_by(self, digest: bytes) -> Caller | None:
        """Looks at all of them, whichever it is."""
        found = None
        for own, caller in self._known:
            if hmac.compare_digest(own, digest):
                found = caller
        return found

    def refuse(
        self,
        caller: Caller,
        needed: Collection[Scope],
        headers: Mapping[bytes, bytes],
        *,
        address: str = "",
        now: float = 0.0,
    ) -> Problem | None:
        """The refusal of what needs one of these scopes, or None for a caller who has one. Clients of servers without
        keys show made-up ones; only where the admin token is asked for has a wrong one failed."""
        if not caller.scopes.isdisjoint(needed):
            return None
        if caller is NOBODY:
            return _unknown("this needs a credential, as Authorization: Bearer KEY")
        if caller is not ANYBODY:
            has = ", ".join(scope.value for scope in Scope if scope in caller.scopes)
            wants = " or ".join(scope.value for scope in Scope if scope in needed)
            message = f"the key {caller.key} lacks the scope for this: it needs {wants}, and has {has}"
            return Problem("insufficient_scope", message)
        if not self._admin:
            return Problem(
                "remote_admin_requires_credential",
                "this server has no admin token: it keeps no data directory, or could not write there",
            )
        if _is_said(headers):
            self._attempts.failed(address, now)
            return _unknown("this is not the server's admin token")
        return Problem(
            "remote_admin_requires_credential",
            "this needs the admin token, as Authorization: Bearer TOKEN; gridsched's own commands on the server's"
            " machine find it in the data directory (admin.token)",
        )

    @contextmanager
    def opened(self, caller: Caller) -> Iterator[None]:
        """A request of this caller is open for the length of the block, the reading of its body included: that bounds
        what a key takes of the memory. Raises RequestError (429) where it has as many as it may."""
        count = self._open[caller.key]
        if caller.concurrency is not None and count >= caller.concurrency:
            requests = "request" if count == 1 else "requests"
            message = f"the key {caller.key} has {count} {requests} open, of {caller.concurrency} at once"
            detail = {"open": count, "concurrency": caller.concurrency, "retry_after_s": CONCURRENCY_RETRY_SECONDS}
            raise RequestError(Problem("key_concurrency", message, None, CONCURRENCY_RETRY_SECONDS, detail))
        self._open[caller.key] = count + 1
        try:
            yield
        finally:
            self._open[caller.key] -= 1
            if not self._open[caller.key]:
                del self._open[caller.key]


def _caller(key: ApiKey) -> Caller:
    return Caller(
        frozenset(key.scopes),
        key.name,
        key.default_class,
        key.highest_class,
        key.models,
        key.concurrency,
        key.queue_share,
    )


def _secrets(headers: Mapping[bytes, bytes]) -> Iterator[bytes]:
    """What the request shows. Clients may send several, with something made up in the one that they do not use."""
    words = headers.get(b"authorization", b"").split(None, 1)
    if len(words) > 1 and words[0].lower() == b"bearer":
        yield words[1].strip()
    for name in KEY_HEADERS:
        if secret := headers.get(name, b"").strip():
            yield secret


def _is_said(headers: Mapping[bytes, bytes]) -> bool:
    return any(name in headers for name in (b"authorization", *KEY_HEADERS))


def _too_many(wait_seconds: float) -> Problem:
    message = "too many wrong credentials have come from this address; none is looked at for a while"
    return Problem("too_many_attempts", message, retry_after_seconds=wait_seconds)


def _unknown(message: str) -> Problem:
    return Problem("invalid_api_key", message, headers=CHALLENGE)
