"""What-if: the fluid cards, the shipped scenario against what was published of it, and the same seed twice."""

import json
from dataclasses import asdict, replace
from functools import cache

import pytest

from gridsched.cli import main as cli
from gridsched.cli import scenario as files
from gridsched.core.ids import GrantId, InstanceId, ModelName
from gridsched.core.policy import Policy
from sim.whatif import SHIPPED, frontier, runs
from sim.whatif.fluid import FluidCard, Process, Stream
from sim.whatif.runs import Outcome
from sim.whatif.scenario import Engine, Model, PolicyRun, Scenario
from sim.whatif.world import Run

ENGINE = Engine((1.0, 1.19, 1.2257), 0.1, 0.15)
CHAT = Model(ModelName("chat"), 8, 2, 1.0, weight=0.58, stream_cost=0.2)
LOW = Model(ModelName("low"), 4, 4, 1.0, weight=0.42, stream_cost=0.35)


@cache
def shipped(name: str) -> Scenario:
    """A scenario that comes with gridsched."""
    return files.load(SHIPPED / f"{name}.yaml")


@cache
def mixed_load() -> Outcome:
    """The mixed load as it is shipped: all 20 seeds under the two policies of which figures are known."""
    scenario = shipped("4060ti-mixed")
    return runs.run(scenario, scenario.policies[:2])


# --- cards as fluids ------------------------------------------------------------------------------------------------


def card_of(*streams: tuple[Model, int]) -> tuple[FluidCard, list[Process]]:
    """A card with processes that work on steps of one second each; only the chat's are not low."""
    card = FluidCard(ENGINE)
    processes = []
    for number, (model, count) in enumerate(streams):
        process = Process(InstanceId(number), model)
        for place in range(count):
            grant_id = GrantId(10 * number + place)
            process.streams[grant_id] = Stream(grant_id, 1.0, 0.85, low=model is LOW)
        card.processes[process.id] = process
        processes.append(process)
    card.share_out()
    return card, processes


def test_a_chat_beside_one_low_process_runs_at_069_and_that_at_050() -> None:
    """Two processes do 19 % more together than one alone."""
    _, (chat, low) = card_of((CHAT, 1), (LOW, 1))
    assert chat.rate == pytest.approx(0.69, abs=0.003)
    assert low.rate == pytest.approx(0.50, abs=0.003)


def test_streams_of_one_process_slow_each_other_down() -> None:
    """N streams run at 1 / (1 + cost x (n - 1)) each; two chats in the 12B at 0.83, four low ones at 0.49."""
    assert card_of((CHAT, 2))[1][0].rate == pytest.approx(1 / 1.2)
    assert card_of((LOW, 4))[1][0].rate == pytest.approx(1 / 2.05)


def test_each_further_stream_makes_a_low_process_heavier() -> None:
    """Four streams weigh 0.42 x 1.3 beside the chat's 0.58."""
    _, (chat, _low) = card_of((CHAT, 1), (LOW, 4))
    assert chat.rate == pytest.approx(1.19 * 0.58 / (0.58 + 0.42 * 1.3))


def test_a_process_is_never_faster_than_alone() -> None:
    """A very heavy process beside a light one has all of the card and no more."""
    _, (heavy, _low) = card_of((replace(CHAT, weight=50.0), 1), (LOW, 1))
    assert heavy.rate == 1.0


def test_S10_a_paused_process_stands_still_and_leaves_the_card_to_the_chat() -> None:
    """The chat runs as if alone meanwhile, and the paused step has lost nothing."""
    card, (chat, low) = card_of((CHAT, 1), (LOW, 1))
    card.advance(0.5)
    left = low.streams[GrantId(10)].left
    low.paused = True
    card.share_out()
    assert chat.rate == 1.0
    card.advance(0.75)
    assert low.streams[GrantId(10)].left == left
    assert card.next_end() == pytest.approx(0.75 + (1.0 - 0.5 * 0.69 - 0.25), abs=0.01)


def test_progress_between_changes_is_straight_and_the_first_token_has_its_moment() -> None:
    """Alone, a step of 1 s ends after 1 s, and its first token left after 0.15 s."""
    card, (chat,) = card_of((CHAT, 1))
    assert card.next_end() == 1.0
    card.advance(1.0)
    [ended] = card.ended()
    assert ended.first_at == pytest.approx(0.15)
    assert card.busy_seconds == 1.0
    assert not chat.streams


# --- the mixed load -------------------------------------------------------------------------------------------------

PUBLISHED = {
    "interactive": {"requests": 366, "p50_s": 3.4, "p95_s": 4.1},
    "background": {"requests": 194, "p50_s": 11.8, "p95_s": 13.3},
    "batch": {"requests": 96, "p50_s": 11.8, "p95_s": 13.4},
    "embeddings": {"requests": 21, "p50_s": 25.0},
}


@pytest.mark.slow
def test_the_mixed_load_comes_out_as_published() -> None:
    """Every figure of the published run within 8 %, but the embeddings' p95, which rests on a handful of requests. The
    mean of all 20 seeds."""
    outcome = mixed_load()
    classes = outcome.policies["published"].classes
    for name, figures in PUBLISHED.items():
        for key, published in figures.items():
            assert asdict(classes[name])[key] == pytest.approx(published, rel=0.08), (name, key)
    assert outcome.alone is not None
    assert outcome.alone.classes["interactive"].p50_s == pytest.approx(1.9, rel=0.08)


def check_the_default_policy(outcome: Outcome, low: int) -> None:
    """People wait at most 1.42 x as long as alone, p50 and p95, and the p95 is at most 1.8 x the *median* alone; low
    work goes on; nothing fails, nothing is loaded."""
    ratios = outcome.ratios("default")
    assert ratios is not None
    assert max(ratios) <= 1.42
    assert outcome.alone is not None
    p95, alone_p50 = (
        outcome.policies["default"].classes["interactive"].p95_s,
        outcome.alone.classes["interactive"].p50_s,
    )
    assert p95 is not None
    assert alone_p50 is not None
    assert p95 <= 1.8 * alone_p50
    result = outcome.policies["default"]
    assert result.answered("background", "batch") >= low
    assert result.answered("embeddings") >= 17
    assert sum(row.errors for row in result.classes.values()) == 0
    assert result.figures.needless_loads == result.figures.loads == 0


@pytest.mark.slow
def test_S5_the_defaults_keep_people_waiting_little_and_low_work_going() -> None:
    """The mean of all 20 seeds."""
    outcome = mixed_load()
    check_the_default_policy(outcome, low=260)


@pytest.mark.slow
def test_S5_with_four_chat_slots_the_defaults_do_the_same() -> None:
    """Against the same people alone with four slots; the mean of 6 seeds."""
    scenario = shipped("4060ti-mixed").variants["four chat slots"]
    outcome = runs.run(replace(scenario, seeds=scenario.seeds[:6]), [PolicyRun("default")])
    check_the_default_policy(outcome, low=290)


@pytest.mark.slow
def test_S10_with_pauses_one_or_two_people_hardly_notice_long_generations() -> None:
    """p50 at most 1.1 x alone, where it is 1.6 x without pauses, and low work keeps 70 % of what it does without
    people; the mean of 5 seeds."""
    scenario = shipped("one-person-pause")
    for each in (scenario, scenario.variants["one person"]):
        outcome = runs.run(replace(each, seeds=each.seeds[:5]), each.policies[:2])
        paused, unpaused = outcome.ratios("pause"), outcome.ratios("default")
        assert paused is not None
        assert unpaused is not None
        assert paused[0] <= 1.1
        assert unpaused[0] >= 1.5
        kept = outcome.kept("pause")
        assert kept is not None
        assert kept >= 0.7
        assert outcome.policies["pause"].figures.pauses > 0


@pytest.mark.slow
def test_on_several_cards_people_notice_little_of_the_others() -> None:
    """On two and on four cards, models where the scheduler puts them: p95 at most 1.3 x alone, no load too many; the
    mean of 2 seeds, which differ little where there is room."""
    scenario = shipped("several-cards")
    for each in (scenario, *scenario.variants.values()):
        outcome = runs.run(replace(each, seeds=each.seeds[:2]))
        ratios = outcome.ratios("default")
        assert ratios is not None
        assert ratios[1] <= 1.3
        figures = outcome.policies["default"].figures
        assert (figures.loads, figures.needless_loads) == (4, 0)


def test_the_same_seed_is_the_same_run() -> None:
    """Every figure, to the last digit; another seed is another run."""
    scenario = replace(shipped("4060ti-mixed"), seconds=60.0)
    policy = scenario.policies[1]
    once, again, other = (Run(scenario, policy, seed).play() for seed in (3, 3, 4))
    assert once == again
    assert once != other


def test_leaving_out_the_others_changes_nothing_about_the_chats() -> None:
    """The people of the alone run ask the same things: with nobody beside them no policy makes a difference."""
    scenario = replace(shipped("4060ti-mixed"), seconds=60.0).only(low=False)
    strict = PolicyRun("strict", Policy(relief_slots=1, background_share=1.0))
    assert Run(scenario, PolicyRun("alone"), 5).play().classes == Run(scenario, strict, 5).play().classes


def test_the_scheduler_keeps_its_invariants_under_the_mixed_load() -> None:
    """A minute with every numbered invariant checked after every step."""
    scenario = replace(shipped("4060ti-mixed"), seconds=30.0)
    result = Run(scenario, scenario.policies[1], 1, check_invariants=True).play()
    assert result.answered("interactive") > 20


TWO_MODELS = """
seconds: 120s
seeds: 1
cards: {gpu0: 16GiB}
engine: {overlap: 1, stream_weight: 0%, prompt_share: 10%}
models:
  one: {memory: 9GiB, slots: 1, load: 5s, weight: 1, stream_cost: 0}
  two: {memory: 9GiB, slots: 1, load: 5s, weight: 1, stream_cost: 0}
clients:
  ones: {class: background, count: 1, model: one, think: 1s, solo: 1s}
  twos: {class: background, count: 1, model: two, think: 1s, solo: 1s}
variants:
  larger: {cards: {gpu0: 24GiB}}
"""


def test_a_bigger_card_helps_who_swaps_models() -> None:
    """Two models that do not fit together are loaded again and again; on a larger card each is loaded once."""
    scenario = files.parse(TWO_MODELS, "two.yaml")
    small, large = runs.run(scenario), runs.run(scenario.variants["larger"])
    assert small.alone is None
    assert small.ratios("default") is None
    assert small.policies["default"].figures.evictions >= 2
    assert small.policies["default"].figures.needless_loads == 0
    assert large.policies["default"].figures.loads == 2
    assert large.policies["default"].figures.evictions == 0
    assert large.policies["default"].answered("background") > small.policies["default"].answered("background")


def test_who_is_never_answered_is_counted() -> None:
    """With relief off and people who never pause low work stands still; that is said, not left out."""
    scenario = replace(shipped("4060ti-mixed"), seconds=60.0)
    never = PolicyRun("never", Policy(background_max_starvation_seconds=0.0))
    row = Run(scenario, never, 1).play().classes["background"]
    assert row.unanswered == 8
    assert row.requests < 30, "only before the first chat"


def test_who_is_refused_is_told_why() -> None:
    """A chat's model beside a pinned one that leaves no room: errors among the requests, and the sentence."""
    text = TWO_MODELS.replace("class: background, count: 1, model: one", "class: interactive, count: 1, model: one")
    scenario = files.parse(
        text.replace("cost: 0}\nclients", "cost: 0, pinned: true, loaded: true}\nclients"), "two.yaml"
    )
    result = Run(scenario, scenario.policies[0], 1).play()
    assert result.classes["interactive"].errors == result.classes["interactive"].requests > 0
    assert list(result.refusals) == ["insufficient_vram"]
    assert result.answered("background") > 10


# --- what is printed ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_json_has_the_shape_that_is_promised(capsys: pytest.CaptureFixture[str]) -> None:
    """Each policy with classes, counts, seed and settings; embeddings a row of their own; the variants beside."""
    assert cli.main(["simulate", "4060ti-mixed", "--seed", "7", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert list(said["policies"]) == ["published", "default", "pause"]
    published = said["policies"]["published"]
    assert list(published["classes"]) == ["interactive", "background", "batch", "embeddings"]
    row = {"requests", "errors", "p50_s", "p95_s", "p99_s", "queue_p50_s", "queue_p95_s", "ttft_p50_s"}
    assert all(row <= set(each) for each in published["classes"].values())
    assert {"loads", "needless_loads", "evictions", "relief_steps", "seed", "settings"} <= set(published)
    assert published["seed"] == 7
    assert published["settings"]["relief_slots"] == 1
    assert said["policies"]["default"]["settings"]["background_share"] == 0.5
    assert said["alone"]["classes"]["interactive"]["requests"] > published["classes"]["interactive"]["requests"]
    assert set(said["variants"]) == {"four chat slots", "a 24 GiB card"}
    assert published["p50_ratio"] > said["policies"]["default"]["p50_ratio"] > 1


def test_the_frontier_is_drawn_with_the_defaults_ringed() -> None:
    """One ring in each of the two plots, and every point says its figures."""
    points = [frontier.Point(slots, share, False, 1.4, 1.5, 200.0) for slots in (1, 4) for share in (0.5, 1.0)]
    picture = frontier.svg(points, "a & b")
    assert picture.count('r="9"') == 2
    assert picture.count("<title>") == 2 * len(points)
    assert "a &amp; b" in picture
