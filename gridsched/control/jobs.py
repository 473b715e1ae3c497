"""`GET /api/jobs` and `/api/jobs/{id}`: who waits and why, who runs, and all that is known of one job (S9b).

Owns the shape of the answers. Must never find a reason itself: every word of it is the scheduler's.
"""

from collections.abc import Mapping, Sequence

from gridsched.core import words
from gridsched.core.ids import JobId
from gridsched.core.snapshot import Explanation, PlanView, RunningView, VictimView, WaitingView
from gridsched.runtime.decisions import line_of
from gridsched.runtime.runtime import Runtime


def jobs(runtime: Runtime) -> dict[str, object]:
    """All living jobs."""
    now = runtime.jobs()
    return {"waiting": [waiting(view) for view in now.waiting], "running": [_running(view) for view in now.running]}


def one_job(runtime: Runtime, job_id: JobId) -> dict[str, object] | None:
    """One job, also one that is over as long as its story is remembered; None for one that nobody knows."""
    told = runtime.explain(job_id)
    if told is None:
        return None
    return {
        "job": told.job,
        "state": "waiting" if told.waiting else "running" if told.running else "over",
        "text": _text(told),
        "waiting": waiting(told.waiting) if told.waiting else None,
        "running": _running(told.running) if told.running else None,
        "plan": _plan(told.plan) if told.plan else None,
        "story": [line_of(log, runtime.wall_seconds_at(at)) for at, log in told.story],
    }


def _text(told: Explanation) -> str:
    if told.waiting is not None:
        return words.sentence(told.waiting)
    return words.running(told.running) if told.running is not None else "over"


def waiting(view: WaitingView) -> Mapping[str, object]:
    """One waiting job. `text` is the whole of it as a sentence."""
    return {
        "job": view.id,
        "class": view.job_class.label,
        "kind": view.kind.value,
        "model": view.model,
        "position": view.position,
        "waited_s": round(view.waited_seconds, 3),
        "step": view.step,
        "steps": view.steps,
        "rule": view.rule,
        "reason": view.reason,
        "estimate_s": _rounded(view.estimate_seconds),
        "keepers": [
            {"model": one.model, "device": one.device, "bytes": one.bytes, "why": one.why} for one in view.keepers
        ],
        "text": words.sentence(view),
    }


def _running(view: RunningView) -> Mapping[str, object]:
    return {
        "job": view.id,
        "class": view.job_class.label,
        "kind": view.kind.value,
        "model": view.model,
        "instance": view.instance,
        "step": view.step,
        "steps": view.steps,
        "running_s": round(view.running_seconds, 3),
        "rest_s": _rounded(view.rest_seconds),
        "text": words.running(view),
    }


def _plan(view: PlanView) -> Mapping[str, object]:
    return {
        "ctx_size": view.ctx_size,
        "parallel": view.parallel,
        "needs": view.needs,
        "live": view.live,
        "victims": victims(view.victims),
    }


def victims(views: Sequence[VictimView]) -> list[Mapping[str, object]]:
    """Those that a plan wants to go."""
    return [
        {
            "instance": one.instance,
            "model": one.model,
            "bytes": one.bytes,
            "steps": one.steps,
            "why": one.why,
            "terms": {name: round(value, 3) for name, value in one.terms.items()},
        }
        for one in views
    ]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
