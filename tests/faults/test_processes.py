"""Section B: a load's life, from its start to memory that is back, on real processes behind one gateway."""

import http.client
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from tests.faults.bench import GIB, Bench, Served, chat_body, engine_program, serve
from tests.faults.conftest import Start
from tests.support.processes import gone, watched

pytestmark = pytest.mark.slow

BIG = Served(weights_bytes=10 * GIB)
"""Two of them do not fit at once."""

SMALL = ("b1", "b2", "l6d", "b7e", "b7c", "b15late", "b17", "b20", "b24", "b27", "b29")
PAIRS = ("b4", "b5", "b8", "b19", "b30")


@pytest.fixture(scope="module")
def bench(benches: list[Bench], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One gateway: a small model for each test that needs one, and two that do not fit together for the others."""
    models = dict.fromkeys(SMALL, Served()) | {f"{name}{side}": BIG for name in PAIRS for side in "xy"}
    models["b15"] = BIG  # a load that should take ten seconds
    running = serve(tmp_path_factory.mktemp("processes"), models, settings={"devices": {"host_budget": "16GiB"}})
    benches.append(running)
    yield running
    assert running.gateway.stop() == 0


@pytest.fixture(scope="module", autouse=True)
def failed_long_ago(bench: Bench) -> None:
    """B1's first start fails before all other tests, so that its back-off is nearly over when its own comes."""
    bench.tell("b1", exit_at="start", print_lines=["the first start goes wrong"])
    refused = bench.chat("b1")
    assert (refused.status, refused.error["code"]) == (503, "model_failed")
    assert "the first start goes wrong" in refused.error["gridsched"]["log_tail"]
    assert bench.status()["failed"]["b1"]["retry_after_s"] > 0.0
    bench.tell("b1")


def test_B2_a_model_that_was_killed_while_idle_is_loaded_again(bench: Bench) -> None:
    """B2: the death is seen without being asked, its memory goes from the books, and the next chat is answered."""
    assert bench.chat("b2").status == 200
    os.kill(bench.pid("b2"), signal.SIGKILL)
    assert bench.until_event("exit", "b2")["cause"] == "killed"
    bench.until(lambda: not bench.instances("b2"), "it is gone from the books")
    assert bench.chat("b2").status == 200
    assert bench.starts("b2") == 2


def test_B4_a_client_that_reads_nothing_more_and_dies_does_not_hold_a_drain_for_ever(bench: Bench) -> None:
    """B4: while it lives, who waits is told for whom; once it is dead, its model goes and the other is served."""
    assert bench.chat("b4x").status == 200
    with asked(bench, "b4x", stream=True, max_tokens=1_000_000) as client, ThreadPoolExecutor() as pool:
        bench.until(lambda: bench.instances("b4x")[0]["slots"]["busy"] == 1, "its step runs")
        other = pool.submit(bench.chat, "b4y")
        bench.until(lambda: bench.is_in("b4x", "draining"), "it drains")
        assert "b4x" in waiting(bench)["b4y"]
        assert bench.instances("b4x")[0]["slots"]["busy"] == 1
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()
        assert other.result().status == 200
    assert not bench.instances("b4x")


def test_B5_a_request_for_a_model_that_is_just_going_waits_and_is_served_by_its_next_process(bench: Bench) -> None:
    """B5: in a drain beside a stream, and between its signal and its end: both 200, the dying one unasked."""
    bench.tell("b5x", tokens_per_second=20, term_delay_seconds=0.6)
    assert bench.chat("b5x").status == 200
    first = bench.pid("b5x")
    with bench.streamed("b5x", max_tokens=8) as lines, ThreadPoolExecutor() as pool:
        next(lines)
        with held(bench, "b5x"):
            other = pool.submit(bench.chat, "b5y")
            bench.until(lambda: bench.is_in("b5x", "draining"), "it drains")
            in_drain = pool.submit(bench.chat, "b5x")
            bench.until(lambda: "b5x" in waiting(bench), "it waits")
        assert b"data: [DONE]" in list(lines)
        bench.until_event("evict", "b5x")
        in_the_end = pool.submit(bench.chat, "b5x")
        assert [asked.result().status for asked in (other, in_drain, in_the_end)] == [200, 200, 200]
    assert first not in bench.pids("b5x")
    assert bench.starts("b5x") == 2
    assert bench.recorded("b5x", "path").count("/v1/chat/completions") == 4


@pytest.mark.parametrize(
    ("model", "switches", "words"),
    [
        ("b7e", {"exit_at": "start"}, "status 1"),
        ("b7c", {"exit_at": "load", "exit_signal": int(signal.SIGSEGV)}, "SIGSEGV"),
    ],
)
def test_B7_who_waits_is_told_at_once_when_the_process_dies_while_it_loads(
    bench: Bench, model: str, switches: dict[str, object], words: str
) -> None:
    """B7: not at the load's limit of 20 s, with how it ended and its last lines; no memory is booked for it."""
    bench.tell(model, start_delay_seconds=0.2, print_lines=["loading", "the file is odd"], **switches)
    refused = bench.chat(model)
    assert (refused.status, refused.error["code"]) == (503, "model_failed")
    assert words in refused.error["message"]
    assert refused.error["gridsched"]["log_tail"][-2:] == ["loading", "the file is odd"]
    assert int(refused.headers["x-gridsched-queue-ms"]) < 10_000
    bench.until(lambda: not bench.instances(model), "its memory is free")


def test_L6d_a_file_that_was_fetched_again_is_tried_at_once(bench: Bench) -> None:
    """The refusal says to fetch it again: who did so need not wait for the back-off of a minute, nor for a restart."""
    told = "gguf_init_from_file_impl: invalid magic characters: 'xxxx', expected 'GGUF'"
    bench.tell("l6d", exit_at="start", print_lines=[told])
    refused = bench.chat("l6d")
    assert (refused.error["gridsched"]["cause"], int(refused.headers["retry-after"])) == ("damaged_file", 60)
    bench.tell("l6d")
    os.utime(bench.folder / "l6d.gguf")
    assert bench.chat("l6d").status == 200
    assert bench.starts("l6d") == 2


def test_B8_a_model_that_loads_is_no_victim(bench: Bench) -> None:
    """B8: the second comes while the first loads, and waits until that has served who waited for it."""
    bench.tell("b8x", start_delay_seconds=0.4)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(bench.chat, "b8x")
        with held(bench, "b8x"):
            second = pool.submit(bench.chat, "b8y")
            bench.until(lambda: "b8y" in waiting(bench), "it waits")
        assert (first.result().status, second.result().status) == (200, 200)
    assert bench.starts("b8x") == 1
    assert bench.events("complete", "b8x")[0]["seq"] < bench.events("load", "b8y")[0]["seq"]


def test_B10_B11_what_a_killed_gateway_leaves_is_ended_and_nobody_else(start: Start, tmp_path: Path) -> None:
    """B10, B11: no engine outlives it, not one that stands still; the next gateway starts, and leaves alone somebody
    else's engine, and whoever has a number that was noted: another process by now, the test itself, none at all."""
    bench = start({"one": Served(), "two": Served()})
    for model in ("one", "two"):
        assert bench.chat(model).status == 200
    pids = [bench.pid("one"), bench.pid("two")]
    os.kill(pids[1], signal.SIGSTOP)
    words = [str(engine_program(tmp_path)), "--host", str(tmp_path / "foreign.sock"), "--parallel", "1"]
    with (
        subprocess.Popen([*words, "--ctx-size", "512", "--alias", "foreign"]) as foreign,
        subprocess.Popen(["/bin/sleep", "60"]) as innocent,
        watched(pids) as pidfds,
    ):
        try:
            bench.gateway.process.kill()
            bench.gateway.process.wait(10)
            assert gone(pidfds, 10.0), "an engine has outlived its gateway"
            note(tmp_path / "data" / "run" / "children.json", innocent.pid, os.getpid(), -1)
            again = start()
            assert again.chat("one").status == 200
            assert (foreign.poll(), innocent.poll()) == (None, None)
            said = again.gateway.log.read_text(encoding="utf-8")
            assert f"process {innocent.pid} is another one than was noted" in said
            assert "1 of 5 entries make no sense" in said
        finally:
            foreign.kill()
            innocent.kill()


def note(path: Path, *pids: int) -> None:
    """Add processes to what a server has noted of its own, with starts that are not theirs."""
    noted = json.loads(path.read_text(encoding="utf-8"))
    noted["children"] += [{"pid": pid, "start_ticks": 1, "model": "one", "spawn": "gridsched-0"} for pid in pids]
    path.write_text(json.dumps(noted), encoding="utf-8")


def test_B15_a_load_that_has_just_begun_ends_with_the_last_who_waited_for_it(bench: Bench) -> None:
    """B15: its process is gone long before it would have been ready, and who comes next is served by a fresh one."""
    bench.tell("b15", start_delay_seconds=15.0)
    with asked(bench, "b15"):
        bench.until_event("load", "b15")
    assert bench.until_event("stop", "b15")["rule"] == "S6c"
    bench.until(lambda: not bench.pids("b15"), "it is gone")
    bench.tell("b15")
    assert bench.chat("b15").status == 200
    assert len(bench.events("load", "b15")) == 2


def test_B15_a_load_that_is_nearly_done_is_finished_and_serves_who_comes_next(bench: Bench) -> None:
    """The last who waited for it leaves when it has taken as long as the load before it: one process, nothing ended."""
    assert bench.chat("b15late").status == 200
    os.kill(bench.pid("b15late"), signal.SIGKILL)
    bench.until(lambda: not bench.instances("b15late"), "it is gone from the books")
    with asked(bench, "b15late") as client, held(bench, "b15late"):
        with suppress(subprocess.TimeoutExpired):
            bench.gateway.process.wait(bench.until_event("ready", "b15late")["load_s"])
        client.close()
        bench.until_event("cancel", "b15late")
    assert bench.chat("b15late").status == 200
    assert (bench.starts("b15late"), bench.events("stop", "b15late")) == (2, [])


def test_B17_a_process_that_prints_megabytes_loads_and_serves(bench: Bench) -> None:
    """B17: before it listens and with every answer; somebody reads all of it, and its log stays within bounds."""
    bench.tell("b17", print_bytes=2 << 20, print_bytes_per_request=200 << 10)
    assert [bench.chat("b17").status for _ in range(5)] == [200] * 5
    logs = list((bench.folder / "data" / "logs").glob("b17.log*"))
    assert logs
    assert sum(path.stat().st_size for path in logs) <= 20 << 20


def test_B19_a_process_that_will_not_go_is_killed_after_its_grace(bench: Bench) -> None:
    """B19: which is told; and what waited for its memory is loaded then, not before."""
    bench.tell("b19x", ignore_term=True)
    assert bench.chat("b19x").status == 200
    pid = bench.pid("b19x")
    assert bench.chat("b19y").status == 200
    assert not Path(f"/proc/{pid}").exists()
    told = f"process {pid} has not ended 1 s after it was told to: it is killed"
    assert told in bench.gateway.log.read_text(encoding="utf-8")
    gone, loaded = bench.events("exit", "b19x")[0]["seq"], bench.events("load", "b19y")[0]["seq"]
    assert gone < loaded


def test_B20_twenty_who_ask_for_a_cold_model_at_once_start_it_once(bench: Bench) -> None:
    """B20: all are answered, by one process, one after the other on its slot."""
    bench.tell("b20", start_delay_seconds=0.2)
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(bench.chat, ["b20"] * 20))
    assert [answer.status for answer in answers] == [200] * 20
    assert bench.starts("b20") == 1
    steps = sorted(bench.events("dispatch", "b20") + bench.events("complete", "b20"), key=lambda line: line["seq"])
    assert [line["event"] for line in steps] == ["dispatch", "complete"] * 20


def test_B24_a_load_that_fails_says_why(bench: Bench) -> None:
    """B24: the line that tells, in the message; and the file that has the rest."""
    bench.tell("b24", exit_at="start", print_lines=["error loading model: unknown model architecture: 'foo'", "bye"])
    refused = bench.chat("b24")
    assert refused.error["code"] == "model_failed"
    assert refused.error["gridsched"]["cause"] == "unknown_architecture"
    assert "unknown model architecture: 'foo'" in refused.error["message"]
    assert refused.error["gridsched"]["log"] == str(bench.folder / "data" / "logs" / "b24.log")


def test_B27_health_is_what_is_known_and_asks_no_engine(bench: Bench) -> None:
    """B27: with an engine that hangs on the question ten answers come while it is still being asked the first time."""
    bench.tell("b27", hang_at="/health")
    with asked(bench, "b27") as connection:
        bench.until(lambda: "/health" in bench.recorded("b27", "path"), "the engine is asked")
        answers = [bench.ask("/health").json for _ in range(10)]
        assert {(answer["status"], answer["can_serve"]) for answer in answers} == {("ok", True)}
        assert all("b27" in answer["loading"] for answer in answers)
        assert bench.recorded("b27", "path").count("/health") == 1
        os.kill(bench.pid("b27"), signal.SIGKILL)
        assert connection.getresponse().status == 503


def test_B29_output_that_is_no_text_hinders_no_load(bench: Bench) -> None:
    """B29: 200 KiB without an end of line, bytes that are no UTF-8, then lines."""
    bench.tell("b29", print_raw_hex="2e" * (200 << 10) + "fffe0a" + b"an honest line\n".hex())
    assert bench.chat("b29").status == 200
    lines = (bench.folder / "data" / "logs" / "b29.log").read_text(encoding="utf-8").splitlines()
    assert "an honest line" in lines
    assert max(map(len, lines)) <= 8 << 10


def test_B30_addresses_come_back_however_a_process_ends(bench: Bench) -> None:
    """B30: twelve starts in turn, some ended by SIGKILL: none finds its address taken, none is left over."""
    for turn in range(6):
        for side in "xy":
            assert bench.chat(f"b30{side}").status == 200
        if turn % 2:
            os.kill(bench.pid("b30y"), signal.SIGKILL)
            bench.until(lambda: not bench.instances("b30y"), "it is gone")
    assert bench.starts("b30x") == 6
    bench.until(lambda: len(sockets(bench)) == len(bench.status()["instances"]), "no address is left behind")


def test_P1_an_engine_that_knows_ports_only_is_served_at_them_and_said_to_be(start: Start) -> None:
    """B13, B30: found out at the start, with a key for each process; killed, it is started at another port."""
    bench = start({"p": Served()}, env={"FAKE_LLAMA": '{"no_unix_socket": true}'})
    assert bench.chat("p").status == 200
    os.kill(bench.pid("p"), signal.SIGKILL)
    bench.until(lambda: not bench.instances("p"), "it is gone")
    assert bench.chat("p").status == 200
    ports = [argv[argv.index("--port") + 1] for argv in bench.recorded("p", "argv")]
    keys = [env["LLAMA_API_KEY"] for env in bench.recorded("p", "env")]
    assert len(ports) == len(set(keys)) == 2
    assert sockets(bench) == []
    assert "cannot listen at a Unix socket" in (bench.folder / "serve.log").read_text(encoding="utf-8")


def test_B1_a_model_whose_start_failed_is_started_again_later(bench: Bench) -> None:
    """B1: when it may be is told, and by then it works; nothing had to be restarted."""
    rest_seconds = bench.status()["failed"].get("b1", {"retry_after_s": 0.0})["retry_after_s"]
    assert rest_seconds <= 10.0
    with suppress(subprocess.TimeoutExpired):
        bench.gateway.process.wait(rest_seconds + 0.05)
    assert bench.chat("b1").status == 200
    assert bench.starts("b1") == 2


@contextmanager
def asked(bench: Bench, model: str, **more: object) -> Iterator[http.client.HTTPConnection]:
    """One chat that is sent and, at the block's exit, left."""
    with closing(bench.connect()) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(chat_body(model, **more)))
        yield connection


@contextmanager
def held(bench: Bench, model: str) -> Iterator[None]:
    """A model's process, as soon as there is one, stands still until the block's exit: what it does lasts so long."""
    bench.until(lambda: bench.pids(model), "it is started")
    pid = bench.pid(model)
    os.kill(pid, signal.SIGSTOP)
    yield
    os.kill(pid, signal.SIGCONT)


def waiting(bench: Bench) -> dict[str, str]:
    """The models that somebody waits for, and why."""
    return {item["model"]: item["reason"] for item in bench.status()["waiting"]}


def sockets(bench: Bench) -> list[Path]:
    """The addresses of engines."""
    return list((bench.folder / "data" / "run").glob("*.sock"))
