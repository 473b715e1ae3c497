"""The verb that ends a job or an operation before its time.

Owns who may end what: whoever has the scope `residency` any job, a key that may only ask models its own, and an
operation whoever may start one. Must never tell a client: its handler does, with the code `cancelled`.
"""

from typing import Annotated

from msgspec import Meta

from gridsched.control.allowed import is_there
from gridsched.control.jobs import OPERATION, find_operation
from gridsched.control.looking import OneJob, job_id
from gridsched.control.operations import Operation, State
from gridsched.control.problems import Problem, RequestError
from gridsched.control.services import Services
from gridsched.control.use import MODEL, need
from gridsched.control.verb import Answer, Call, Consequences, Rest, Verb
from gridsched.core.job import Job
from gridsched.credentials import Scope


class Cancelled(Answer, frozen=True, kw_only=True):
    """What has been told to end."""

    id: str
    state: Annotated[str, Meta(description="cancelled.")]
    text: str


def _job(services: Services, name: str, call: Call) -> Job:
    """A living job that the caller may end. Raises RequestError."""
    number = job_id(name)
    job = services.runtime.desk.job(number)
    if job is None:
        if 0 < number <= services.runtime.desk.last_id:
            raise RequestError(Problem("conflict", f"job {number} is over"))
        raise RequestError(Problem("not_found", f"there is no job {number}"))
    caller = call.asker.caller
    if Scope.RESIDENCY not in caller.scopes and job.key != caller.key:
        message = f"the key {caller.key} may end its own jobs alone, for it lacks the scope residency"
        raise RequestError(Problem("insufficient_scope", message))
    if job.key != caller.key:
        _refuse_others(services, str(job.model), call)
    return job


def _operation(services: Services, name: str, call: Call) -> Operation:
    """A running operation that the caller may end. Raises RequestError."""
    found = find_operation(services, name)
    need(services, (found.needs,), call)
    if isinstance(model := found.arguments.get(MODEL), str):
        _refuse_others(services, model, call)
    if found.state is not State.RUNNING:
        raise RequestError(Problem("conflict", f"{found.verb} ({found.id}) is {found.state.value}"))
    return found


def _refuse_others(services: Services, model: str, call: Call) -> None:
    """Raises RequestError where a key is for some models, and this is none of them."""
    caller = call.asker.caller
    if not is_there(services.runtime.parts.catalog, caller, model):
        message = f"the key {caller.key} is for other models, and may end its own jobs and what is done with those"
        raise RequestError(Problem("insufficient_scope", message))


async def _cancel(services: Services, asked: OneJob, call: Call) -> Cancelled:
    if asked.name.startswith(OPERATION):
        operation = _operation(services, asked.name, call)
        services.operations.cancel(operation)
        return Cancelled(id=operation.id, state="cancelled", text=f"{operation.verb} ends")
    job = _job(services, asked.name, call)
    services.runtime.desk.cancel(job.id)
    return Cancelled(id=str(job.id), state="cancelled", text=f"job {job.id} ends, and its client is told so")


async def _plan(services: Services, asked: OneJob, call: Call) -> Consequences:
    if asked.name.startswith(OPERATION):
        operation = _operation(services, asked.name, call)
        text = f"{operation.verb} ({operation.id}) would end before it is done: {operation.text or 'it has just begun'}"
        return Consequences(text=text, harms=True, essence=operation.id)
    job = _job(services, asked.name, call)
    text = f"job {job.id} ({job.kind.value} for {job.model}) would end, and its client would get an error"
    return Consequences(text=text, harms=True, essence=str(job.id))


VERBS = (
    Verb(
        name="cancel_job",
        summary="End a job, or a long operation",
        description=(
            "A job that waits leaves its queue; of one that runs the engine's connection is closed. Its client gets an"
            " error with the code cancelled."
        ),
        scope=Scope.RESIDENCY,
        own_scope=Scope.INFERENCE,
        takes=OneJob,
        gives=Cancelled,
        act=_cancel,
        rest=Rest("DELETE", "/api/jobs/{job}"),
        tool=True,
        destructive=True,
        plan=_plan,
    ),
)
