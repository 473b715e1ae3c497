import json
import shlex
import sys
from pathlib import Path

import pytest

from loadtest.bench import contention, contention_result, table
from loadtest.bench import result as bench_result
from loadtest.bench.contention_log import beside
from loadtest.bench.contention_result import STRETCHES
from loadtest.bench.contention_server import Machine, ServerFault, started
from loadtest.bench.contention_traffic import Load, Stretch, token_times
from loadtest.bench.result import BenchResult, LeftOut
from loadtest.clients import Generated, Measured
from loadtest.fetch import FetchFailure
from loadtest.minilm import convert
from tests.loadtest.lines import START, Log
from tests.loadtest.tiny_bert import write_tiny_bert
from tests.support.tiny_model import make_tiny_chat

FAKE = Path(__file__).parents[1] / "support" / "fake_llama_server.py"
LOW = {"class": "background", "kind": "chat", "model": "writer", "instance": 2}
SHORT = Load(chat_seconds=0.5, lead_seconds=0.1, settle_seconds=0.1, think_seconds=0.05, chat_tokens=4, writer_tokens=4)


def chats(*seconds: float) -> list[Measured]:
    return [Measured("chat", latency_seconds=one, first_token_seconds=0.1, tokens=8) for one in seconds]


def a_round(paused_seconds: float = 1.1, paused_tokens: int = 20) -> contention_result.Round:
    """Ten seconds of each: alone a chat takes 1 s, beside the background 2 s, with pause as told."""

    def seen(seconds: float | None, tokens: int, documents: int, text: str = "a") -> Stretch:
        return Stretch(
            chats(*([] if seconds is None else [seconds] * 3)),
            0.0,
            10.0,
            token_at=[5.0] * tokens,
            indexed=[(5.0, documents)],
            written={0: text},
        )

    return {
        "alone": seen(1.0, 0, 0),
        "s4": seen(1.0, 0, 0),
        "relief": seen(2.0, 50, 160, "b"),
        "pause": seen(paused_seconds, paused_tokens, 32),
        "solo": seen(None, 100, 320),
    }


def test_figures_are_ratios_within_a_round() -> None:
    """Each setting's chats to chat alone, its background to that without chats; what was not there is not 0."""
    found = contention_result.figures([a_round(), a_round(1.3, 40)])
    assert found["pause"]["chat_p50_ratio"] == pytest.approx([1.1, 1.3])
    assert found["relief"]["tokens_ratio"] == pytest.approx([0.5, 0.5])
    assert found["pause"]["writer_kept"] == pytest.approx([0.2, 0.4])
    assert found["pause"]["kept"] == pytest.approx([0.15, 0.25])
    assert found["s4"]["kept"] == [0.0, 0.0]
    assert found["solo"]["chat_p50_s"] == [None, None]
    assert found["alone"]["kept"] == [None, None]
    assert found["relief"]["same"] == [0.0, 0.0]


def test_marks_are_of_the_medians_and_a_missing_figure_misses() -> None:
    """One slow round of three does not miss the mark; another text does, in whichever round."""
    found = contention_result.figures([a_round(), a_round(1.3), a_round(1.0)])
    assert [mark.met for mark in contention_result.marks(found)] == [True, True, True]
    worse = contention_result.figures([a_round(1.3), a_round(1.3, 0), {**a_round(), "pause": a_round()["relief"]}])
    assert [mark.met for mark in contention_result.marks(worse)] == [False, True, False]
    nothing = contention_result.figures([{**a_round(), "pause": Stretch(ended=1.0), "solo": Stretch(ended=1.0)}])
    assert [mark.figure for mark in contention_result.marks(nothing)] == ["not measured"] * 3
    assert not any(mark.met for mark in contention_result.marks(nothing))


def test_the_table_has_a_row_for_each_stretch_and_the_spread_of_the_ratios() -> None:
    """Medians, and of ratios the lowest and highest round."""
    table = contention_result.table(contention_result.figures([a_round(), a_round(1.3)]))
    assert [line.split()[0] for line in table.splitlines()[1:]] == list(STRETCHES)
    assert "1.20 (1.10-1.30)" in table


def test_a_results_rows_have_a_table_of_their_own_with_the_marks_below_it() -> None:
    """Each stretch once, ratios to chat alone in their column, and what is met or missed."""
    rows = contention.rows(contention_result.figures([a_round(1.3), a_round(1.3)]), SHORT)
    told = table.table(BenchResult(machine=bench_result.Machine(), revision="", cases=rows))
    assert "## The chat and the background" in told
    assert "| llama-server | 2 clients | pause | 1.3 (1.3…1.3) |" in told
    assert "Missed: with pause, the median chat takes at most 1.15 times as long as alone: 1.30." in told


def test_what_stands_still_is_not_beside_a_chat() -> None:
    """Of the four seconds in which a chat is answered, the low step runs in one; before `since` nothing counts."""
    log = Log().add("dispatch", job=1, **LOW)
    log.at(2.0).chat("dispatch", 2).add("pause", instance=2).at(4.0).add("resume", instance=2)
    log.at(5.0).add("step", job=1, **LOW).at(6.0).chat("complete", 2).at(7.0).add("dispatch", job=1, **LOW)
    assert beside(log.lines, START) == pytest.approx(0.25)
    assert beside(log.lines, START + 4.5) == pytest.approx(1 / 3)
    assert beside(log.lines, START + 6.5) is None


def test_the_moments_of_a_streams_texts_are_on_the_clock_of_its_request() -> None:
    """When it was due, then its first text, then gap after gap."""
    one = Measured("writer", due=100.0, first_token_seconds=2.0, gaps=(0.5, 1.0))
    assert token_times(Generated(one)) == [102.0, 102.5, 103.5]
    assert token_times(Generated(Measured("writer"))) == []


def test_without_its_models_it_is_left_out_with_the_reason(tmp_path: Path) -> None:
    """One sentence, in no group, and nothing was started."""

    def no_models() -> Machine:
        raise FetchFailure("the models cannot be had")

    with pytest.raises(LeftOut, match="the models cannot be had"):
        contention.run(no_models, SHORT, 1, tmp_path / "run", print)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A stand-in for the engine, as a program, and two files that it does not read."""
    write_tiny_bert(tmp_path / "bert")
    convert(tmp_path / "bert", tmp_path / "embed.gguf")
    script = tmp_path / "llama-server"
    switches = shlex.quote(json.dumps({"tokens": 8, "tokens_per_second": 400}))
    script.write_text(f'#!/bin/sh\nFAKE_LLAMA={switches} exec {sys.executable} {FAKE} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return Machine(make_tiny_chat(tmp_path / "chat.gguf"), tmp_path / "embed.gguf", 2, script, cool_down_seconds=0.1)


@pytest.mark.slow
async def test_a_round_has_every_stretch_and_the_background_says_the_same_in_each(
    machine: Machine, tmp_path: Path
) -> None:
    """A server for each setting, the figures of all, and rows for the file."""
    said: list[str] = []
    rounds = await contention.measure_rounds(machine, SHORT, 1, tmp_path / "run", said.append)
    found = contention_result.figures(rounds)
    assert [row.variant for row in contention.rows(found, SHORT)] == list(STRETCHES)
    assert all(found[name]["chat_p50_ratio"][0] for name in ("alone", "s4", "relief", "pause"))
    assert found["solo"]["writer_tokens_per_s"][0]
    assert found["solo"]["documents_per_s"][0]
    assert found["pause"]["same"] == [1.0]
    assert said[-1].startswith("round 1, solo")


@pytest.mark.slow
async def test_a_server_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    """Its own last words, and it is gone."""
    with started(tmp_path / "server", {"no": "setting"}) as server:
        with pytest.raises(ServerFault, match=r"did not come up. Its last lines:\s.*\bno\b"):
            await server.comes_up()
        assert server.process.poll() is not None
