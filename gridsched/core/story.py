"""What happened to one job or one instance, as sentences: what a bug's report carries.

Owns a bounded memory of the decision log: what came of the last steps, as it came. Must never be asked to decide
anything, nor change what it keeps. Lines are picked out and written only when somebody reads them, because every event
passes here.
"""

from collections import deque

from gridsched.core.commands import Command, Log
from gridsched.core.ids import InstanceId, JobId

REMEMBERED_STEPS = 2500
"""Of those that decided something. Some seconds of heavy traffic, two to three megabytes."""

LONGEST_STEP = 4096
"""So many commands of one step are remembered: thousands of jobs may be refused in one."""


class Story:
    """The last decisions, with their times in seconds."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, list[Command]]] = deque(maxlen=REMEMBERED_STEPS)
        self._now = 0.0
        self._out: list[Command] = []

    def begin(self, now: float, out: list[Command]) -> None:
        """A step begins, and what comes of it will be in `out`, which nobody changes after the step."""
        if self._out:
            del self._out[LONGEST_STEP:]
            self._steps.append((self._now, self._out))
        self._now, self._out = now, out

    def of(self, job_id: JobId | None = None, instance_id: InstanceId | None = None) -> tuple[str, ...]:
        """The lines about a job, or about an instance, for a person."""
        return tuple(f"{at:.3f} {line_of(log)}" for at, log in self.decisions(job_id, instance_id))

    def decisions(
        self, job_id: JobId | None = None, instance_id: InstanceId | None = None
    ) -> tuple[tuple[float, Log], ...]:
        """The decisions about a job, or about an instance, with their times."""
        return tuple(
            (at, log)
            for at, out in (*self._steps, (self._now, self._out))
            for log in out
            if isinstance(log, Log)
            if (job_id is not None and log.job_id == job_id)
            or (instance_id is not None and log.figures.get("instance") == instance_id)
        )


def line_of(log: Log) -> str:
    """One decision for a person: `dispatch background step 1/32 -> nomic-embed`."""
    words = [log.event.value]
    if log.job_class is not None:
        words.append(log.job_class.label)
    if log.job_id is not None:
        words.append(f"job {log.job_id}")
    if log.step is not None:
        words.append(f"step {log.step}/{log.steps}")
    if log.model is not None:
        words.append(f"-> {log.model}" if log.job_id is not None else log.model)
    if log.device is not None:
        words.append(f"on {log.device}")
    if log.rule is not None:
        words.append(f"({log.rule})")
    words.extend(f"{name}={value}" for name, value in log.figures.items())
    return " ".join(words)
