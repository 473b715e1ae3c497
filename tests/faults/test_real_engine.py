"""The same with the real engine, where its wheel is installed: what a stand-in may have got wrong."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gridsched.engine.find import find_engine
from tests.faults.bench import Bench, Served, serve
from tests.support.tiny_model import make_tiny_chat

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bench(benches: list[Bench], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Two names of one tiny model, of which one fits at a time, and a file that no engine can load."""
    found = find_engine()
    if not found.info.ok:
        pytest.skip(reason=found.info.problem)
    folder = tmp_path_factory.mktemp("real")
    tiny = Served(settings={"path": str(make_tiny_chat(folder / "tiny.gguf"))})
    settings = {"engine": {"path": found.info.path}, "devices": {"host_budget": "220MiB"}}
    running = serve(folder, {"one": tiny, "other": tiny, "odd": Served()}, settings=settings)
    benches.append(running)
    yield running
    assert running.gateway.stop() == 0


def test_B2_B20_a_real_engine_that_was_killed_is_started_once_for_all_who_ask(bench: Bench) -> None:
    """B2, B20: killed while it is idle; ten who ask at once are answered by the one process after it."""
    assert bench.chat("one").status == 200
    os.kill(bench.pid("one"), signal.SIGKILL)
    bench.until(lambda: not bench.instances("one"), "it is gone from the books")
    with ThreadPoolExecutor(10) as pool:
        assert [answer.status for answer in pool.map(bench.chat, ["one"] * 10)] == [200] * 10
    assert len(bench.events("load", "one")) == 2


def test_B5_a_real_engine_ends_its_stream_before_another_takes_its_place(bench: Bench) -> None:
    """B5: who asks for it again while it drains is served by its next process."""
    assert bench.chat("one").status == 200
    first = bench.pid("one")
    with bench.streamed("one", max_tokens=1500) as lines, ThreadPoolExecutor() as pool:
        next(lines)
        other = pool.submit(bench.chat, "other")
        bench.until(lambda: bench.is_in("one", "draining"), "it drains")
        again = pool.submit(bench.chat, "one")
        assert list(lines)[-1] == b"data: [DONE]"
        assert (other.result().status, again.result().status) == (200, 200)
    assert bench.pid("one") != first


def test_B24_a_real_engine_says_what_is_wrong_with_a_file(bench: Bench) -> None:
    """B24: its own words for it, and the file in which there are more."""
    refused = bench.chat("odd")
    assert (refused.status, refused.error["code"]) == (503, "model_failed")
    assert refused.error["gridsched"]["cause"] == "damaged_file"
    assert "layer_norm_rms_epsilon" in refused.error["message"]
    assert refused.error["gridsched"]["log"] == str(bench.folder / "data" / "logs" / "odd.log")


def test_B30_real_engines_take_turns_on_one_memory(bench: Bench) -> None:
    """B30: eight starts, one behind the other, each with the memory that the one before has given back."""
    before = len(bench.events("load"))
    for _ in range(4):
        assert [bench.chat(model).status for model in ("one", "other")] == [200, 200]
    assert len(bench.events("load")) >= before + 7
