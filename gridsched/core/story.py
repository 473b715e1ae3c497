"""What happened to one job or one instance, as sentences: what a bug's report carries.

Owns a bounded memory of the decision log. Must never be asked to decide anything. Lines are written only when somebody
reads them, because every event passes here.
"""

from collections import deque

from gridsched.core.commands import Log
from gridsched.core.ids import InstanceId, JobId

REMEMBERED_LINES = 4096
"""Some seconds of heavy traffic, under a megabyte."""


class Story:
    """The last decisions, with their times in seconds."""

    def __init__(self) -> None:
        self._lines: deque[tuple[float, Log]] = deque(maxlen=REMEMBERED_LINES)
        self.tell = self._lines.append

    def of(self, job_id: JobId | None = None, instance_id: InstanceId | None = None) -> tuple[str, ...]:
        """The lines about a job, or about an instance, for a person."""
        return tuple(f"{at:.3f} {line_of(log)}" for at, log in self.decisions(job_id, instance_id))

    def decisions(
        self, job_id: JobId | None = None, instance_id: InstanceId | None = None
    ) -> tuple[tuple[float, Log], ...]:
        """The decisions about a job, or about an instance, with their times."""
        return tuple(
            (at, log)
            for at, log in self._lines
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
