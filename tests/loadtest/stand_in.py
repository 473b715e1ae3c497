"""A stand-in for a gridsched as the load test sees one: models, counters, status, decisions, answers.

It decides nothing: a test says what it tells, and what it does to a request.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from loadtest.server import FAMILIES
from tests.loadtest.lines import raw
from tests.loadtest.stub import Asked, Reply, as_json, delta, frames

GIB = 1 << 30
MODELS: Mapping[str, tuple[float, tuple[str, ...]]] = {
    "big": (8.0, ("chat", "completion")),
    "seeing": (4.0, ("chat", "completion", "vision")),
    "small": (2.0, ("chat", "completion")),
    "embedder": (0.5, ("embedding",)),
}
"""Bytes in GiB, and what they can."""


@dataclass
class StandIn:
    """One. `counted` are its counters, by the names of `FAMILIES`; `per_request` is added to them at every request;
    `on_request` may answer a request itself."""

    models: Mapping[str, tuple[float, tuple[str, ...]]] = field(default_factory=lambda: MODELS)
    counted: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FAMILIES, 5))
    per_request: Mapping[str, int] = field(default_factory=dict)
    lines: Sequence[Mapping[str, object]] = ()
    on_request: Callable[[Asked], Reply | None] = lambda _: None
    is_gridsched: bool = True
    requests: list[Asked] = field(default_factory=list)

    def __call__(self, asked: Asked) -> Reply:
        """Its answer."""
        if asked.body:
            return self._work(asked)
        path, _, query = asked.path.partition("?")
        told: dict[str, Callable[[], Reply]] = {
            "/health": lambda: as_json({"version": "9.9", "engine": {"version": "b1", "backend": "made up"}}),
            "/metrics": self._page,
            "/api/status": lambda: as_json(self.status()),
            "/api/events": lambda: self._events(query),
        }
        if path == "/v1/models":
            return as_json({"object": "list", "data": [self._listed(name) for name in self.models]})
        if path in told and self.is_gridsched:
            return told[path]()
        return as_json({"error": {"message": "nothing here"}}, status=404)

    def _page(self) -> Reply:
        text = [f"# TYPE {FAMILIES[what]} counter\n{FAMILIES[what]} {n}\n" for what, n in self.counted.items()]
        return Reply(200, {"Content-Type": "text/plain"}, ("".join(text).encode(),))

    def status(self) -> Mapping[str, object]:
        """One card, one process."""
        card = {"name": "gpu0", "total_bytes": 16 * GIB, "used_bytes": 9 * GIB, "external_bytes": 0}
        one = {"id": 1, "model": "big", "state": "ready", "reserved_bytes": 8 * GIB, "measured_bytes": None}
        queues = {"interactive": {"length": 0}, "background": {"length": 2}}
        return {"devices": [card], "instances": [one], "queues": queues}

    def _listed(self, name: str) -> Mapping[str, object]:
        size, can = self.models[name]
        told = {"capabilities": can, "memory_bytes": {"estimated": int(size * GIB), "measured": None}, "base": None}
        return {"id": name, "object": "model"} | ({"gridsched": told} if self.is_gridsched else {})

    def _events(self, query: str) -> Reply:
        since = int(query.partition("since=")[2].partition("&")[0] or 0)
        told = frames(*(line for line in self.lines if int(str(line["seq"])) > since), end="")
        return Reply(200, {"Content-Type": "text/event-stream"}, told, hold="follow=1" in query)

    def _work(self, asked: Asked) -> Reply:
        self.requests.append(asked)
        for what, count in self.per_request.items():
            self.counted[what] += count
        if (reply := self.on_request(asked)) is not None:
            return reply
        headers = {"X-Gridsched-Job-Id": str(len(self.requests)), "X-Gridsched-Queue-Ms": "2"}
        fields = asked.fields
        if asked.path == "/v1/embeddings":
            inputs = fields["input"]
            assert isinstance(inputs, list)
            return as_json({"data": [{"index": n, "embedding": [1.0]} for n in range(len(inputs))]}, **headers)
        if fields.get("stream"):
            end = {"choices": [], "usage": {"completion_tokens": 2}}
            return Reply(200, {"Content-Type": "text/event-stream", **headers}, frames(delta("a"), delta("b"), end))
        told = {"choices": [{"message": {"content": "c"}}], "usage": {"completion_tokens": 3}}
        return as_json(told, **headers)


def a_log() -> list[dict[str, object]]:
    """A line from before the run, then a load of another model, and one step of job 1, by relief."""
    job = {"job": 1, "class": "background", "kind": "embeddings", "model": "embedder", "step": 1, "steps": 2}
    return [
        raw(1, 0.0, "config"),
        raw(2, 1.0, "enqueue", **job),
        raw(3, 1.0, "load", model="embedder", device="gpu0", rule="L1", instance=2),
        raw(4, 2.0, "ready", model="embedder", device="gpu0", instance=2),
        raw(5, 2.0, "dispatch", **job, device="gpu0", rule="S5", queue_ms=1000.0, instance=2),
        raw(6, 2.5, "step", **job, ms=500.0, instance=2),
        raw(7, 2.5, "dispatch", **{**job, "step": 2}, device="gpu0", rule="S3", queue_ms=7.0, instance=2),
    ]
