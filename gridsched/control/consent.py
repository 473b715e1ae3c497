"""Consent to what harms: whoever asks for it is told what would come of it, and given a token to say it again with.

Owns when a verb is carried out, when only its plan is answered, and the words of both. A token does not hold what was
planned: it is planned anew, and carried out where it would do the same harm and no other; the scheduler is told which
models may go for it, because what harms nobody now may have to wait, and harm then. Must never decide what harms: a
verb's plan says it, and a verb that destroys and has no plan always does.
"""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gridsched.control.confirm import VALID_SECONDS, Asked
from gridsched.control.problems import Problem, RequestError, invalid
from gridsched.control.services import Services
from gridsched.control.use import asked_for, shown, use
from gridsched.control.verb import Answer, Arguments, Call, Consequences, Verb
from gridsched.core.ids import ModelName

DRY_RUN: Final = "dry_run"
TOKEN: Final = "token"  # noqa: S105 - an argument's name


class Consent(Arguments, frozen=True, kw_only=True):
    """What is said beside the verb's own arguments."""

    dry_run: Annotated[bool, Meta(description="Only say what would come of it.")] = False
    token: Annotated[
        str | None, Meta(description="Of the plan that was answered before: do it, if the plan still holds.")
    ] = None


class Planned(Answer, frozen=True, kw_only=True):
    """What would come of it. Nothing has been done."""

    text: str
    plan: Consequences
    token: Annotated[str, Meta(description="Ask again with the same arguments and this to have it done.")]
    expires_s: float


def asks_first(verb: Verb) -> bool:
    """Whether a verb is carried out for an agent only once it is known to harm nobody, or was consented to."""
    return not verb.reads and (verb.plan is not None or verb.destructive)


async def consequences(services: Services, verb: Verb, arguments: Arguments, call: Call) -> Consequences:
    """What a verb would do if it were carried out now. Raises RequestError."""
    if verb.plan is not None:
        plan = await verb.plan(services, arguments, call)
        return msgspec.structs.replace(plan, essence=hashed(plan.essence))
    given = ", ".join(f"{name}={value!r}" for name, value in shown(arguments).items() if value is not None)
    text = f"{verb.name}{f' with {given}' if given else ''}: {verb.description}"
    return Consequences(text=text, harms=verb.destructive, essence=hashed(verb.name))


def hashed(essence: str) -> str:
    """As it is told: it may be made of what nobody is shown, such as the text of a configuration."""
    return sha256(essence.encode()).hexdigest()[:16]


async def use_with_consent(services: Services, verb: Verb, given: Mapping[str, object], call: Call) -> object:
    """As `use`, but what harms is done only for the token of its plan; without one the answer is that (`Planned`).
    Raises RequestError; where a token does not hold, with the plan as it is now and a new token."""
    if not asks_first(verb):
        return await use(services, verb, given, call)
    consent, own = _parted(verb, given)
    if call.asker.caller.scopes.isdisjoint(verb.scopes):
        return await use(services, verb, own, call)  # which refuses it, and has that noted
    arguments = asked_for(services, verb, own, call)
    plan = await consequences(services, verb, arguments, call)
    asked = Asked(verb.name, arguments, call.asker.caller, plan.essence)
    if not consent.dry_run:
        holds = consent.token is not None and services.confirmations.redeem(consent.token, asked)
        if holds or not plan.harms:
            may_go = tuple(ModelName(one.model) for one in plan.evicted)
            return await use(services, verb, own, replace(call, may_go=may_go))
    token = services.confirmations.offer(asked)
    if consent.token is None or consent.dry_run:
        return Planned(text=f"Not done yet. {plan.text}", plan=plan, token=token, expires_s=VALID_SECONDS)
    said = (
        "the token does not hold: it was used, is too old, or is for something else than what would come of it now."
        f" That is: {plan.text}"
    )
    raise RequestError(Problem("conflict", said, TOKEN, detail={"plan": plan, "token": token}))


def _parted(verb: Verb, given: Mapping[str, object]) -> tuple[Consent, Mapping[str, object]]:
    """What is said of consent, and the verb's own arguments. Raises RequestError."""
    said = {name: value for name, value in given.items() if name in {DRY_RUN, TOKEN}}
    try:
        consent = msgspec.convert(said, Consent)
    except msgspec.ValidationError as error:
        name = TOKEN if f"$.{TOKEN}" in str(error) else DRY_RUN
        raise invalid(f"{verb.name}: {name} is not what it may be: {error}", name) from None
    return consent, {name: value for name, value in given.items() if name not in said}
