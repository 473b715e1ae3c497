"""`check_setup`: how the set-up of a running server stands, thing by thing, and what to do where one is not well.

Owns what is looked at from inside; the words are those of `findings`. Looks at what the server knows already, at its
disk, and whether the watchdog listens. Must never change anything, nor show a secret.
"""

import shutil
from collections.abc import AsyncIterator, Iterator
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final

import trio
from msgspec import Meta

from gridsched.control import findings
from gridsched.control.allowed import allowed
from gridsched.control.authority import Authority
from gridsched.control.findings import Finding, note, ok, problem
from gridsched.control.masking import masked_sentence
from gridsched.control.models import best_instance, fits
from gridsched.control.services import Place, Services
from gridsched.control.verb import Answer, Call, Nothing, Rest, Verb
from gridsched.core.snapshot import Snapshot
from gridsched.credentials import Scope
from gridsched.ports import Names
from gridsched.threads import in_thread

WATCHDOG_SECONDS: Final = 1.0
"""To wait for a watchdog on this machine. A guess: a loopback connection takes no time, a full queue does."""


class SetUp(Answer, frozen=True, kw_only=True):
    """Everything that was looked at."""

    ok: Annotated[bool, Meta(description="Whether nothing is wrong.")]
    text: str
    findings: tuple[Finding, ...]


async def _check(services: Services, _: Nothing, call: Call) -> SetUp:
    names = allowed(services.runtime.parts.catalog, call.asker.caller)
    found = [each async for each in _findings(services, names)]
    wrong = [each.about for each in found if each.state == "problem"]
    text = f"to be mended: {', '.join(dict.fromkeys(wrong))}" if wrong else "nothing is wrong"
    return SetUp(ok=not wrong, text=text, findings=tuple(found))


async def _findings(services: Services, names: Names) -> AsyncIterator[Finding]:
    """The simplest first, as the doctor has them."""
    parts, now = services.runtime.parts, services.runtime.snapshot()
    if services.hub is not None:
        yield await in_thread(partial(_disk, services.hub.shelf.folder))
    yield _keys(services.authority)
    yield _configuration(services)
    if services.place is not None:
        for each in _exposure(services.authority, services.place):
            yield each
    yield findings.engine(parts.engine.info())
    for each in _devices(services, now):
        yield each
    for each in _models(names, now):
        yield each
    if services.place is not None and services.place.watchdog_port:
        yield await _watchdog(services.place.watchdog_port)


def _disk(folder: Path) -> Finding:
    above = next(each for each in (folder, *folder.parents) if each.exists())
    try:
        return findings.disk(shutil.disk_usage(above).free, str(above))
    except OSError as error:
        return problem("disk", f"{above}: {error.strerror or error}")


def _keys(authority: Authority) -> Finding:
    if not authority.knows_keys:
        do = "mend the file (keys.json in the data directory), or move it away and make keys anew"
        return problem("keys", "the API keys cannot be read, so nobody is let in but by the admin token", do)
    if authority.has_keys:
        return ok("keys", "every request needs one")
    return findings.keys(0)


def _configuration(services: Services) -> Finding:
    reloader, configuration = services.reloader, services.configuration
    if reloader is not None and reloader.error:
        return problem("configuration", masked_sentence(reloader.error), "mend what is named; what ran before runs on")
    if reloader is not None and reloader.needs_restart:
        waiting = ", ".join(reloader.needs_restart)
        return note("configuration", f"holds only after a start of the server: {waiting}", "gridsched restart")
    return ok("configuration", str(configuration.path) if configuration is not None else "no file; all as by default")


def _exposure(authority: Authority, place: Place) -> Iterator[Finding]:
    """H6: who can reach the server, and with what."""
    if ip_address(place.host.partition("%")[0]).is_loopback:
        yield ok("exposure", f"{place.authority} is reached from this machine only")
        return
    if not authority.has_keys:
        text = f"whoever can reach {place.authority} may use the server: there are no API keys"
        yield problem("exposure", text, "gridsched keys add NAME: from the first key on everybody needs one")
    elif not place.has_tls:
        text = f"{place.authority} can be reached from other machines, whose keys and texts come unencrypted"
        yield note("exposure", text, "server: {tls: {certificate: …, key: …}}, where the network is not yours alone")
    else:
        yield ok("exposure", f"{place.authority} can be reached from other machines, encrypted and with a key")


def _devices(services: Services, now: Snapshot) -> Iterator[Finding]:
    lost = {view.name: view.lost_why for view in now.devices if view.lost_since_seconds is not None}
    for name, why in lost.items():
        yield problem("devices", f"{name} does not answer: {why}", findings.DEVICES)
    for sentence in services.runtime.parts.silent:
        yield note("devices", sentence)
    there = [info for info in services.runtime.parts.monitor.devices() if info.spec.name not in lost]
    if there or not lost:
        yield findings.devices([f"{each.spec.name} ({each.label})" for each in there])


def _models(names: Names, now: Snapshot) -> Iterator[Finding]:
    models = names.models()
    fit = {str(model.name): fits(model.spec, best_instance(now.instances, model), now) for model in models}
    bad = [name for name, word in fit.items() if word == "never" and now.devices]  # none: that has been said
    failing = [model for model in models if model.name in now.failed]
    if bad:
        yield problem("models", findings.unservable(bad), findings.MODELS)
    for model in failing:
        text = f"{model.name} does not load: {now.failed[model.name][1]}"
        yield problem("models", text, f"gridsched logs {model.name}")
    if not models:
        yield note("models", "there are none yet", "download one, or name the folders where they lie (library.dirs)")
    elif not bad and not failing:
        yield findings.models(len(models))


async def _watchdog(port: int) -> Finding:
    """Whether something listens there; what it is only its credential would tell."""
    with trio.move_on_after(WATCHDOG_SECONDS):
        try:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
        except OSError:
            pass
        else:
            await stream.aclose()
            return ok("watchdog", f"it listens on port {port}")
    do = "gridsched install-service runs it beside the server; without systemd: gridsched watchdog --run"
    return note("watchdog", f"nothing listens on port {port}: nobody would mend this server if it fails", do)


VERBS = (
    Verb(
        name="check_setup",
        summary="What is wrong with the set-up",
        description="Exposure, keys, engine, devices, models, configuration, disk and watchdog: how each stands, and"
        " what to do where it is not well. What gridsched doctor says, seen from inside.",
        scope=Scope.READ,
        takes=Nothing,
        gives=SetUp,
        act=_check,
        rest=Rest("GET", "/api/setup"),
        reads=True,
    ),
)
