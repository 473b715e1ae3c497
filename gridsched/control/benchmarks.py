"""What is kept of benchmarks, as it is told: with each result whether it is still true.

Owns these words. Starts nothing: `benchmark` does.
"""

from typing import Annotated

from msgspec import Meta

from gridsched.control.services import Services
from gridsched.control.verb import Answer
from gridsched.ports import CatalogModel, LaunchFacts
from gridsched.runtime.decisions import rfc3339
from gridsched.store.benchmarks import Benchmark


class BenchmarkLevel(Answer, frozen=True, kw_only=True):
    """So many answers at once, by the engine's own clock."""

    streams: int
    tokens_per_s: Annotated[float, Meta(description="Of each answer: the mean.")]
    total_tokens_per_s: Annotated[float, Meta(description="Of all together.")]
    first_token_s: Annotated[float, Meta(description="From the start of a prompt of some hundred tokens: the mean.")]


class BenchmarkResult(Answer, frozen=True, kw_only=True):
    """What was measured of a model on one set of devices."""

    devices: tuple[str, ...]
    ctx_per_slot: int
    parallel: Annotated[int, Meta(description="Slots of the launch that was measured.")]
    levels: tuple[BenchmarkLevel, ...]
    recommended_slots: Annotated[
        int,
        Meta(
            description="The most answers at once of which each keeps 65 % of a single one's speed while all write "
            "15 % more in sum than half as many."
        ),
    ]
    inputs_per_s: Annotated[float | None, Meta(description="Of an embedder or a reranker: short texts a second.")]
    engine_build: str
    at: Annotated[str, Meta(description="When it was measured.")]
    stale: Annotated[bool, Meta(description="The files, the engine or the devices are others now.")]
    stale_why: str | None


class Results:
    """The results of one server."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def of(self, model: CatalogModel) -> tuple[BenchmarkResult, ...]:
        """Those of a model, the newest last."""
        facts = facts_of(self._services, model)
        return tuple(self._told(each, facts) for each in self._services.benchmarks.all() if each.model == model.name)

    def _told(self, result: Benchmark, facts: LaunchFacts | None) -> BenchmarkResult:
        why = self._stale(result, facts)
        return BenchmarkResult(
            devices=result.devices,
            ctx_per_slot=result.ctx_per_slot,
            parallel=result.parallel,
            levels=tuple(
                BenchmarkLevel(
                    streams=level.streams,
                    tokens_per_s=round(level.tokens_per_s, 2),
                    total_tokens_per_s=round(level.total_tokens_per_s, 2),
                    first_token_s=round(level.first_token_s, 4),
                )
                for level in result.levels
            ),
            recommended_slots=result.recommended_slots,
            inputs_per_s=round(result.inputs_per_s, 2) if result.inputs_per_s is not None else None,
            engine_build=result.engine_build,
            at=rfc3339(result.at),
            stale=why is not None,
            stale_why=why,
        )

    def _stale(self, result: Benchmark, facts: LaunchFacts | None) -> str | None:
        """Why it need not be true any more."""
        if facts is None or (facts.path, facts.fingerprint) != (result.path, result.fingerprint):
            return "the model's files are others now"
        if facts.engine_build != result.engine_build:
            return f"the engine is another now: {facts.engine_build}"
        here = {info.identity for info in self._services.runtime.parts.monitor.devices()}
        return None if set(result.identities) <= here else "its devices are not here now"


def facts_of(services: Services, model: CatalogModel) -> LaunchFacts | None:
    """What a launch of the model would be of; None of one that cannot be launched, or is gone by now."""
    catalog = services.runtime.parts.catalog
    if model.spec is None or all(each.name != model.name for each in catalog.models()):
        return None
    return catalog.launch(model.name, model.spec.options[0]).facts
