"""Door 2: a request becomes a job with a seat at the desk, and its answer finds its way back to the client.

Owns resolving the model and the class, and the life of one exchange: submit, await, run, answer. Leaving the `with`
block of the seat, also by cancellation when the client has gone, closes the job (door 8). Must never decide when a job
runs, and never look into a body beyond what door 1 has read.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf

import trio

from gridsched.api import embeddings
from gridsched.api.abilities import check, meant
from gridsched.api.body import beside
from gridsched.api.decode import CLASS_WORDS, InferenceRequest, decode
from gridsched.api.exchange import Exchange, send_problem
from gridsched.api.images import Images, Link, links_of
from gridsched.api.judged import Judged
from gridsched.api.keep import MAX_TTL_SECONDS
from gridsched.api.media import media_of
from gridsched.api.members import BadBody
from gridsched.api.reply import PlainReply, Reply
from gridsched.api.routes import Route
from gridsched.api.seat import CLIENT_CLOSED, House, Seat, Tally
from gridsched.api.several import HTTP_OK, ONE, parted, parts_of
from gridsched.api.sse import EventStream
from gridsched.api.virtual import shaped
from gridsched.control.allowed import allowed
from gridsched.control.authority import Caller
from gridsched.control.problems import Problem, RequestError, invalid, unknown_model
from gridsched.core.ids import JobId
from gridsched.core.job import NO_MEDIA, Job, JobClass, JobKind, Medium, OutcomeKind
from gridsched.core.record import record
from gridsched.engine.patience import Timer, patience
from gridsched.ports import CatalogFamily, CatalogModel, CatalogVirtual

DEFAULT_MODEL = "default"
INTERNAL = 500
COME_TO_NOTHING = (OutcomeKind.ENGINE_DIED, OutcomeKind.DEVICE_FAULT, OutcomeKind.ABORTED)
CANCELLED = Problem("cancelled", "a person has cancelled this job")
ENDED_BY_THE_ENGINE = (OutcomeKind.DONE, OutcomeKind.DEVICE_FAULT)


@record
class Asked:
    """What a request means: the model or family that serves it, its class and the one before its key lowered it, and
    the virtual model that it was asked under, if it was one."""

    model: CatalogModel | CatalogFamily
    job_class: JobClass
    wanted_class: JobClass
    virtual: CatalogVirtual | None

    @property
    def ttl_seconds(self) -> float | None:
        """How long the virtual model wants its base kept (R6)."""
        kept = self.virtual.entry.idle_ttl_seconds if self.virtual is not None else None
        return min(kept, MAX_TTL_SECONDS) if kept is not None else None


class Inference:
    """Serves the data plane."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._images = Images(lambda: house.settings, house.resolve)

    async def serve(
        self,
        exchange: Exchange,
        route: Route,
        submitted: Callable[[JobId], None] = lambda job: None,  # noqa: ARG005 - nobody asked
    ) -> bool:
        """Answer one request; `submitted` is told its job. False: the answer was cut off and its connection must be
        broken."""
        trace = self._house.tracer.begin(exchange.path, exchange.headers, exchange.request_id)
        tally = Tally(trio.current_time(), trace=trace)
        try:
            return await self._serve(exchange, route, tally, submitted)
        except (RequestError, BadBody) as error:
            problem = error.problem if isinstance(error, RequestError) else invalid(str(error)).problem
            tally.code = problem.status
            trace.failed(problem.code)
            await send_problem(exchange, problem)
            return True
        except Exception:
            tally.code = INTERNAL
            raise
        finally:
            seconds = trio.current_time() - tally.began
            self._house.observer.request_ended(
                tally.job_class, tally.model, exchange.path, tally.code, seconds, job=tally.job, trace_id=trace.id
            )
            trace.ended(tally.code if tally.code != CLIENT_CLOSED else None)

    async def _serve(self, exchange: Exchange, route: Route, tally: Tally, submitted: Callable[[JobId], None]) -> bool:
        request, links, media = await _read(route, exchange)
        asked = await self._resolve(request, media, exchange.caller)
        tally.model, tally.job_class = asked.model.name, asked.job_class.label
        plan, parts, size = None, ONE, len(exchange.body)
        if route.kind is JobKind.EMBEDDINGS:
            chunk = self._house.settings.embedding_chunk
            plan = await beside(size, partial(embeddings.plan, request, asked.model.name, chunk))
        else:
            parts = await beside(size, partial(parts_of, request))
        edits = await self._images.put_in(request, links)  # members that go up with another value than they came with
        if asked.virtual is not None:
            edits = await beside(size, partial(shaped, asked.virtual.entry, request, edits))
        bodies = parts.bodies(edits)
        job = self._job(request, asked, media, exchange.caller, steps=len(plan.chunks if plan else bodies))
        with self._house.runtime.desk.submit(job) as ticket:
            tally.job = job.id
            submitted(job.id)
            tally.trace.meant(job, streamed=request.stream)
            seat = Seat(self._house, exchange, ticket, tally, asked.wanted_class)
            stream = _events(seat, request) if request.stream and plan is None else None
            reply = stream or PlainReply(exchange, seat.headers())
            with self._house.until_cut_off():
                if plan is not None:
                    return await embeddings.answer(seat, plan)
                several = parted(Judged(reply), parts, stream=stream is not None)
                if stream is None:
                    return await _converse(seat, *several, request, bodies)
                return await _accompany(stream, seat.house.stop, partial(_converse, seat, *several, request, bodies))
            problem = Problem("draining", "the server is shutting down and could not finish this answer")
            tally.code = problem.status
            tally.trace.failed(problem.code)
            return await reply.refuse(problem)
        tally.code = CANCELLED.status
        tally.trace.failed(CANCELLED.code)
        return await reply.refuse(CANCELLED)

    async def _resolve(self, request: InferenceRequest, media: frozenset[Medium], caller: Caller) -> Asked:
        """What is asked for. Raises RequestError: 404, 503 or 400, before anything is loaded."""
        asked = request.model or DEFAULT_MODEL
        catalog = allowed(self._house.runtime.parts.catalog, caller)
        suffix_class = None
        found, virtual = meant(catalog, asked, request.route)
        if found is None and "@" in asked:  # an exact name wins over a suffix
            name, _, suffix = asked.rpartition("@")
            suffix_class = CLASS_WORDS.get(suffix.lower())
            if suffix_class is not None:
                found, virtual = meant(catalog, name.strip() or DEFAULT_MODEL, request.route)
        if found is None:
            in_front = asked.rpartition("@")[0].strip()
            is_almost = suffix_class is None and in_front and meant(catalog, in_front, request.route)[0] is not None
            also = f" What follows an @ is a class: {', '.join(CLASS_WORDS)}." if is_almost else ""
            raise RequestError(unknown_model(asked, catalog.closest(asked), also))
        if isinstance(found, CatalogModel) and await self._is_another(found):
            found = self._house.runtime.parts.catalog.resolve(found.name) or found
        model = _servable(found)
        check(catalog, found, request.route, media)
        default_class = virtual.entry.default_class if virtual is not None else None
        by_request = (request.job_class, suffix_class, request.tier_class)
        given = (*by_request, caller.default_class, default_class, model.default_class)
        wanted = next((one for one in given if one is not None), JobClass.INTERACTIVE)
        used = max(wanted, caller.highest_class or JobClass.INTERACTIVE)  # the lower of the two
        return Asked(found, used, wanted, virtual)

    async def _is_another(self, model: CatalogModel) -> bool:
        """Whether what could not be served, or fails to load, has been mended on the disk since it was read."""
        runtime = self._house.runtime
        return await (runtime.look_again if model.spec is None else runtime.look_at_failed)(model.name)

    def _job(
        self, request: InferenceRequest, asked: Asked, media: frozenset[Medium], caller: Caller, steps: int
    ) -> Job:
        return Job(
            id=self._house.runtime.desk.new_id(),
            model=asked.model.name,
            job_class=asked.job_class,
            kind=request.route.kind,
            steps=steps,
            max_wait_seconds=request.max_wait_seconds,
            warm_only=request.warm_only,
            no_evict=request.no_evict,
            key=caller.key,
            queue_share=caller.queue_share,
            ttl_seconds=request.ttl_seconds or asked.ttl_seconds,
            quality=request.quality,
            media=media,
        )


def _servable(found: CatalogModel | CatalogFamily) -> CatalogModel:
    """The model itself, or the best of a family: what it can do is what may be asked. Raises RequestError: 503."""
    if isinstance(found, CatalogFamily):
        best = found.best
        if best is None:
            message = f"{found.name} cannot be served: none of its models can"
            raise RequestError(Problem("model_unavailable", message, "model"))
        return best
    if found.unavailable is not None or found.spec is None:
        message = f"{found.name} cannot be served: {found.unavailable or 'it has no way to be launched'}"
        raise RequestError(Problem("model_unavailable", message, "model"))
    return found


_Read = tuple[InferenceRequest, tuple[Link, ...], frozenset[Medium]]


async def _read(route: Route, exchange: Exchange) -> _Read:
    """Door 1, the images by URL, and what comes beside text. Raises RequestError."""

    def read() -> _Read:
        request = decode(route, exchange.headers, exchange.body)
        links = links_of(request)
        return request, links, media_of(request) | ({Medium.IMAGE} if links else NO_MEDIA)

    return await beside(len(exchange.body), read)


def _events(seat: Seat, request: InferenceRequest) -> EventStream:
    figures = seat.house.settings
    comments = figures.comments if request.comments is None else request.comments
    return EventStream(
        seat.exchange,
        seat.headers(),
        seat.say if comments else None,
        hold_seconds=figures.hold_seconds,
        comment_seconds=figures.comment_seconds,
        dialect=request.route.dialect,
    )


async def _accompany(stream: EventStream, stop: trio.Event, answer: Callable[[], Awaitable[bool]]) -> bool:
    """Answer as a stream. A second task writes a comment line when one is due, and there is none until then."""
    silence = patience()
    async with trio.open_nursery() as nursery:

        async def beat() -> None:
            await stream.beat()
            timer.due = stream.beats_at()
            silence.hurry(timer)

        def ring() -> None:
            timer.due = stream.beats_at()
            if timer.due <= trio.current_time():
                timer.due = inf
                if not stop.is_set():
                    nursery.start_soon(beat)

        timer = Timer(ring)
        timer.due = stream.beats_at()
        silence.add(timer)
        try:
            whole = await answer()
        finally:
            silence.drop(timer)
        nursery.cancel_scope.cancel()
    return whole


async def _converse(
    seat: Seat,
    reply: Reply,
    part_over: Callable[[], None],
    request: InferenceRequest,
    bodies: Sequence[Mapping[str, bytes]],
) -> bool:
    """Run the job's steps, which is mostly one; each again if its engine died (P5), its device failed (D13) or a chat
    took it away (S11) before a byte of its answer went out."""
    done = 0
    try:
        while True:
            grant = await seat.grant()
            reply.decided(seat.headers())
            if isinstance(grant, Problem):
                whole = await reply.refuse(grant)
                break
            body = request.upstream_body(grant.model, bodies[done])
            outcome = await seat.run(grant, body, reply, request.content_type)
            if outcome.answered and reply.begun_at is None:
                outcome = replace(outcome, answered=False)
            if outcome.kind in COME_TO_NOTHING and not outcome.answered:
                seat.ticket.step_ended(outcome, settled=outcome.kind is not OutcomeKind.ABORTED)
                continue
            if outcome.kind is OutcomeKind.DONE and reply.status == HTTP_OK and done + 1 < len(bodies):
                done += 1
                part_over()
                seat.ticket.step_ended(outcome)
                continue
            seat.ticket.end(outcome)
            if outcome.kind in ENDED_BY_THE_ENGINE:
                whole = await reply.finish()
            else:
                whole = await reply.refuse(seat.broken(grant, outcome))
            break
    finally:
        seat.began_answering(reply.begun_at)
    seat.tally.code = reply.status
    return whole
