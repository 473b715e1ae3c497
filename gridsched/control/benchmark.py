"""How fast a model is here, and how many slots of it are worth running: measured, on devices that nobody else uses.

Owns who must not be disturbed, the leases, and what is kept. Each set of devices is measured under a lease of its own:
the scheduler drains what runs there, keeps every load off, and brings back what was displaced when the lease ends. The
process itself is no instance of the scheduler's (`runtime.bench` says why), so no client is ever given it, and nothing
that it does counts as use of the model or as a request. Must never run while a person is in a conversation there, and
stops when one begins.
"""

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Annotated, cast

import trio
from msgspec import Meta

from gridsched.control.bench_places import ONE_SLOT, busy_reason, evicted, on_host, placements
from gridsched.control.benchmarks import BenchmarkResult, Results
from gridsched.control.looking import OneModel
from gridsched.control.problems import Problem, RequestError, of_rejection
from gridsched.control.residency import model_named
from gridsched.control.services import Services
from gridsched.control.speed import weights_read
from gridsched.control.verb import Answer, Call, Consequences, Rest, Verb
from gridsched.core.events import LeaseAsked, LeaseReleased
from gridsched.core.ids import DeviceName
from gridsched.core.instance import InstanceState
from gridsched.core.job import JobClass
from gridsched.core.model import LaunchOption
from gridsched.core.standing import OwnerProcess
from gridsched.credentials import Scope
from gridsched.engine.identity import ProcessId
from gridsched.ports import CatalogModel, Launch
from gridsched.runtime.bench import LEVELS, Bench, BenchFailed, LevelFound, recommended
from gridsched.runtime.decisions import Line
from gridsched.runtime.dispatch import tell_served
from gridsched.store.benchmarks import Benchmark, Level

LONGEST_SECONDS = 600.0
"""Of one set of devices, from its lease to its end. The lease ends a little later by itself, whatever goes wrong."""

BACK_SECONDS = 5.0
"""How long the end of a lease is waited for."""

USUAL_SECONDS = 40.0
"""What measuring one set of devices takes beside the load, for the plan. A guess."""


class BenchmarkArguments(OneModel, frozen=True, kw_only=True):
    """What is measured, and where."""

    devices: Annotated[
        Annotated[tuple[str, ...], Meta(max_length=16)] | None,
        Meta(description="Only on these devices together; without them each way to place it that differs."),
    ] = None


class BenchmarkAnswer(Answer, frozen=True, kw_only=True):
    """What was found."""

    model: str
    slots_worth_running: int
    results: tuple[BenchmarkResult, ...]
    notes: tuple[str, ...]


async def _benchmark(services: Services, asked: BenchmarkArguments, call: Call) -> BenchmarkAnswer:
    model = _model(services, asked.model)
    if services.benches.turn.locked():
        raise RequestError(Problem("conflict", "another benchmark runs: one at a time"))
    async with services.benches.of(model.name):
        await _as_planned(services, model)
        chosen = await placements(services, model, asked.devices)
        notes, done, total = [], 0, len(chosen)
        for option in chosen:
            why = busy_reason(services, model, option.devices)
            if why is not None:
                if total == 1:
                    raise RequestError(Problem("conflict", f"no benchmark now: {why}", retry_after_seconds=60.0))
                notes.append(f"{' + '.join(option.devices)} was left out: {why}")
                continue
            await _measure(services, model, option, _Progress(call, done, total))
            done += 1
        if not done:
            raise RequestError(Problem("conflict", f"no benchmark now: {'; '.join(notes)}", retry_after_seconds=60.0))
    results = tuple(each for each in Results(services).of(model) if not each.stale)
    best = max((each.recommended_slots for each in results), default=1)
    return BenchmarkAnswer(model=model.name, slots_worth_running=best, results=results, notes=tuple(notes))


async def _refuse(services: Services, asked: BenchmarkArguments, call: Call) -> None:
    """Raises RequestError where it would be refused now."""
    if services.benches.turn.locked():
        raise RequestError(Problem("conflict", "another benchmark runs: one at a time"))
    await _plan(services, asked, call)


async def _plan(services: Services, asked: BenchmarkArguments, _: Call) -> Consequences:
    """Who would have to go for it. Raises RequestError where it would be refused."""
    model = _model(services, asked.model)
    chosen = await placements(services, model, asked.devices)
    usable = [option for option in chosen if busy_reason(services, model, option.devices) is None]
    if not usable:
        why = busy_reason(services, model, chosen[0].devices)
        raise RequestError(Problem("conflict", f"no benchmark now: {why}", retry_after_seconds=60.0))
    devices = sorted({device for option in usable for device in option.devices})
    gone = tuple(evicted(services.runtime.snapshot(), frozenset(devices)))
    spec = model.spec
    seconds = len(usable) * (USUAL_SECONDS + (spec.load_seconds if spec is not None else 0.0))
    text = f"{', '.join(devices)} would be kept from all other work for about {seconds:.0f} s"
    if gone:
        text += f", and {', '.join(each.model for each in gone)} would be unloaded and loaded again afterwards"
    waiting = services.runtime.jobs().waiting
    return Consequences(
        text=text,
        harms=bool(gone or waiting),
        evicted=gone,
        waiting_jobs=tuple(job.id for job in waiting),
        seconds=seconds,
        essence=f"benchmark {model.name} on {','.join(devices)}: {','.join(sorted(each.model for each in gone))}",
    )


def _model(services: Services, name: str) -> CatalogModel:
    """The model that is meant, if it can be measured. Raises RequestError."""
    named = model_named(services, name)
    model = next(each for each in services.runtime.parts.catalog.models() if each.name == named)
    if model.spec is None:
        raise RequestError(Problem("model_unavailable", f"{named} cannot be served: {model.unavailable}", "model"))
    return model


async def _as_planned(services: Services, model: CatalogModel) -> None:
    """Nothing is started whose files are others than it was planned with. Raises RequestError."""
    catalog = services.runtime.parts.catalog
    changed = await catalog.renew(model.name)
    if changed is not None:
        tell_served(catalog, services.runtime.post)
        raise RequestError(Problem("conflict", f"{changed}; ask again"))


class _Progress:
    """What is told of a benchmark of so many sets of devices."""

    def __init__(self, call: Call, at: int, of: int) -> None:
        self._call = call
        self._steps = len(LEVELS) + 3
        self._done = at * self._steps
        self._total = of * self._steps

    def step(self, text: str) -> None:
        """What begins now."""
        self._call.tell(self._done, self._total, text)
        self._done += 1


async def _measure(services: Services, model: CatalogModel, option: LaunchOption, progress: _Progress) -> None:
    """One set of devices, under its lease; its result is kept. Raises RequestError, also when a chat arrives."""
    on = " + ".join(option.devices)
    since = services.runtime.log.last_seq
    result: Benchmark | None = None
    problem = Problem("conflict", f"stopped: {on} was not measured within {LONGEST_SECONDS:.0f} s")
    with trio.move_on_after(LONGEST_SECONDS):
        async with trio.open_nursery() as nursery:

            async def give_way() -> None:
                nonlocal problem
                await _chat_arrives(services, option.devices, since)
                problem = Problem("conflict", f"stopped: a person's chat has come and goes first; {on} is given back")
                nursery.cancel_scope.cancel()

            nursery.start_soon(give_way)
            try:
                progress.step(f"{on}: waiting until it is free")
                async with _leased(services, model, option):
                    progress.step(f"{on}: loading {model.name}")
                    result = await _measured(services, model, option, progress, nursery)
            except RequestError as error:
                problem = error.problem
            nursery.cancel_scope.cancel()
    if result is None:
        raise RequestError(problem)
    await services.benchmarks.keep(result)


async def _chat_arrives(services: Services, devices: tuple[DeviceName, ...], since: int) -> None:
    """Return when a person asks, since that line of the log, for what these devices may be needed for: anything but a
    model that is ready on others. The processor is needed by all."""
    log = services.runtime.log
    alone = not on_host(services, devices)
    async with aclosing(cast("AsyncGenerator[tuple[int, Line], None]", log.follow(since))) as lines:
        async for _, line in lines:
            if line["event"] == "enqueue" and line.get("class") == JobClass.INTERACTIVE.label:
                now = services.runtime.snapshot()
                ready = [
                    one for one in now.instances if one.model == line["model"] and one.state is InstanceState.READY
                ]
                if not (alone and any(not set(one.devices) & set(devices) for one in ready)):
                    return


@asynccontextmanager
async def _leased(services: Services, model: CatalogModel, option: LaunchOption) -> AsyncIterator[None]:
    """The devices for us alone. Raises RequestError where somebody else has one."""
    wishes, owner = services.runtime.wishes, f"a benchmark of {model.name}"
    seconds = LONGEST_SECONDS + BACK_SECONDS
    ours = ProcessId.of(os.getpid())  # with which it ends: it is nobody's in a server that is started after this one
    process = OwnerProcess(ours.pid, ours.start_ticks, ours.boot_id) if ours is not None else None
    answer = await wishes.ask(
        lambda request: LeaseAsked(request, option.devices, owner, seconds, process), withdrawn=True
    )
    if answer.rejection is not None:
        raise RequestError(of_rejection(answer.rejection))
    try:
        yield
    finally:
        with trio.move_on_after(BACK_SECONDS, shield=True):
            for device in option.devices:
                await wishes.ask(partial(LeaseReleased, device=device))


async def _measured(
    services: Services, model: CatalogModel, option: LaunchOption, progress: _Progress, nursery: trio.Nursery
) -> Benchmark:
    """What a process of the model does there; `nursery` has its life. Raises RequestError."""
    parts = services.runtime.parts
    _model(services, model.name)  # it may have gone while the lease was waited for
    launch = parts.catalog.launch(model.name, option)
    levels: tuple[LevelFound, ...] = ()
    inputs: float | None = None
    try:
        async with Bench.started(parts.engine, parts.upstream, services.benches.number(), launch, nursery) as bench:
            if model.capabilities & ONE_SLOT:
                inputs = await bench.inputs_per_second(progress.step)
            else:
                levels = await bench.levels(progress.step)
    except BenchFailed as failed:
        raise RequestError(_problem(model, failed)) from None
    return _result(services, model, launch, levels, inputs)


def _result(
    services: Services,
    model: CatalogModel,
    launch: Launch,
    levels: tuple[LevelFound, ...],
    inputs: float | None,
) -> Benchmark:
    """What is kept of it."""
    parts, option = services.runtime.parts, launch.option
    facts = launch.facts
    known = {info.spec.name: info for info in parts.monitor.devices()}
    return Benchmark(
        model=str(model.name),
        path=facts.path if facts is not None else str(launch.path),
        fingerprint=facts.fingerprint if facts is not None else "",
        engine_build=facts.engine_build if facts is not None else "",
        devices=tuple(map(str, option.devices)),
        identities=tuple(known[name].identity for name in option.devices),
        option_key=option.key,
        ctx_per_slot=option.ctx_size // option.parallel,
        parallel=option.parallel,
        cache_types=option.cache_types,
        levels=tuple(
            Level(
                streams=each.streams,
                tokens_per_s=each.tokens_per_second,
                total_tokens_per_s=each.total_tokens_per_second,
                first_token_s=each.first_token_seconds,
            )
            for each in levels
        ),
        recommended_slots=recommended(levels),
        inputs_per_s=inputs,
        read_bytes=weights_read(model, option),
        at=parts.clock.wall_seconds(),
    )


def _problem(model: CatalogModel, failed: BenchFailed) -> Problem:
    """Why there is no result."""
    failure = failed.failure
    if failure is None:
        return Problem("upstream_error", f"the benchmark of {model.name} has failed: {failed}")
    detail = {"cause": failure.cause.value, "log_tail": list(failure.log_tail)}
    return Problem("model_failed", f"{model.name} failed ({failure.cause.value}): {failure.message}", detail=detail)


VERBS = (
    Verb(
        name="benchmark_model",
        summary="Measure how fast a model is, and how many slots are worth running",
        description=(
            "Tokens a second and time to first token at 1, 2, 4 and 8 answers at once, by the engine's own clock, on "
            "each kind of placement. Takes the devices for itself for about a minute; refused while a person is in a "
            "conversation there, and stopped when one begins."
        ),
        scope=Scope.ADMIN,
        takes=BenchmarkArguments,
        gives=BenchmarkAnswer,
        act=_benchmark,
        rest=Rest("POST", "/api/models/{model}/benchmark"),
        tool=True,
        destructive=True,
        long=True,
        plan=_plan,
        refuse=_refuse,
    ),
)
