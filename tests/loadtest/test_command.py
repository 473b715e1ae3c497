import json
import queue
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio

from gridsched.cli.main import main
from loadtest.result import Result
from tests.loadtest.stand_in import StandIn
from tests.loadtest.stub import Answer, as_json, serving
from tests.support.gateway import clean_environment, command

QUICK = ("--chat", "1", "--background", "0", "--batch", "1", "--embed", "1", "--seconds", "0.2")
BUSY = as_json({"error": {"message": "busy \x1b[31m"}}, status=503)


@contextmanager
def standing(stand_in: Answer) -> Iterator[str]:
    """Its address, for as long as the block lasts: on a loop and a thread of its own."""
    told: queue.Queue[tuple[str, trio.lowlevel.TrioToken, trio.Event]] = queue.Queue()

    async def stand() -> None:
        over = trio.Event()
        async with serving(stand_in) as stub:
            told.put((stub.url, trio.lowlevel.current_trio_token(), over))
            await over.wait()

    thread = threading.Thread(target=trio.run, args=(stand,))
    thread.start()
    url, token, over = told.get(timeout=30)
    try:
        yield url
    finally:
        token.run_sync_soon(over.set)
        thread.join()


@pytest.mark.slow
def test_a_run_without_a_fault_is_0_with_its_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """The class table, what the server did, who worked with which model; progress beside it."""
    with standing(StandIn()) as url:
        assert main(["loadtest", "--url", f"{url}/v1", *QUICK]) == 0
    said = capsys.readouterr()
    assert "0 loads, 0 needless loads, 0 evictions, 0 relief steps, 0 times of thrash" in said.out
    assert "chat: big" in said.out
    assert [line.split()[0] for line in said.out.splitlines()[1:4]] == ["interactive", "batch", "embeddings"]
    assert "warm-up" in said.err


@pytest.mark.slow
def test_an_error_is_1_and_its_sentence_does_nothing_to_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """The server's words, how often, and whose."""
    stand_in = StandIn(on_request=lambda asked: BUSY if asked.fields["model"] == "big" else None)
    with standing(stand_in) as url:
        assert main(["loadtest", "--server", url, *QUICK]) == 1
    said = capsys.readouterr()
    assert r"failed: chat: 503: busy \x1b[31m (1 times)" in said.out
    assert "left out: chat: its model big did not answer in the warm-up" in said.out
    assert "gridsched: 1 failed request" in said.err


@pytest.mark.slow
def test_a_needless_load_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    """Though every request was answered."""
    with standing(StandIn(per_request={"needless_loads": 1})) as url:
        assert main(["loadtest", "--server", url, *QUICK]) == 1
    assert "needless load" in capsys.readouterr().err


@pytest.mark.slow
def test_as_json_there_is_one_document_with_the_public_keys(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing else on standard output, and the key goes with every request."""
    stand_in = StandIn()
    with standing(stand_in) as url:
        code = main(["loadtest", "--server", url, "--json", "--seed", "7", "--api-key", "sesame", *QUICK])
    out = capsys.readouterr().out
    assert code == 0
    told = json.loads(out)
    assert {"classes", "loads", "needless_loads", "evictions", "relief_steps", "seed", "settings"} <= told.keys()
    assert (told["seed"], told["settings"]["seconds"], told["settings"]["loop"]) == (7, 0.2, "closed")
    assert Result.from_json(out.encode()).classes["embeddings"].errors == 0
    assert {asked.headers["authorization"] for asked in stand_in.requests} == {"Bearer sesame"}


def test_what_cannot_be_played_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody to make traffic, or less than was asked for."""
    words = ["--chat", "0", "--background", "0", "--batch", "0", "--embed", "0"]
    with standing(StandIn()) as url:
        assert main(["loadtest", "--server", url, *words]) == 1
        assert "cannot be tested: there is nobody to make traffic: every count is 0" in capsys.readouterr().err
        blind = {"big": StandIn().models["big"]}
    with standing(StandIn(models=blind)) as url:
        assert main(["loadtest", "--server", url, "--mix", "ambient", "--strict"]) == 1
        assert "no model of the server can do it (vision)" in capsys.readouterr().err


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_is_not_taken_says_which_option_has_one(status: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Before any traffic."""
    with standing(lambda _: as_json({"error": {"message": "no"}}, status=status)) as url:
        assert main(["loadtest", "--server", url]) == 1
    assert "--api-key" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--seconds", "0"],
        ["--seconds", "nan"],
        ["--seconds", "inf"],
        ["--chat", "-1"],
        ["--chat", "1.5"],
        ["--chat", "100000"],
        ["--rate", "0"],
        ["--rate", "fast"],
        ["--seed", "x"],
        ["--seed", str(2**63)],
        ["--timeout", "-3"],
        ["--mix", "none"],
        ["--url", "nobody"],
        ["--url", ""],
    ],
)
def test_figures_that_make_no_sense_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and the option is named."""
    with pytest.raises(SystemExit) as caught:
        main(["loadtest", *words])
    assert caught.value.code == 2
    assert words[0].replace("--url", "--server") in capsys.readouterr().err.replace("--url", "--server")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_tells_what_it_has_measured(number: signal.Signals) -> None:
    """130, the table, and that it was ended early."""
    with standing(StandIn()) as url:
        words = command("loadtest", "--server", url, "--seconds", "300")
        with subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment()
        ) as process:
            try:
                assert process.stderr is not None
                next(line for line in process.stderr if "traffic" in line)
                process.send_signal(number)
                out, err = process.communicate(timeout=60)
            finally:
                process.kill()
    assert process.returncode == 130
    assert out.splitlines()[1].startswith("interactive")
    assert "The run was ended early" in out
    assert "Traceback" not in err
