import json
import shutil
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.bench import __main__ as command
from loadtest.bench import compare
from loadtest.bench.cases import SETTINGS
from loadtest.bench.compare import checked_out
from loadtest.bench.processes import Child, Processes, asked, clean_environment, free_port, printed, wait_until_answers
from loadtest.bench.result import BenchFault, BenchResult
from loadtest.bench.tools import Traffic, compiled, drive
from loadtest.bench.variants import PROBE

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))),
    reason="the benchmark's programs are C, and there is no compiler",
)
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The load generator and the stub engine."""
    folder = tmp_path_factory.mktemp("programs")
    return compiled("load", folder, "-Werror"), compiled("engine_stub", folder, "-Werror")


@pytest.fixture
def stub(programs: tuple[Path, Path], tmp_path: Path) -> Iterator[tuple[Child, int, Path]]:
    """A stub engine at a port, and the file in which it tells of clients that left."""
    port, events = free_port(), tmp_path / "events"
    with Processes(tmp_path) as processes:
        env = {"ENGINE_STUB_EVENTS": str(events), "ENGINE_STUB_WIDTH": "3"}
        child = processes.start("stub", (str(programs[1]), "--port", str(port), "--tags", "ours"), env)
        wait_until_answers(child, port, CHAT, PROBE, 10.0)
        yield child, port, events


def get(port: int, target: str) -> object:
    """What the stub says of itself."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{target}") as answer:
        return json.loads(answer.read())


def body(folder: Path, **more: object) -> Path:
    """A request's body as a file."""
    path = folder / "body.json"
    path.write_text(json.dumps({"model": "tiny", "messages": [], **more}), encoding="utf-8")
    return path


@pytest.mark.slow
def test_both_programs_are_compiled_without_a_warning(programs: tuple[Path, Path]) -> None:
    """-Wall and -Wextra, and a warning is an error."""
    assert all(program.is_file() for program in programs)


@pytest.mark.slow
def test_the_stub_tells_of_itself_as_an_engine_does(programs: tuple[Path, Path]) -> None:
    """Version, flags and devices, as a found engine is asked."""
    assert printed((str(programs[1]), "--version")).startswith("version:")
    assert "--parallel N" in printed((str(programs[1]), "--help"))
    assert "Available devices" in printed((str(programs[1]), "--list-devices"))


@pytest.mark.slow
def test_the_stub_answers_what_a_gateway_asks(stub: tuple[Child, int, Path]) -> None:
    """Health, tag, slots; a vector for each input, whatever is written in it; bodies are counted to their last byte."""
    _, port, _ = stub
    assert get(port, "/health") == {"status": "ok"}
    assert get(port, "/v1/models")["data"][0]["tags"] == ["ours"]  # type: ignore[index]
    assert get(port, "/slots") == [{"id": 0, "is_processing": False}]
    before = get(port, "/stub")["bytes_up"]  # type: ignore[index]
    inputs = ["a", 'two "quoted], words', "[3", "c"]
    told = json.loads(asked(port, "/v1/embeddings", json.dumps({"input": inputs}).encode())[1])
    assert [len(one["embedding"]) for one in told["data"]] == [3] * 4
    assert len(json.loads(asked(port, "/v1/embeddings", b'{"input": [[1, 2], [3]]}')[1])["data"]) == 2
    assert len(json.loads(asked(port, "/v1/embeddings", b'{"input": "a"}')[1])["data"]) == 1
    large = json.dumps({"messages": [], "filler": "x" * 3_000_000}).encode()
    assert json.loads(asked(port, CHAT, large)[1])["choices"][0]["finish_reason"] == "stop"
    assert get(port, "/stub")["bytes_up"] - before >= len(large)  # type: ignore[index]


@pytest.mark.slow
def test_small_requests_are_counted_and_timed(
    stub: tuple[Child, int, Path], programs: tuple[Path, Path], tmp_path: Path
) -> None:
    """Each client makes as many as it is told to, and none fails."""
    traffic = Traffic(body=body(tmp_path), clients=3, seconds=1, warm_s=0, more=("--once", "20"))
    seen = drive(programs[0], stub[1], "unused", traffic)
    assert (seen.requests, seen.errors, seen.stale, seen.failed) == (60, 0, 0, "")
    assert seen.latency is not None
    assert 0 < seen.latency.p50_us <= seen.latency.p99_us <= seen.latency.most_us


@pytest.mark.slow
def test_every_event_of_a_stream_is_seen_once(
    stub: tuple[Child, int, Path], programs: tuple[Path, Path], tmp_path: Path
) -> None:
    """Those with a moment in them, and all of them: with the last one and the end's mark."""
    asked_for = body(tmp_path, stream=True, max_tokens=2000, seed=0)
    traffic = Traffic(body=asked_for, clients=2, seconds=1, warm_s=0, more=("--once", "2"))
    seen = drive(programs[0], stub[1], "unused", traffic)
    assert (seen.requests, seen.events, seen.texts, seen.errors) == (4, 8000, 8008, 0)
    assert seen.delay is not None
    assert seen.delay.count == 8000


@pytest.mark.slow
def test_the_stub_tells_of_clients_that_leave(
    stub: tuple[Child, int, Path], programs: tuple[Path, Path], tmp_path: Path
) -> None:
    """A line for each of them, behind the moment in which it left."""
    words = ("--cancel-after", "2", "--once", "3", "--pause-ms", "30")
    traffic = Traffic(
        body=body(tmp_path, stream=True, max_tokens=500, seed=2000), clients=1, seconds=1, warm_s=0, more=words
    )
    seen = drive(programs[0], stub[1], "unused", traffic)
    told = [int(line.split()[1]) for line in stub[2].read_text(encoding="utf-8").splitlines()]
    assert len(seen.closed_ns) == len(told) == 3
    assert all(left <= noticed for left, noticed in zip(seen.closed_ns, told, strict=True))


@pytest.mark.slow
def test_failures_are_counted_by_kind(programs: tuple[Path, Path], tmp_path: Path) -> None:
    """Nobody listens there."""
    traffic = Traffic(body=body(tmp_path), clients=1, seconds=0.1, warm_s=0, more=("--once", "4"))
    seen = drive(programs[0], free_port(), "unused", traffic)
    assert (seen.requests, seen.errors, seen.failures) == (0, 4, {"connect": 4})
    assert seen.failed == "4 connect"


@pytest.mark.slow
def test_every_case_runs_once_and_leaves_json_table_and_pictures(programs: tuple[Path, Path], tmp_path: Path) -> None:
    """One short round in front of the stub: each case has a row for every way, one of them by its command line; no
    request fails, what is not there is named, and neither a path nor a host's name is in what is left behind."""
    words = ("--rounds", "1", "--seconds", "0.1", "--upstreams", "stub", "--cases", *SETTINGS, "--out", str(tmp_path))
    twin = f"twin={programs[1]} --port {{port}}"
    assert command.main((*words, "--litellm", str(tmp_path / "nowhere"), "--proxy", twin)) == 0
    raw = (tmp_path / "latest.json").read_bytes()
    result = BenchResult.from_json(raw)
    assert {(row.case, row.variant) for row in result.cases} == {
        (case, variant) for case in SETTINGS for variant in ("direct", "gridsched", "twin")
    }
    assert {row.errors for row in result.cases} == {0}
    assert all(row.rounds == 1 for row in result.cases)
    assert set(result.left_out) == {"llama-router (stub)", "litellm (stub)"}
    assert b"/tmp" not in raw
    assert "## Streams" in (tmp_path / "latest.md").read_text(encoding="utf-8")
    assert (tmp_path / "small_request.svg").is_file()


@pytest.mark.slow
def test_a_tree_is_compared_with_a_revision(capsys: pytest.CaptureFixture[str]) -> None:
    """Both are up at once; one round decides nothing."""
    assert compare.main(("HEAD", "--rounds", "1", "--seconds", "0.1", "--cases", "small_request")) == 0
    told = capsys.readouterr().out
    assert "| small_request | 1 client | cpu us per request |" in told
    assert "0 better, 0 worse, 0 same" in told


def test_a_revision_that_is_not_there_is_said(tmp_path: Path) -> None:
    """In a sentence, and with exit code 2."""
    with pytest.raises(BenchFault, match="git"):
        checked_out("no-such-revision", tmp_path)


@pytest.mark.slow
def test_programs_end_with_the_block_whatever_ends_it(tmp_path: Path) -> None:
    """Also those that take no notice of being told."""
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    processes = Processes(tmp_path, end_s=0.5)
    polite = processes.start("polite", ("sleep", "60"))
    stubborn = processes.start("stubborn", (sys.executable, "-c", deaf))
    while "up" not in stubborn.said():
        assert stubborn.running
    with pytest.raises(KeyboardInterrupt), processes:
        raise KeyboardInterrupt
    assert not polite.running
    assert not stubborn.running


def test_a_program_that_is_not_there_is_said(tmp_path: Path) -> None:
    """Its name and why."""
    with Processes(tmp_path) as processes, pytest.raises(BenchFault, match="ghost cannot be started: No such file"):
        processes.start("ghost", ("/nonexistent/ghost",))


def test_without_a_compiler_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and a sentence, never a traceback."""
    monkeypatch.setenv("PATH", "")
    assert command.main(("--cases", "small_request")) == 2
    assert "there is no C compiler" in capsys.readouterr().err


def test_a_proxy_without_a_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """What it takes is said."""
    assert command.main(("--proxy", "nginx")) == 2
    assert "NAME=COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--proxy", "=x"), "NAME=COMMAND"),
        (("--proxy", 'nginx=nginx -g "'), "cannot be read"),
        (("--proxy", "direct=x"), "no name for another proxy"),
        (("--out", f"{__file__}"), "nothing can be written"),
        (("--rounds", "0"), "1 to 1000 rounds"),
        (("--rounds", "many"), "1 to 1000 rounds"),
        (("--seconds", "0"), "0.01 to 60 seconds"),
        (("--seconds", "nan"), "0.01 to 60 seconds"),
    ],
)
def test_what_cannot_be_run_is_said_before_anything_is_started(
    words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and a sentence; the parser's own refusals end the program with the same code."""
    try:
        code: object = command.main(("--cases", "small_request", "--out", str(tmp_path), *words))
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    told = " ".join(capsys.readouterr().err.split())
    assert said in told
    assert "compiling" not in told or words[0] == "--proxy"


@pytest.mark.slow
def test_a_proxy_that_does_not_start_is_left_out_with_the_reason(tmp_path: Path) -> None:
    """What it said is told, with the last part of its paths; the others are measured."""
    words = ("--rounds", "1", "--seconds", "0.1", "--upstreams", "stub", "--variants", "--cases", "small_request")
    gone = f"gone={sys.executable} -c 'import sys; sys.exit(\"no {tmp_path}/file.conf\")' {{port}}"
    assert command.main((*words, "--out", str(tmp_path), "--proxy", gone)) == 0
    result = BenchResult.from_json((tmp_path / "latest.json").read_bytes())
    assert result.left_out == {"gone (stub)": "gone has ended with 1: no .../file.conf"}


def test_servers_are_started_without_settings_of_this_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither ours nor those of others, and no proxy on the way to loopback."""
    for name in ("GRIDSCHED_CONFIG", "LLAMA_ARG_PORT", "HTTPS_PROXY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("KEPT", "x")
    told = clean_environment()
    assert "KEPT" in told
    assert not {"GRIDSCHED_CONFIG", "LLAMA_ARG_PORT", "HTTPS_PROXY", "OPENAI_API_KEY"} & told.keys()
