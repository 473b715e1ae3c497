"""Paths of other servers' own protocols, and what serves the same here. A table; pure.

A client that speaks them gets a 404 with one sentence that names the path to use: never a half-hearted imitation that
works until it matters.
"""

from collections.abc import Mapping
from typing import Final

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
