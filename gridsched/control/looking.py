"""Verbs that only look: the server's status, its models, its jobs, what a load would do.

Owns their words and types; the answers are made in `status`, `inventory`, `jobs` and `plans`.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from gridsched.control.allowed import allowed
from gridsched.control.benchmarks import BenchmarkResult, Results
from gridsched.control.inventory import ModelAnswer, ModelList, inventory, one_model
from gridsched.control.jobs import OPERATION, JobAnswer, JobList, jobs, one_job, one_operation
from gridsched.control.pages import Page
from gridsched.control.plans import MOST_SLOTS, PlanAnswer, Planner
from gridsched.control.problems import LONGEST_SAID_NAME, Problem, RequestError, unknown_model
from gridsched.control.services import Services
from gridsched.control.status import Status, status
from gridsched.control.verb import Arguments, Call, Nothing, Rest, Verb
from gridsched.core.ids import JobId
from gridsched.credentials import Scope
from gridsched.ports import CatalogFamily


class OneModel(Arguments, frozen=True, kw_only=True):
    """One model."""

    model: Annotated[str, Meta(description="Any name of it.", min_length=1)]


class OneModelAnswer(ModelAnswer, frozen=True, kw_only=True):
    """One model, with what was measured of it."""

    benchmarks: Annotated[tuple[BenchmarkResult, ...], Meta(description="The newest last.")]


class OneJob(Arguments, frozen=True, kw_only=True):
    """One job."""

    job: Annotated[
        Annotated[str, Meta(min_length=1)] | int, Meta(description="The job's number, or the operation's id.")
    ]

    @property
    def name(self) -> str:
        """As a text, however it was given."""
        return str(self.job)


class PlanArguments(OneModel, frozen=True, kw_only=True):
    """What a load would do."""

    ctx: Annotated[str | None, Meta(description="Tokens of context for all slots together.")] = None
    parallel: (
        Annotated[int, Meta(description="How many slots share that context; with ctx only.", ge=1, le=MOST_SLOTS)]
        | None
    ) = None


async def _status(services: Services, _: Nothing, __: Call) -> Status:
    return status(services.runtime, services.reloader)


async def _models(services: Services, page: Page, call: Call) -> ModelList:
    return inventory(services.runtime, page, allowed(services.runtime.parts.catalog, call.asker.caller))


async def _model(services: Services, asked: OneModel, _: Call) -> OneModelAnswer:
    catalog = services.runtime.parts.catalog
    told = one_model(services.runtime, asked.model)
    if told is None:
        raise RequestError(unknown_model(asked.model, catalog.closest(asked.model)))
    found = catalog.resolve(asked.model)
    model = found.best if isinstance(found, CatalogFamily) else found
    results = Results(services).of(model) if model is not None else ()
    return OneModelAnswer(**msgspec.structs.asdict(told), benchmarks=results)


async def _plan(services: Services, asked: PlanArguments, _: Call) -> PlanAnswer:
    runtime = services.runtime
    planner = Planner(runtime.parts.catalog, runtime.adviser, runtime.outlook, runtime.parts.host)
    return await planner.plan(asked.model, asked.ctx, asked.parallel)


async def _jobs(services: Services, page: Page, _: Call) -> JobList:
    return jobs(services, page)


async def _job(services: Services, asked: OneJob, _: Call) -> JobAnswer:
    if asked.name.startswith(OPERATION):
        return one_operation(services, asked.name)
    told = await one_job(services.runtime, job_id(asked.name))
    if told is None:
        raise RequestError(Problem("not_found", f"there is no job {asked.name}, or the log has it no more"))
    return told


def job_id(text: str) -> JobId:
    """The number of a job. Raises RequestError."""
    if not text.isascii() or not text.isdigit():
        raise RequestError(Problem("not_found", f"there is no job {text[:LONGEST_SAID_NAME]}: jobs have numbers"))
    return JobId(int(text.lstrip("0")[:20] or "0"))


VERBS = (
    Verb(
        name="server_status",
        summary="How the server stands",
        description="Devices and who holds their memory, processes, queues, and who waits for what.",
        scope=Scope.READ,
        takes=Nothing,
        gives=Status,
        act=_status,
        rest=Rest("GET", "/api/status"),
        tool=True,
        reads=True,
    ),
    Verb(
        name="list_models",
        summary="The models there are",
        description="Every model with its state, and what it takes by device: estimated, and measured where it was.",
        scope=Scope.READ,
        takes=Page,
        gives=ModelList,
        act=_models,
        rest=Rest("GET", "/api/models"),
        tool=True,
        reads=True,
    ),
    Verb(
        name="get_model",
        summary="One model",
        description="One model by any of its names.",
        scope=Scope.READ,
        takes=OneModel,
        gives=OneModelAnswer,
        act=_model,
        rest=Rest("GET", "/api/models/{model}"),
        reads=True,
    ),
    Verb(
        name="plan_load",
        summary="What a load would do now",
        description="The launch there would be, who would go for it, or the refusal with its arithmetic.",
        scope=Scope.READ,
        takes=PlanArguments,
        gives=PlanAnswer,
        act=_plan,
        rest=Rest("GET", "/api/models/{model}/plan"),
        reads=True,
    ),
    Verb(
        name="list_jobs",
        summary="Who waits, and who runs",
        description="Jobs that wait, each with the rule that holds it, those that run, and loads and downloads.",
        scope=Scope.READ,
        takes=Page,
        gives=JobList,
        act=_jobs,
        rest=Rest("GET", "/api/jobs"),
        tool=True,
        reads=True,
    ),
    Verb(
        name="explain",
        summary="All about one job",
        description="What one job waits for, by rule, what is planned for it, what was decided, and how it ended.",
        scope=Scope.READ,
        takes=OneJob,
        gives=JobAnswer,
        act=_job,
        rest=Rest("GET", "/api/jobs/{job}"),
        tool=True,
        reads=True,
    ),
)
