"""Verbs about which models are loaded: load, unload, pin, unpin (R6, R7).

Owns their words and types. Must never choose who goes: the scheduler does.
"""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from gridsched.control.looking import OneModel
from gridsched.control.problems import RequestError, of_rejection, unknown_model
from gridsched.control.services import Services
from gridsched.control.verb import Call, Rest, Verb
from gridsched.core.commands import AnswerRequest
from gridsched.core.events import LoadAsked, PinAsked, UnloadAsked
from gridsched.core.ids import ModelName
from gridsched.credentials import Scope
from gridsched.ports import CatalogFamily

Told = Mapping[str, object]


class UnloadArguments(OneModel, frozen=True, kw_only=True):
    """Which model goes."""

    force: Annotated[bool, Meta(description="Break off what runs there (R2); without it running steps end first.")] = (
        False
    )


def model_named(services: Services, name: str) -> ModelName:
    """The model that any of its names means, of a family the best. Raises RequestError."""
    found = services.runtime.parts.catalog.resolve(name)
    model = found.best if isinstance(found, CatalogFamily) else found
    if model is None:
        raise RequestError(unknown_model(name, services.runtime.parts.catalog.closest(name)))
    return model.name


def told_of(answer: AnswerRequest) -> Told:
    """What the scheduler answers to a wish. Raises RequestError for a refusal."""
    if answer.rejection is not None:
        raise RequestError(of_rejection(answer.rejection))
    return answer.detail


async def _load(services: Services, asked: OneModel, call: Call) -> Told:
    name = model_named(services, asked.model)
    call.tell(0, None, f"loading {name}")
    return told_of(await services.runtime.wishes.ask(lambda request: LoadAsked(request, name)))


async def _unload(services: Services, asked: UnloadArguments, call: Call) -> Told:
    name = model_named(services, asked.model)
    call.tell(0, None, f"unloading {name}")
    return told_of(await services.runtime.wishes.ask(lambda request: UnloadAsked(request, name, asked.force)))


async def _pin(services: Services, asked: OneModel, _: Call) -> Told:
    name = model_named(services, asked.model)
    return told_of(await services.runtime.wishes.ask(lambda request: PinAsked(request, name, pinned=True)))


async def _unpin(services: Services, asked: OneModel, _: Call) -> Told:
    name = model_named(services, asked.model)
    return told_of(await services.runtime.wishes.ask(lambda request: PinAsked(request, name, pinned=False)))


VERBS = (
    Verb(
        name="load_model",
        summary="Load a model",
        description="Load a model as for a person: cold models go for it before hot ones, pinned ones never.",
        scope=Scope.RESIDENCY,
        takes=OneModel,
        gives=Told,
        act=_load,
        rest=Rest("POST", "/api/models/{model}/load"),
        tool=True,
        destructive=True,
        idempotent=True,
        long=True,
    ),
    Verb(
        name="unload_model",
        summary="Unload a model",
        description="Have a model go when its running steps have ended. A pinned one stays down until it is loaded.",
        scope=Scope.RESIDENCY,
        takes=UnloadArguments,
        gives=Told,
        act=_unload,
        rest=Rest("POST", "/api/models/{model}/unload"),
        tool=True,
        destructive=True,
        idempotent=True,
        long=True,
    ),
    Verb(
        name="pin_model",
        summary="Keep a model loaded",
        description="Load it, and load it again whenever it is down (R7). It is never evicted.",
        scope=Scope.RESIDENCY,
        takes=OneModel,
        gives=Told,
        act=_pin,
        rest=Rest("POST", "/api/models/{model}/pin"),
        tool=True,
        idempotent=True,
    ),
    Verb(
        name="unpin_model",
        summary="Let a model go like any other",
        description="It stays loaded as long as nothing else needs its place.",
        scope=Scope.RESIDENCY,
        takes=OneModel,
        gives=Told,
        act=_unpin,
        rest=Rest("POST", "/api/models/{model}/unpin"),
        tool=True,
        idempotent=True,
    ),
)
