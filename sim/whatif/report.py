"""What came of a scenario, for a person and as JSON. Owns the words and shapes, and no arithmetic but ratios."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from gridsched.core.job import JobClass
from sim.whatif.runs import CHATS, Outcome
from sim.whatif.scenario import ALONE, EMBEDDINGS, UNDISTURBED, PolicyRun
from sim.whatif.tally import Result, Row

LOW_ROWS = tuple(job_class.label for job_class in JobClass if job_class.is_low)
HEAD = ("", "requests", "errors", "p50 s", "p95 s", "p99 s", "queue p50 s", "queue p95 s", "first token p50 s")


def as_json(outcome: Outcome) -> dict[str, object]:
    """One scenario's figures. `seed` is the first of `seeds`, whose mean everything is."""
    seeds = outcome.scenario.seeds
    shared = {"seed": seeds[0], "seeds": list(seeds), "seconds": outcome.scenario.seconds}
    policies: dict[str, object] = {}
    for policy in outcome.scenario.policies:
        ratios = outcome.ratios(policy.name)
        policies[policy.name] = {
            **_figures(outcome.policies[policy.name]),
            "p50_ratio": ratios[0] if ratios else None,
            "p95_ratio": ratios[1] if ratios else None,
            "low_ratio": outcome.kept(policy.name),
            **shared,
            "settings": dict(policy.settings),
        }
    references = {ALONE: outcome.alone, UNDISTURBED: outcome.undisturbed}
    return {
        "policies": policies,
        **{name: None if each is None else {**_figures(each), **shared} for name, each in references.items()},
    }


def _figures(result: Result) -> dict[str, object]:
    return {
        "classes": {name: asdict(row) for name, row in result.classes.items()},
        **asdict(result.figures),
        "refusals": result.refusals,
    }


def lines(outcome: Outcome, changed: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The class table of every policy. `changed` holds by policy what it says otherwise than the defaults."""
    if outcome.alone is not None:
        yield "alone: the same interactive clients and nobody else"
        yield from _table(outcome.alone)
        yield ""
    for policy in outcome.scenario.policies:
        yield f"policy {policy.name}: {', '.join(changed.get(policy.name, ())) or 'the defaults'}"
        yield from _table(outcome.policies[policy.name])
        yield from _did(outcome, policy)
        yield ""


def _did(outcome: Outcome, policy: PolicyRun) -> Iterator[str]:
    """What the scheduler did under a policy, and what that meant for people."""
    result = outcome.policies[policy.name]
    did = result.figures
    yield (
        f"  {did.loads:.1f} loads ({did.needless_loads:.1f} needless), {did.evictions:.1f} evictions,"
        f" {did.relief_turns:.1f} relief turns of {did.relief_steps / (did.relief_turns or 1):.1f} steps,"
        f" {did.pauses:.1f} pauses, cards busy {did.busy_share:.1%}"
    )
    ratios = outcome.ratios(policy.name)
    if ratios is not None:
        yield f"  people wait {ratios[0]:.2f} x (p50) and {ratios[1]:.2f} x (p95) as long as alone"
    kept = outcome.kept(policy.name)
    if kept is not None and outcome.alone is not None:
        yield f"  low work gets {kept:.0%} of the answers that it gets without them"
    for code, sentence in result.refusals.items():
        yield f"  refused, {code}: {sentence}"
    waiting = {name: row.unanswered for name, row in result.classes.items() if not row.requests and row.unanswered}
    if waiting:
        yield f"  nobody was answered: {', '.join(waiting)}"


def _table(result: Result) -> list[str]:
    body = [_cells(name, row) for name, row in result.classes.items()]
    return columns([HEAD, *body])


def _cells(name: str, row: Row) -> tuple[str, ...]:
    times = (row.p50_s, row.p95_s, row.p99_s, row.queue_p50_s, row.queue_p95_s, row.ttft_p50_s)
    counts = (f"{row.requests:.0f}", f"{row.errors:.1f}" if row.errors else "0")
    return (name, *counts, *("-" if each is None else f"{each:.2f}" for each in times))


def columns(table: Sequence[Sequence[str]]) -> list[str]:
    """A table in columns: the first to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  " + "  ".join(cell.rjust(width) if place else cell.ljust(width) for place, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in table)
    ]


def comparison(outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    """All variants and policies in one table: what people and low work have of each."""
    head = (
        "",
        "policy",
        "chat p50 s",
        "p95 s",
        "p50 ratio",
        "p95 ratio",
        *("low answers", "embeddings", "loads", "busy"),
    )
    body = []
    for variant, outcome in outcomes.items():
        for name, reference in ((ALONE, outcome.alone), (UNDISTURBED, outcome.undisturbed)):
            if reference is not None:
                body.append((variant, name, *_summary(reference, None)))
        for policy in outcome.scenario.policies:
            result = outcome.policies[policy.name]
            body.append((variant, policy.name, *_summary(result, outcome.ratios(policy.name))))
    yield from columns([head, *body])


def _summary(result: Result, ratios: tuple[float, float] | None) -> tuple[str, ...]:
    chat = result.classes.get(CHATS)
    times = (chat.p50_s, chat.p95_s) if chat is not None else (None, None)
    return (
        *("-" if each is None else f"{each:.2f}" for each in (*times, *(ratios or (None, None)))),
        f"{result.answered(*LOW_ROWS):.0f}",
        f"{result.answered(EMBEDDINGS):.0f}",
        f"{result.figures.loads:.1f}",
        f"{result.figures.busy_share:.0%}",
    )
