"""S10, S11 and P2 on real processes behind a wrapper script: low work stands for chats, is taken away, or is killed.

The wrapper is a shell that waits for the engine: what is signalled must be the whole group.
"""

import json
import os
import select
import signal
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from gridsched.engine.find import find_engine
from tests.support.gateway import PLAIN, Gateway, start
from tests.support.processes import gone, watched

pytestmark = pytest.mark.slow

STALL_SECONDS = 3.0
PROMPT = "Once upon a time there was a"
LOW, CHAT, ONE_SLOT = "low", "chat", "one-slot"


def wrapped_engine(folder: Path) -> Path:
    """The engine that a gateway would find, behind a script that does not become it."""
    found = find_engine()
    settings = "".join(f"export {name}='{value}'\n" for name, value in found.env.items())
    script = folder / "llama-server"
    script.write_text(f'#!/bin/sh\n{settings}"{found.info.path}" "$@"\nexit $?\n', encoding="utf-8")
    script.chmod(0o755)
    return script


def start_pausing(folder: Path, model: Path, stall_seconds: float) -> Gateway:
    """Three names for one file, and low work that stands still or is taken away for chats."""
    config = folder / "gridsched.yaml"
    config.write_text(
        textwrap.dedent(f"""\
        engine: {{path: "{wrapped_engine(folder)}"}}
        scheduler:
          {{interactive_cooldown: 100ms, background_pause: on, pause_limit: 30s, abort_after: 100ms,
           stall_limit: {stall_seconds:g}s}}
        library: {{dirs: [], default_model: {CHAT}}}
        models:
          {CHAT}: {{path: "{model}", ctx_size: 2048, parallel: 2, flags: ["--threads", "1"]}}
          {LOW}: {{path: "{model}", ctx_size: 1024, parallel: 1, class: background, flags: ["--threads", "1"]}}
          {ONE_SLOT}: {{path: "{model}", ctx_size: 1024, parallel: 1, flags: ["--threads", "1"]}}
        """),
        encoding="utf-8",
    )
    return start(folder, "--config", str(config))


@pytest.fixture(scope="module")
def shared(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One gateway for three tests; the last kills it."""
    server = start_pausing(tmp_path_factory.mktemp("pausing"), models[0], 600.0)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def strict(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One that suffers no silence, for two tests that stream; the second tells it to stop."""
    server = start_pausing(tmp_path_factory.mktemp("strict"), models[0], STALL_SECONDS)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def clients() -> Iterator[ThreadPoolExecutor]:
    """Threads for requests that are under way while a test goes on."""
    with ThreadPoolExecutor(4) as pool:
        yield pool


def words(tokens: int, **more: object) -> dict[str, object]:
    """A completion without chance, and without what an earlier one has left in the slot."""
    return {"prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "cache_prompt": False, "ignore_eos": True, **more}


def complete(server: Gateway, model: str, tokens: int, **more: object) -> str:
    """The text of one completion."""
    answer = server.post("/v1/completions", {"model": model, **words(tokens, **more)})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def streamed(server: Gateway, model: str, tokens: int) -> str:
    """The same, as it comes: what is silent for longer than the stall limit would be ended."""
    body = {"model": model, "stream": True, **words(tokens)}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60.0, **PLAIN) as answer:
        lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", lines[-1]
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines[:-1])


def last_seq(server: Gateway) -> int:
    """How far the decision log is."""
    return max((int(str(line["seq"])) for line in server.events()), default=0)


def wait_for(server: Gateway, since: int, event: str, model: str) -> dict[str, object]:
    """The first line of that kind after a number."""
    params = {"since": str(since)}
    with httpx.stream("GET", f"{server.url}/api/events", params=params, timeout=20.0, **PLAIN) as log:
        for line in log.iter_lines():
            if line.startswith("data:"):
                said: dict[str, object] = json.loads(line[5:])
                if (said["event"], said.get("model")) == (event, model):
                    return said
    raise AssertionError(f"no {event} of {model}")


@contextmanager
def chatting(server: Gateway) -> Iterator[None]:
    """Somebody's answer is generated all the while; then they leave."""
    body = {"model": CHAT, "stream": True, **words(1500)}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60.0, **PLAIN) as answer:
        lines = answer.iter_lines()  # kept: the connection ends with it
        next(lines)
        yield


def group_of(server: Gateway, model: str) -> dict[int, str]:
    """The processes of a model's group, with the states that the kernel shows."""
    noted = json.loads((server.log.parent / "data" / "run" / "children.json").read_bytes())["children"]
    (leader,) = (child["pid"] for child in noted if child["model"] == model)
    found = {}
    for stat in Path("/proc").glob("[1-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == leader:
            found[int(stat.parent.name)] = fields[0]
    return found


def all_standing(server: Gateway, model: str) -> dict[int, str]:
    """The processes of a model's group, which stand or are about to: a signal arrives when a process is next run."""
    for _ in range(200):
        states = group_of(server, model)
        if set(states.values()) == {"T"}:
            return states
        select.select([], [], [], 0.01)
    raise AssertionError(f"they do not stand: {states}")


@contextmanager
def standing(
    server: Gateway, clients: ThreadPoolExecutor, ask: Callable[[Gateway, str, int], str], tokens: int
) -> Iterator[tuple[Future[str], dict[int, str]]]:
    """A low generation that stands while somebody chats; it, and the processes that it stands in."""
    since = last_seq(server)
    low = clients.submit(ask, server, LOW, tokens)
    wait_for(server, since, "dispatch", LOW)
    with chatting(server):
        wait_for(server, since, "pause", LOW)
        yield low, all_standing(server, LOW)


def test_S10_a_generation_that_stood_still_says_the_same(strict: Gateway, clients: ThreadPoolExecutor) -> None:
    """The whole group stands, longer than an engine may be silent; after all pauses the text is the one without."""
    undisturbed = streamed(strict, LOW, 90)
    complete(strict, CHAT, 1)
    since = last_seq(strict)
    with standing(strict, clients, streamed, 90) as (low, group):
        assert len(group) == 2
        with pytest.raises(TimeoutError):
            low.result(STALL_SECONDS + 0.5)
    for _ in range(2):
        complete(strict, CHAT, 2)
    assert low.result(60) == undisturbed
    log = [line for line in strict.events() if int(str(line["seq"])) > since and line.get("model") == LOW]
    kinds = [line["event"] for line in log]
    assert kinds.count("pause") == kinds.count("resume") >= 2
    stood = [float(str(line["seconds"])) for line in log if line["event"] == "resume"]
    assert max(stood) > STALL_SECONDS


def test_S10_P8_a_gateway_that_is_told_to_stop_continues_what_stands(
    strict: Gateway, clients: ThreadPoolExecutor
) -> None:
    """The low answer is finished, the processes end, and nothing is left."""
    with ExitStack() as kept:
        with standing(strict, clients, streamed, 120) as (low, group):
            pidfds = kept.enter_context(watched(list(group)))
            strict.process.send_signal(signal.SIGTERM)
            assert len(low.result(30)) > 60
        assert strict.process.wait(20) == 0
        assert gone(pidfds, 0.0)
    assert "Traceback" not in strict.log.read_text(encoding="utf-8")


def test_P5_a_standing_process_that_a_person_kills_is_started_again(
    shared: Gateway, clients: ThreadPoolExecutor
) -> None:
    """With what is left of its group; the chat notices nothing, and the low request gets its whole answer."""
    undisturbed = complete(shared, LOW, 120)
    complete(shared, CHAT, 1)  # it is loaded: a chat that loads would begin when the low answer has ended
    leaders = set(shared.children())
    with standing(shared, clients, complete, 120) as (low, group):
        (leader,) = leaders & group.keys()
        with watched(list(group)) as pidfds:
            os.kill(leader, signal.SIGKILL)
            assert gone(pidfds, 10.0)
    assert low.result(60) == undisturbed


def test_S11_a_generation_that_was_taken_away_answers_whole(shared: Gateway, clients: ThreadPoolExecutor) -> None:
    """The one slot is wanted by a chat: the low generation makes room, and runs again from the beginning."""
    undisturbed = complete(shared, ONE_SLOT, 60)
    since = last_seq(shared)
    low = clients.submit(complete, shared, ONE_SLOT, 60, x_class="background")
    wait_for(shared, since, "dispatch", ONE_SLOT)
    complete(shared, ONE_SLOT, 2)
    assert wait_for(shared, since, "abort", ONE_SLOT)["rule"] == "S11"
    assert low.result(60) == undisturbed


def test_P2_kill_9_of_the_gateway_ends_what_stands_within_a_second(
    shared: Gateway, clients: ThreadPoolExecutor
) -> None:
    """The wrapper by the kernel, the engine that it had started by the guard."""
    with standing(shared, clients, complete, 120) as (low, group), watched(list(group)) as pidfds:
        shared.process.kill()
        shared.process.wait(10)
        assert gone(pidfds, 1.0)
    assert isinstance(low.exception(10), httpx.HTTPError)
