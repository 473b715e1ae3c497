"""The one place where an error becomes a status, headers and an OpenAI-shaped body.

Owns the table of codes. Everything that goes wrong with a request ends here as a `Problem`: what a client got wrong,
what the scheduler refuses, what the engine did. Must never decide whether something is wrong.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from gridsched.control.remedies import may_help_again, what_to_do, whole_seconds
from gridsched.core.commands import Rejection
from gridsched.core.job import Outcome, OutcomeKind

Header = tuple[bytes, bytes]

STATUS: Mapping[str, int] = {
    "invalid_request": 400,
    "invalid_class": 400,
    "invalid_image_url": 400,
    "model_not_supported": 400,
    "invalid_api_key": 401,
    "cross_origin": 403,
    "hub_forbidden": 403,
    "insufficient_scope": 403,
    "remote_admin_requires_credential": 403,
    "model_not_found": 404,
    "not_found": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "conflict": 409,
    "length_required": 411,
    "request_too_large": 413,
    "unsupported_media_type": 415,
    "config_invalid": 422,
    "key_concurrency": 429,
    "queue_full": 429,
    "too_many_attempts": 429,
    "internal": 500,
    "unload_unverified": 500,
    "hub_error": 502,
    "nan_embedding": 502,
    "upstream_error": 502,
    "cancelled": 502,
    "queue_timeout": 503,
    "not_resident": 503,
    "model_failed": 503,
    "model_unavailable": 503,
    "draining": 503,
    "starting": 503,
    "hub_unavailable": 503,
    "storage_unavailable": 503,
    "gpu_unavailable": 503,
    "insufficient_storage": 507,
    "insufficient_vram": 507,
}
"""The contract's table: the status of each code."""

_TYPES: Mapping[int, str] = {403: "permission_error", 429: "rate_limit_error"}
_FIRST_SERVER_ERROR = 500
_ENDS_THE_CONNECTION = frozenset({"draining", "length_required", "request_timeout"})
"""The client's next request is for another server, or what follows on the connection may be no request."""

LONGEST_SAID_NAME = 200
"""A client's string is said back to it no longer than this."""
LONGEST_SENTENCE = 1000
"""What is wrong with a request may quote keys and words of it that have any length."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One error as a client sees it. `detail` becomes `error.gridsched`; `headers` are added to those of the answer."""

    code: str
    message: str
    param: str | None = None
    retry_after_seconds: float | None = None
    detail: Mapping[str, object] = field(default_factory=dict)
    headers: tuple[Header, ...] = ()
    passed_status: int | None = None  # an engine's own status, where that is passed on
    passed_body: bytes | None = None  # an engine's own body

    @property
    def status(self) -> int:
        """The HTTP status."""
        return STATUS[self.code] if self.passed_status is None else self.passed_status

    def body(self) -> bytes:
        """The JSON body, on one line."""
        if self.passed_body is not None:
            return self.passed_body
        return msgspec.json.encode({"error": self.error()}, enc_hook=plain)

    def error(self) -> Mapping[str, object]:
        """What is under `error` of the body."""
        return {
            "message": self.message,
            "type": self._type(),
            "param": self.param,
            "code": self.code,
            "gridsched": self._told(),
        }

    def head(self) -> list[Header]:
        """The headers that belong to the error: when to try again, or that trying again is of no use."""
        headers = [(b"content-type", b"application/json"), *self.headers]
        if self.retry_after_seconds is not None:
            headers.append((b"retry-after", b"%d" % whole_seconds(self.retry_after_seconds)))
        again = may_help_again(self.code, self.detail, self.retry_after_seconds)
        headers.append((b"x-should-retry", b"true" if again else b"false"))
        if self.code in _ENDS_THE_CONNECTION:
            headers.append((b"connection", b"close"))
        return headers

    def _told(self) -> Mapping[str, object]:
        """The detail, with what to do about an error that is the server's."""
        do = what_to_do(self.code, self.detail) if self.status >= _FIRST_SERVER_ERROR else None
        return self.detail if do is None else {**self.detail, "do": do}

    def _type(self) -> str:
        known = _TYPES.get(self.status)
        return known or ("server_error" if self.status >= _FIRST_SERVER_ERROR else "invalid_request_error")


def plain(value: object) -> object:
    """What JSON has no word for, as something it has: any mapping as an object, the rest as its text."""
    return dict(value) if isinstance(value, Mapping) else str(value)


class RequestError(Exception):
    """Door 1's and door 2's failure: the request is wrong, or cannot be served by what there is."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def invalid(
    message: str, param: str | None = None, code: str = "invalid_request", detail: Mapping[str, object] | None = None
) -> RequestError:
    """A request that is wrong in itself."""
    if len(message) > LONGEST_SENTENCE:
        message = message[:LONGEST_SENTENCE] + "…"
    return RequestError(Problem(code, message, param, detail=detail or {}))


def unknown_model(name: str, closest: tuple[str, ...], also: str = "") -> Problem:
    """H5: a 404 that names the closest ids; `also` is one more sentence, with its space in front."""
    if len(name) > LONGEST_SAID_NAME:
        name = name[:LONGEST_SAID_NAME] + "…"
    hint = f" Did you mean {', '.join(closest)}?" if closest else " GET /v1/models lists those there are."
    return Problem("model_not_found", f"there is no model {name!r}.{hint}{also}", "model", detail={"closest": closest})


def of_rejection(rejection: Rejection) -> Problem:
    """What the scheduler refuses. The codes are the contract's own words."""
    detail = {"retry_after_s": rejection.retry_after_seconds, **rejection.detail}
    param = "model" if rejection.code.value == "model_not_found" else None
    return Problem(rejection.code.value, rejection.message, param, rejection.retry_after_seconds, detail)


def of_outcome(outcome: Outcome, model: str, log_tail: tuple[str, ...]) -> Problem:
    """A step that the engine did not finish (P5, P7, S9)."""
    said = {
        OutcomeKind.ENGINE_DIED: f"the engine that served {model} broke its answer off",
        OutcomeKind.STALLED: f"the engine that served {model} sent nothing for too long and is restarted",
    }
    message = said.get(outcome.kind, f"the engine that served {model} did not finish")
    return Problem("upstream_error", message, detail={"log_tail": log_tail})
