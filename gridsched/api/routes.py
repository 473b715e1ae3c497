"""The routes of the data plane that become jobs: what each asks of a model, and how its body begins. A table; pure.

Owns which paths belong to the data plane. Everything else about a route follows from its row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gridsched.api.dialects import Dialect
from gridsched.core.job import JobKind
from gridsched.ports import Capability


@dataclass(frozen=True, slots=True)
class Shape:
    """How a member's value may begin, under whichever of its `names` it comes. `needed`: the engine cannot do without
    it; `filled`: nor with an empty one."""

    names: tuple[str, ...]
    beginnings: str
    needed: bool = True
    filled: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """One `POST` route. `needs` is what the model must be able to do, None where any will do.

    `shapes` are those of the members that an engine fails on. `streams`: whether `stream` is heard; `dialect`: how its
    errors are told; `form`: its body is one, with a file.
    """

    path: str
    kind: JobKind
    needs: Capability | None
    shapes: tuple[Shape, ...] = ()
    streams: bool = False
    dialect: Dialect = Dialect.OPENAI
    form: bool = False


_TEXT, _LIST, _EITHER = '"', "[", '"['
_MESSAGES = (Shape(("messages",), _LIST),)

_ALL = (
    Route("/v1/chat/completions", JobKind.CHAT, Capability.CHAT, _MESSAGES, streams=True),
    Route("/v1/completions", JobKind.COMPLETION, Capability.COMPLETION, (Shape(("prompt",), _EITHER),), streams=True),
    Route("/v1/embeddings", JobKind.EMBEDDINGS, Capability.EMBEDDING, (Shape(("input",), _EITHER),)),
    Route(
        "/v1/responses",
        JobKind.RESPONSES,
        Capability.CHAT,
        (Shape(("input",), _EITHER),),
        streams=True,
        dialect=Dialect.RESPONSES,
    ),
    Route("/v1/messages", JobKind.MESSAGES, Capability.CHAT, _MESSAGES, streams=True, dialect=Dialect.MESSAGES),
    Route("/v1/messages/count_tokens", JobKind.COUNT_TOKENS, Capability.CHAT, _MESSAGES, dialect=Dialect.MESSAGES),
    Route(
        "/v1/rerank",
        JobKind.RERANK,
        Capability.RERANK,
        (Shape(("query",), _TEXT), Shape(("documents", "texts"), _LIST, filled=True)),
    ),
    Route("/v1/audio/transcriptions", JobKind.TRANSCRIPTION, Capability.AUDIO, streams=True, form=True),
    Route("/tokenize", JobKind.TOKENIZE, None, (Shape(("content",), _EITHER, needed=False),)),
    Route("/detokenize", JobKind.DETOKENIZE, None, (Shape(("tokens",), _LIST, needed=False),)),
    Route("/apply-template", JobKind.TEMPLATE, None, _MESSAGES),
    Route(
        "/infill",
        JobKind.INFILL,
        Capability.COMPLETION,
        (Shape(("input_prefix",), _TEXT), Shape(("input_suffix",), _TEXT), Shape(("prompt",), _TEXT, needed=False)),
        streams=True,
    ),
)

MODELS, MIRROR = "/v1/models", "/api/v0/models"
"""The lists of models: OpenAI's, which is Anthropic's too, and LM Studio's."""

ROUTES: Final[Mapping[str, Route]] = {route.path: route for route in _ALL}


def in_data_plane(path: str) -> bool:
    """Whether a path is answered by the data plane, be it with a 404."""
    return path in ROUTES or path == "/v1" or path.startswith("/v1/") or listed_under(path) is not None


def listed_under(path: str) -> str | None:
    """The list of models that a path is, or is of; None for any other path."""
    return next((each for each in (MODELS, MIRROR) if path == each or path.startswith(each + "/")), None)


def dialect_of(path: str) -> Dialect:
    """How errors at a path are told, whether there is a route or not."""
    return Dialect.MESSAGES if path == "/v1/messages" or path.startswith("/v1/messages/") else Dialect.OPENAI
