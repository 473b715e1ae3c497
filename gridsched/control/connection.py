"""`connection_info`: where and how models are asked, for whoever has come to manage them. Never says a secret.

Owns its words and types.
"""

import re
from collections.abc import Mapping
from ipaddress import ip_address

from gridsched.control.allowed import allowed
from gridsched.control.services import Place, Services
from gridsched.control.verb import Answer, Asker, Call, Nothing, Rest, Verb
from gridsched.core.job import JobClass
from gridsched.credentials import Scope
from gridsched.ports import Names

_HOST = re.compile(rb"[A-Za-z0-9.\-]{1,253}(:\d{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:\d{1,5})?")

REQUEST_HEADERS: Mapping[str, str] = {
    "X-Class": "how urgent it is: one of classes; without it the key's, the model's, else interactive",
    "X-Max-Wait-Ms": "refuse with 503 when no answer has begun after so many milliseconds",
    "X-Request-Id": "your name for the request; it comes back",
}
ANSWER_HEADERS: Mapping[str, str] = {
    "X-Gridsched-Job-Id": "the job, for explain and cancel_job",
    "X-Gridsched-Class": "the class that it had",
    "X-Gridsched-Model": "the model that answers",
    "X-Gridsched-Queue-Ms": "how long it waited",
}


class Watchdog(Answer, frozen=True, kw_only=True):
    """The recovery sidecar on the server's machine."""

    url: str
    credential: str


class Connection(Answer, frozen=True, kw_only=True):
    """How to reach what there is. `wants_key`: every request must show an API key. `scopes`: what the asker may."""

    text: str
    openai_base_url: str
    anthropic_base_url: str
    mcp_url: str
    management_url: str
    openapi_url: str
    wants_key: bool
    key_headers: tuple[str, ...]
    classes: tuple[str, ...]
    request_headers: Mapping[str, str]
    answer_headers: Mapping[str, str]
    default_model: str | None
    watchdog: Watchdog | None
    scopes: tuple[Scope, ...]


async def _info(services: Services, _: Nothing, call: Call) -> Connection:
    base = _base(services.place, call.asker)
    wants_key = services.authority.has_keys
    key = " with an API key" if wants_key else ""
    return Connection(
        text=f"Ask models at {base}/v1 with any OpenAI client, or at {base} with an Anthropic one{key}.",
        openai_base_url=f"{base}/v1",
        anthropic_base_url=base,
        mcp_url=f"{base}/mcp",
        management_url=f"{base}/api",
        openapi_url=f"{base}/api/openapi.json",
        wants_key=wants_key,
        key_headers=("Authorization: Bearer KEY", "x-api-key: KEY"),
        classes=tuple(job_class.label for job_class in JobClass),
        request_headers=REQUEST_HEADERS,
        answer_headers=ANSWER_HEADERS,
        default_model=_default_model(allowed(services.runtime.parts.catalog, call.asker.caller)),
        watchdog=_watchdog(services.place),
        scopes=tuple(scope for scope in Scope if scope in call.asker.caller.scopes),
    )


def _base(place: Place | None, asker: Asker) -> str:
    """The server's address as whoever asks has reached it, which is one that he can reach."""
    scheme = "https" if place is not None and place.has_tls and not _is_here(asker.address) else "http"
    host = asker.headers.get(b"host", b"").strip()
    if _HOST.fullmatch(host):
        return f"{scheme}://{host.decode('ascii')}"
    return f"{scheme}://{place.authority if place is not None else '127.0.0.1:1234'}"


def _is_here(address: str) -> bool:
    """Whether somebody is on this machine, where plain HTTP is spoken whatever is spoken with others."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return True


def _default_model(names: Names) -> str | None:
    found = names.resolve("default")
    return found.name if found is not None else None


def _watchdog(place: Place | None) -> Watchdog | None:
    if place is None or not place.watchdog_port:
        return None
    where = f"http://127.0.0.1:{place.watchdog_port}/mcp"
    credential = f"Authorization: Bearer TOKEN, which is in {place.watchdog_token} on the server's machine"
    return Watchdog(url=where, credential=credential)


VERBS = (
    Verb(
        name="connection_info",
        summary="Where and how models are asked",
        description="Base URLs for OpenAI and Anthropic clients, headers, classes, whether a key is wanted, the"
        " default model, and where the recovery sidecar is. Inference is there and not among these tools.",
        scope=Scope.READ,
        takes=Nothing,
        gives=Connection,
        act=_info,
        rest=Rest("GET", "/api/connection"),
        tool=True,
        reads=True,
    ),
)
