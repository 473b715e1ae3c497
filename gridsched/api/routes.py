"""The routes of the data plane that become jobs: what each asks of a model, and how its body begins. A table; pure.

Owns which paths belong to the data plane. Everything else about a route follows from its row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gridsched.core.job import JobKind
from gridsched.ports import Capability


@dataclass(frozen=True, slots=True)
class Route:
    """One `POST` route. `needs` is what the model must be able to do, None where any will do. `required` is the member
    that the engine could not do without and how its value may begin; `streams`: whether `stream` is heard."""

    path: str
    kind: JobKind
    needs: Capability | None
    required: tuple[str, str] | None
    streams: bool = False


_ALL = (
    Route("/v1/chat/completions", JobKind.CHAT, Capability.CHAT, ("messages", "["), streams=True),
    Route("/v1/completions", JobKind.COMPLETION, Capability.COMPLETION, ("prompt", '"['), streams=True),
    Route("/v1/embeddings", JobKind.EMBEDDINGS, Capability.EMBEDDING, ("input", '"[')),
)

ROUTES: Final[Mapping[str, Route]] = {route.path: route for route in _ALL}


def in_data_plane(path: str) -> bool:
    """Whether a path is answered by the data plane, be it with a 404."""
    return path in ROUTES or path == "/v1" or path.startswith("/v1/")
