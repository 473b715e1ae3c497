"""What is said of a path that is not served, or not so: the usual slips, and other servers' own paths.

A table and the sentences for it; pure.

A client that speaks them gets a 404 with one sentence that names the path to use: never a half-hearted imitation that
works until it matters.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from gridsched.control.problems import Problem

_CHAT, _COMPLETIONS, _EMBEDDINGS, _MODELS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models"

_OLLAMA: Final[Mapping[str, str]] = {
    "/api/chat": _CHAT,
    "/api/generate": _COMPLETIONS,
    "/api/embed": _EMBEDDINGS,
    "/api/embeddings": _EMBEDDINGS,
    "/api/tags": _MODELS,
    "/api/show": _MODELS,
    "/api/ps": "/api/status",
    "/api/version": "/health",
    "/api/pull": _MODELS,
    "/api/push": _MODELS,
    "/api/create": _MODELS,
    "/api/copy": _MODELS,
    "/api/delete": _MODELS,
}
_LM_STUDIO: Final[Mapping[str, str]] = {
    "/api/v1/chat": _CHAT,
    "/api/v1/chat/completions": _CHAT,
    "/api/v1/completions": _COMPLETIONS,
    "/api/v1/embeddings": _EMBEDDINGS,
    "/api/v0/chat/completions": _CHAT,
    "/api/v0/completions": _COMPLETIONS,
    "/api/v0/embeddings": _EMBEDDINGS,
}
_ENGINE: Final[Mapping[str, str]] = {
    "/completion": _COMPLETIONS,
    "/completions": _COMPLETIONS,
    "/chat/completions": _CHAT,
    "/embedding": _EMBEDDINGS,
    "/embeddings": _EMBEDDINGS,
    "/models": _MODELS,
    "/rerank": "/v1/rerank",
    "/reranking": "/v1/rerank",
    "/v1/reranking": "/v1/rerank",
    "/props": _MODELS,
    "/slots": "/api/status",
}
_BLOBS, _LM_STUDIO_NEWER = "/api/blobs/", "/api/v1/"


def instead(path: str) -> tuple[str, str] | None:
    """Whose path it is, and the one to use here; None where it is nobody's."""
    if path in _OLLAMA or path.startswith(_BLOBS):
        return "Ollama's own API", _OLLAMA.get(path, _MODELS)
    if path in _LM_STUDIO or path.startswith(_LM_STUDIO_NEWER):
        return "LM Studio's own API", _LM_STUDIO.get(path, _MODELS)
    if path in _ENGINE:
        return "the engine's own API", _ENGINE[path]
    return None


def not_found(path: str) -> Problem:
    """H5: there is no such route. One of another server's own protocol is told what to use."""
    other = instead(path)
    if other is None:
        return Problem("not_found", f"there is nothing at {path}{_hint(path)}")
    whose, use = other
    return Problem("not_found", f"{path} is of {whose}, which is not spoken here: use {use}.", detail={"use": use})


def _hint(path: str) -> str:
    """What a client that is almost right has to change: the usual slips with a base URL."""
    if path.startswith("/v1/v1/"):
        return ": this client's base URL goes without /v1, which it adds itself"
    if path.rstrip("/") in {"", "/v1"}:
        return (
            ": clients ask /v1/chat/completions and its like, /v1/models lists models, /health says how the server is"
        )
    plain_path = "/" + "/".join(filter(None, path.split("/")))
    return f", which has a slash more than {plain_path}" if path != plain_path else ""


def method_not_allowed(method: str, path: str, allowed: Iterable[str]) -> Problem:
    """The route is there, for other methods."""
    names = ", ".join(allowed)
    return Problem(
        "method_not_allowed", f"{path} takes {names}, not {method}{_hint(path)}", headers=((b"allow", names.encode()),)
    )
