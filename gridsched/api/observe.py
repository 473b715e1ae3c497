"""What this folder tells whoever counts, and asks of it. A Protocol, so that counting stays on its own side."""

from collections.abc import Callable, Mapping
from typing import Protocol


class Observer(Protocol):
    """Called on the path of every request: synchronous, cheap, never fails. Labels come from a bounded set.

    `job` is the job's number, None where there was none, `trace_id` that of its trace, "" for none: they are no labels,
    but lead from a figure to one request behind it.
    """

    def request_ended(
        self,
        job_class: str,
        model: str,
        endpoint: str,
        code: int,
        seconds: float,
        *,
        job: int | None = None,
        trace_id: str = "",
    ) -> None:
        """An answer is over. `model` is "" where none was found, `code` 499 where the client left before the end."""

    def queue_waited(self, job_class: str, seconds: float, *, job: int | None = None, trace_id: str = "") -> None:
        """A job's first step was granted after this long."""

    def first_byte(
        self, job_class: str, model: str, seconds: float, *, job: int | None = None, trace_id: str = ""
    ) -> None:
        """The first byte of an answer went out this long after the request was read."""

    def vector_not_finite(self, model: str) -> None:
        """An engine gave an embedding with a value that is no number; its request was refused."""

    def batch_line_ended(self, outcome: str) -> None:
        """A line of a batch has its answer: completed, failed, damaged, cancelled or expired."""

    def watch_batches(self, by_status: Callable[[], Mapping[str, int]], lines_remaining: Callable[[], int]) -> None:
        """Where to ask how many batches there are of each status, and how many lines have no answer. Called once."""

    def exposition(self, accept: str) -> tuple[str, bytes]:
        """The metrics page: its content type, for what the client accepts, and its text."""
