"""Builders of decision-log lines: a log is written as a list of short calls, times in seconds from its start."""

from datetime import UTC, datetime

from loadtest.decisions import Line

START = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


def raw(seq: int, seconds: float, event: str, **more: object) -> dict[str, object]:
    """One line as the server writes it."""
    moment = datetime.fromtimestamp(START + seconds, UTC)
    time = moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{round(moment.microsecond / 1000):03d}Z"
    return {"seq": seq, "time": time, "event": event, **more}


class Log:
    """A log in the making: each call adds a line at the present time."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.now = 0.0

    def at(self, seconds: float) -> "Log":
        """Go to a time."""
        self.now = seconds
        return self

    def add(self, event: str, **more: object) -> "Log":
        """One line."""
        self.lines.append(Line.of(raw(len(self.lines) + 1, self.now, event, **more)))
        return self

    def job(self, event: str, step: int | None = None, *, steps: int = 4, **more: object) -> "Log":
        """A line about the embedding job, number 1."""
        at_step = {} if step is None else {"step": step, "steps": steps}
        more = {"class": "background", "kind": "embeddings", "model": "minilm", **more}
        return self.add(event, job=1, **at_step, **more)

    def chat(self, event: str, number: int) -> "Log":
        """A line about a chat."""
        return self.add(event, job=number, **{"class": "interactive", "kind": "chat", "model": "smollm2"})


def good_log() -> Log:
    """A chat overtakes an embedding job of four steps; one relief step comes in between."""
    log = Log().job("enqueue").job("dispatch", 1)
    log.at(0.3).chat("enqueue", 2).chat("dispatch", 2).job("step", 1)
    log.at(3.4).job("dispatch", 2, rule="S5")
    log.at(4.0).chat("complete", 2)
    log.at(6.0).job("dispatch", 3).at(6.1).job("dispatch", 4).at(6.2).job("complete")
    return log
