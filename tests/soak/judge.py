"""What a run has shown: outcomes, errors with what explains them, leaks. Owns the table, and whether it is good."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.clients import ANSWERED, LEFT
from tests.soak.harm import EXPLAINS
from tests.soak.plan import Ask, Harm

STALL_SECONDS = 4.0
"""An engine that is silent for so long has stalled: a hang shows that much later."""

BACKOFF_SECONDS = 900.0
"""For so long a model may be said to have failed: the gateway's own longest."""

GROWTH_BYTES, GROWTH_PART = 16 << 20, 0.15
"""What the gateway may grow between the first tenth of a run and the last: its logs and its measurements fill up."""

MORE_THREADS = 12
"""There is one for each engine, and some that come and go."""

MIB = 1 << 20


@dataclass(frozen=True)
class Done:
    """One request that is over."""

    ask: Ask
    began: float
    ended: float
    outcome: str


@dataclass(frozen=True)
class Harmed:
    """One fault that was done."""

    harm: Harm
    began: float
    ended: float


@dataclass(frozen=True)
class Sample:
    """The gateway at one moment."""

    rss_bytes: int
    threads: int
    descriptors: int


@dataclass
class Result:
    """A run. `leavings` are sentences, each of which is a fault."""

    done: list[Done] = field(default_factory=list)
    harmed: list[Harmed] = field(default_factory=list)
    missed: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    leavings: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def faults(self) -> list[str]:
        """Everything that must not be: sentences."""
        return [*map(_told, self.unexplained()), *self.leavings, *_growth(self.samples)]

    def unexplained(self) -> list[Done]:
        """Requests that ended badly, and nothing was done to their model."""
        bad = (done for done in self.done if done.outcome not in (ANSWERED, LEFT))
        return [done for done in bad if not any(explains(harmed, done) for harmed in self.harmed)]


def explains(harmed: Harmed, done: Done) -> bool:
    """Whether this fault may be why that request ended so: done to its model while it lived, or, where the model is
    said to have failed, before."""
    word, code, cause = (*done.outcome.split(" "), "", "")[:3]
    known = EXPLAINS.get(harmed.harm.kind, frozenset())
    if word != "error" or harmed.harm.model != done.ask.model or not {code, f"{code} {cause}"} & known:
        return False
    after_seconds = BACKOFF_SECONDS if code == "model_failed" else STALL_SECONDS
    return harmed.began <= done.ended and done.began <= harmed.ended + after_seconds


def _told(done: Done) -> str:
    ask = done.ask
    return f"{ask.kind} of {ask.model} ({ask.end}) at {done.began:.2f} to {done.ended:.2f} s: {done.outcome}"


def _growth(samples: Sequence[Sample]) -> Iterator[str]:
    if len(samples) < 10:
        return
    first, last = tenths(samples)
    if last.rss_bytes > first.rss_bytes * (1 + GROWTH_PART) + GROWTH_BYTES:
        yield f"the gateway has grown from {first.rss_bytes // MIB} to {last.rss_bytes // MIB} MiB"
    if last.threads > first.threads + MORE_THREADS:
        yield f"the gateway has {last.threads} threads, and had {first.threads}"


def tenths(samples: Sequence[Sample]) -> tuple[Sample, Sample]:
    """The largest figures of a run's first tenth and of its last."""
    part = max(1, len(samples) // 10)
    return _largest(samples[:part]), _largest(samples[-part:])


def _largest(samples: Sequence[Sample]) -> Sample:
    return Sample(
        max(sample.rss_bytes for sample in samples),
        max(sample.threads for sample in samples),
        max(sample.descriptors for sample in samples),
    )


def sample(pid: int) -> Sample:
    """A process now."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return Sample(
        int(fields["VmRSS"].split()[0]) << 10, int(fields["Threads"]), len(list(Path(f"/proc/{pid}/fd").iterdir()))
    )


def table(result: Result) -> Iterator[str]:
    """The run in lines."""
    yield f"{len(result.done)} requests in {result.seconds:.0f} s"
    kinds = sorted({done.ask.kind for done in result.done})
    yield f"  {'outcome':32}" + "".join(f"{kind:>12}" for kind in kinds)
    for outcome in sorted({_short(done.outcome) for done in result.done}):
        row = Counter(done.ask.kind for done in result.done if _short(done.outcome) == outcome)
        yield f"  {outcome:32}" + "".join(f"{row[kind]:12}" for kind in kinds)
    yield f"{len(result.harmed)} faults done"
    for kind, count in sorted(Counter(harmed.harm.kind for harmed in result.harmed).items()):
        these = [harmed for harmed in result.harmed if harmed.harm.kind == kind]
        errors = Counter(done.outcome for done in result.done if any(explains(harmed, done) for harmed in these))
        told = ", ".join(f"{number} {error}" for error, number in sorted(errors.items())) or "nobody noticed"
        missed = f", {result.missed[kind]} with nobody to do it to" if result.missed[kind] else ""
        yield f"  {kind:32}{count:12}   may explain: {told}{missed}"
    if result.samples:
        first, last = tenths(result.samples)
        yield f"  {'the gateway':32}{'first tenth':>12}{'last tenth':>12}"
        yield f"  {'memory, MiB':32}{first.rss_bytes // MIB:12}{last.rss_bytes // MIB:12}"
        yield f"  {'threads':32}{first.threads:12}{last.threads:12}"
        yield f"  {'descriptors':32}{first.descriptors:12}{last.descriptors:12}"
    faults = result.faults()
    yield f"{len(faults)} things that must not be" if faults else "nothing is unexplained, and nothing is left"
    yield from (f"  {fault}" for fault in faults)


def _short(outcome: str) -> str:
    return outcome if outcome.startswith("error") else outcome.partition(":")[0]
