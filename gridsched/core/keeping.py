"""What persons asked for outlives the server (R7, R8): told back once at the start, and on whenever it has changed.

Owns the picture of it and its way back in. Must never judge a wish: `persons` and `leases` do, and mark that there is
something to keep (`Kept.due`). While the server goes away nothing is told: what it ends then is not over.
"""

from math import inf

from gridsched.core import leases
from gridsched.core.commands import KeepStanding
from gridsched.core.events import StandingTold
from gridsched.core.residency import Lease, ModelState
from gridsched.core.standing import Kept, KeptLease, Standing, Word
from gridsched.core.state import State


def told(state: State, event: StandingTold) -> None:
    """What was kept. A word waits for its model, a lease for the models that it displaced."""
    standing = event.standing
    state.kept = Kept(standing, {word.model: word for word in standing.words}, standing.leases)


def lay_down_word(state: State, model: ModelState) -> None:
    """A model goes, with its configuration or with the folder that it lies in: what was said of it waits for it, as it
    would if the server had been started without it."""
    word = _word(model)
    if word is not None:
        state.kept.words[model.name] = word


def take_up_word(state: State, model: ModelState) -> None:
    """A model has come, or come back: what was said of it before still holds, unless the configuration has another word
    for it since."""
    word = state.kept.words.pop(model.name, None)
    if word is None:
        return
    state.kept.due = True
    if word.configured is model.spec.pinned:
        model.pin, model.put_down, model.keeps = word.pin, word.put_down, True


def take_up_leases(state: State) -> None:
    """The models are there: leases that stood go on, those whose time has passed meanwhile end."""
    kept, state.kept.leases = state.kept.leases, ()
    for lease in kept:
        leases.resume(state, lease)
    state.kept.due = True


def tell(state: State) -> None:
    """Have it kept, where it is another than before."""
    kept = state.kept
    if not kept.due or state.draining:
        return
    kept.due = False
    now = Standing(_words(state), (*kept.leases, *(_lease(lease) for lease in state.leases.values())))
    if now != kept.told:
        kept.told = now
        state.out.append(KeepStanding(now))


def _words(state: State) -> tuple[Word, ...]:
    """In the order of the models; those whose model has not come yet are kept as they are."""
    said = [word for model in state.models.values() if (word := _word(model)) is not None]
    return tuple((state.kept.words | {word.model: word for word in said}).values())


def _word(model: ModelState) -> Word | None:
    """What a person said of it, where that is another than what is configured; an unload outlives the server whether
    or not the pin that it beats was to."""
    configured = model.configured.pinned
    pin = model.pin if model.keeps and model.pin is not configured else None
    if pin is None and not (model.put_down and configured):
        return None
    return Word(model.name, pin, model.put_down, configured)


def _lease(lease: Lease) -> KeptLease:
    until = lease.until if lease.until < inf else None
    return KeptLease(lease.device, lease.owner, lease.seconds, until, lease.process, tuple(lease.displaced))
