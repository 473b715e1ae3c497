"""How long steps take, as measured: one model's pace, class by class.

Owns the averages that estimates (S9b) and the price of a drain (R5) rest on. Must never decide anything, and knows
neither jobs nor instances: it is told how long a whole step took, and how long a relief turn.
"""

from gridsched.core.job import JobClass

MEMORY = 16
"""Over how many steps an average looks back. A guess: some seconds of a busy model, so that a change of load shows."""


class Pace:
    """One model's step times in seconds. The first `MEMORY` figures count alike, later ones as a moving average."""

    __slots__ = ("_counts", "_means", "_turn_seconds", "_turns")

    def __init__(self) -> None:
        self._counts = [0] * len(JobClass)
        self._means = [0.0] * len(JobClass)
        self._turns = 0
        self._turn_seconds = 0.0

    def note(self, job_class: JobClass, seconds: float) -> None:
        """A step of this class was served from its grant to its end."""
        count = self._counts[job_class]
        if count < MEMORY:
            count = self._counts[job_class] = count + 1
        self._means[job_class] += (seconds - self._means[job_class]) / count

    def note_turn(self, seconds: float) -> None:
        """A relief turn lasted this long: as long as the longest of its steps (S5)."""
        self._turns = min(self._turns + 1, MEMORY)
        self._turn_seconds += (seconds - self._turn_seconds) / self._turns

    def step_seconds(self, job_class: JobClass) -> float | None:
        """The mean step of a class; of the other classes where this one has had none, None where no step was served."""
        if self._counts[job_class]:
            return self._means[job_class]
        steps = sum(self._counts)
        if not steps:
            return None
        return sum(count * mean for count, mean in zip(self._counts, self._means, strict=True)) / steps

    def turn_seconds(self, job_class: JobClass) -> float | None:
        """The mean relief turn; a step of the class where there was none yet."""
        return self._turn_seconds if self._turns else self.step_seconds(job_class)

    def rest_seconds(self, job_class: JobClass, elapsed_seconds: float) -> float | None:
        """How long a step that has run for so long will still take; None where no step was served. One that is
        overdue is taken to need a tenth of a step more: a guess that is never negative."""
        mean = self.step_seconds(job_class)
        return None if mean is None else max(mean - elapsed_seconds, mean / 10)
