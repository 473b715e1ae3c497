"""What a person sees when the server cannot start: one clear sentence, the contract's exit code, never a traceback."""

import io
import os
import shlex
import signal
import socket
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest

from gridsched.cli.main import main
from gridsched.settings.paths import DataDir
from tests.devices.driver import build_library
from tests.library.models import EMBEDDER, write_model
from tests.support.gateway import Gateway, begin, clean_environment, command, free_port, simulated_gateway, start
from tests.support.gguf_header import Value, build_header
from tests.support.hostile_gguf import write_all
from tests.support.tiny_model import make_tiny_chat

pytestmark = pytest.mark.slow


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the console script to its end."""
    variables = clean_environment() | environment
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=60, check=False, env=variables)


def asked(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The same within this process, for a command that serves nobody: what it says is the point, and importing
    everything anew takes longer than that. A traceback is one of the test's."""
    out, errors = io.StringIO(), io.StringIO()
    variables = clean_environment() | environment
    with patch.dict(os.environ, variables, clear=True), redirect_stdout(out), redirect_stderr(errors):
        try:
            code = main(list(words))
        except SystemExit as end:  # argparse's
            code = int(end.code or 0)
    return subprocess.CompletedProcess(words, code, out.getvalue(), errors.getvalue())


def refusal(done: subprocess.CompletedProcess[str], code: int) -> str:
    """The sentence of a start that was refused with this code."""
    assert "Traceback" not in done.stderr + done.stdout
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr + done.stdout


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """`serve` with everything of its own, and nothing found elsewhere."""
    (tmp_path / "models").mkdir()
    data, models = tmp_path / "data", tmp_path / "models"
    return ["serve", "--port", str(free_port()), "--data-dir", str(data), "--models-dir", str(models)]


def test_no_model_found_says_where_it_looked_and_what_to_do(words: list[str], tmp_path: Path) -> None:
    """Exit 2."""
    text = refusal(run(*words), 2)
    assert str(tmp_path / "models") in text
    assert "--models-dir" in text
    text = refusal(run(*words[:-1], str(tmp_path / "modles")), 2)
    assert f"{tmp_path / 'modles'} cannot be looked into: No such file or directory." in text


def test_a_new_machine_without_a_model_serves_what_comes(tmp_path: Path) -> None:
    """Where no folder is named none is wrong: it starts and says so, `check` is still 2, and a file that is put where
    models lie is served."""
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "HF_HOME": ""}
    text = refusal(asked("check", "--port", "0", "--data-dir", str(tmp_path / "data"), **home), 2)
    assert "no model found" in text
    assert "gridsched download" in text
    gateway = begin(tmp_path, env=home)
    try:
        assert gateway.comes_to(lambda: "listening" in gateway.log.read_text(encoding="utf-8"))
        assert "there is no model that could be served" in gateway.get("/health").json()["reasons"]
        (tmp_path / "models").mkdir()
        make_tiny_chat(tmp_path / "models" / "tiny.gguf")
        gateway.wait_until_up()
    finally:
        assert gateway.stop() == 0


def test_an_engine_that_is_not_there_is_said_with_how_to_get_one(words: list[str], tmp_path: Path) -> None:
    """Exit 2, with the configured path."""
    config = tmp_path / "c.yaml"
    config.write_text("engine: {path: /nowhere/llama-server}\n", encoding="utf-8")
    text = refusal(run(*words, "--config", str(config)), 2)
    assert "/nowhere/llama-server" in text


def test_a_configuration_with_an_unknown_key_names_file_line_and_the_nearest_key(
    words: list[str], tmp_path: Path
) -> None:
    """Exit 2."""
    config = tmp_path / "c.yaml"
    config.write_text("server:\n  prot: 1234\n", encoding="utf-8")
    text = refusal(run(*words, "--config", str(config)), 2)
    assert f"{config}:2:3" in text
    assert "port" in text


def test_R10_a_variant_that_turns_out_to_embed_is_told_at_its_place(words: list[str], tmp_path: Path) -> None:
    """Exit 2: what a file serves is known once it has been read, and the fault is told as those of the file are."""
    write_model(tmp_path / "chat.gguf")
    write_model(tmp_path / "embed.gguf", EMBEDDER)
    config = tmp_path / "c.yaml"
    config.write_text(
        "models:\n  a: {path: chat.gguf}\n  b: {path: embed.gguf}\nfamilies:\n  f: {preferred: a, compact: b}\n",
        encoding="utf-8",
    )
    text = refusal(run(*words, "--config", str(config)), 2)
    assert f"{config}:5:30: families.f.compact: b does not chat" in text


def test_a_base_that_is_not_there_is_told_at_its_place(words: list[str], tmp_path: Path) -> None:
    """Known once the folders have been read: the line, and the closest there is."""
    make_tiny_chat(tmp_path / "models" / "tiny-chat.gguf")
    config = tmp_path / "g.yaml"
    config.write_text("models:\n  reviewer: {base: tiny-chad}\n  other: {base: tiny-chat}\n", encoding="utf-8")
    said = refusal(run(*words, "--config", str(config)), 2)
    assert (
        f"{config}:2:20: models.reviewer.base: there is no model or family tiny-chad; did you mean tiny-chat?" in said
    )
    assert "models.other" not in said


def test_a_configuration_that_is_not_there_is_said(words: list[str], tmp_path: Path) -> None:
    """Exit 2."""
    assert "nope.yaml" in refusal(run(*words, "--config", str(tmp_path / "nope.yaml")), 2)


def test_a_port_that_is_taken_names_its_holder(words: list[str]) -> None:
    """Exit 3, before any child is started."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        text = refusal(run(*words, "--port", port), 3)
    assert port in text
    assert str(os.getpid()) in text


def test_a_data_directory_in_use_names_its_holder(tmp_path: Path) -> None:
    """Exit 4: two servers on one directory would tell each other's processes to stop."""
    models = tmp_path / "models"
    models.mkdir()
    make_tiny_chat(models / "tiny.gguf")
    first = start(tmp_path, "--models-dir", str(models))
    try:
        words = ["serve", "--port", str(free_port()), "--data-dir", str(tmp_path / "data"), "--models-dir", str(models)]
        assert str(first.process.pid) in refusal(run(*words), 4)
    finally:
        assert first.stop() == 0


def test_F1_F4_F5_F10_F11_F15_damaged_files_are_listed_and_the_others_are_served(tmp_path: Path) -> None:
    """One bad file does not take the server down: each hostile file, link, pipe and folder is in the list with its
    sentence, asking for it is 503, and whatever its name is (F10) it comes back unchanged. One that is whole by
    the time that somebody asks is served."""
    models = tmp_path / "models"
    models.mkdir()
    make_tiny_chat(models / "tiny.gguf")
    said = write_all(models)
    for kind in ("folder", "absent"):  # a folder is looked into, and nobody names what is not there
        del said[kind]
    names = ["qwen2.5-7b-v1.0", "a.b c:d@e", 'quote\'d "é" 🦙', "x" * 200]
    for name in names:
        (models / f"{name}.gguf").write_bytes(b"GGUF\x03\x00\x00\x00\xff")
        said[name] = "tensor count"
    late = models / "late.gguf"
    late.write_bytes(b"")
    gateway = start(tmp_path, "--models-dir", str(models))
    try:
        listed = {model["id"]: model for model in gateway.get("/v1/models").json()["data"]}
        assert "empty" in listed["late"]["gridsched"]["unavailable"]
        for name, words in said.items():
            assert words in listed[name]["gridsched"]["unavailable"], name
            answer = gateway.post(
                "/v1/chat/completions", {"model": name, "messages": [{"role": "user", "content": "x"}]}
            )
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_unavailable")
            assert words in answer.json()["error"]["message"]
        tiny = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        assert gateway.post("/v1/chat/completions", tiny).status_code == 200
        make_tiny_chat(late)  # what was being copied has arrived
        assert gateway.post("/v1/chat/completions", {**tiny, "model": "late"}).status_code == 200
    finally:
        assert gateway.stop() == 0
    table = gateway.log.read_text(encoding="utf-8")
    assert "unavailable" in table
    assert "Traceback" not in table


def big_model() -> bytes:
    """A header of a model with 40 GiB of weights in one tensor."""
    metadata: dict[str, Value] = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.context_length": 4096,
        "llama.embedding_length": 4096,
        "llama.feed_forward_length": 8192,
        "llama.attention.head_count": 32,
        "tokenizer.chat_template": "x",
    }
    tensors = [("token_embd.weight", (4096, 1 << 21), "F32"), ("blk.0.ffn_up.weight", (4096, 1 << 19), "F32")]
    return build_header(metadata, tensors)


def test_L7_a_model_that_can_never_fit_is_507_with_the_arithmetic(tmp_path: Path) -> None:
    """`check` says it and exits 2; `serve` serves the rest and refuses this one."""
    models = tmp_path / "models"
    models.mkdir()
    make_tiny_chat(models / "tiny.gguf")
    with (models / "huge.gguf").open("wb") as file:
        file.write(big_model())
        file.truncate(45 * 2**30)
    config = tmp_path / "c.yaml"
    config.write_text("devices: {host_budget: 2GiB}\n", encoding="utf-8")
    words = ["--models-dir", str(models), "--config", str(config)]
    check = refusal(asked("check", "--data-dir", str(tmp_path / "other"), *words), 2)
    assert "too big" in check
    assert "huge" in check
    gateway = start(tmp_path, *words)
    try:
        answer = gateway.post("/v1/chat/completions", {"model": "huge", "messages": [{"role": "user", "content": "x"}]})
    finally:
        assert gateway.stop() == 0
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (507, "insufficient_vram")
    assert error["gridsched"]["required_bytes"] > 40 * 2**30
    assert error["gridsched"]["available_bytes"] <= 2 * 2**30
    assert error["gridsched"]["max_ctx_that_fits"] == 0
    assert error["gridsched"]["retry_after_s"] is None


def test_check_finds_nothing_wrong_where_nothing_is(tmp_path: Path) -> None:
    """Exit 0."""
    models = tmp_path / "models"
    models.mkdir()
    make_tiny_chat(models / "tiny.gguf")
    done = asked("check", "--data-dir", str(tmp_path / "data"), "--models-dir", str(models))
    assert (done.returncode, "everything can be served" in done.stdout) == (0, True), done.stdout + done.stderr


def test_a_simulated_check_says_that_configured_models_are_left_out(tmp_path: Path) -> None:
    """It would be told that everything can be served, and not see that nothing of its own is."""
    config = tmp_path / "gridsched.yaml"
    config.write_text("models: {mine: {path: mine.gguf}}", encoding="utf-8")
    done = asked("check", "--sim", "--config", str(config))
    assert (done.returncode, "are left out" in done.stdout) == (0, True), done.stdout + done.stderr
    assert "left out" not in asked("check", "--sim").stdout


def test_check_looks_at_the_port_that_serve_would_be_told(tmp_path: Path) -> None:
    """The configuration's is somebody else's, and no matter to a server that listens on another."""
    config = tmp_path / "gridsched.yaml"
    with socket.create_server(("127.0.0.1", 0)) as holder:
        config.write_text(f"server: {{port: {holder.getsockname()[1]}}}", encoding="utf-8")
        assert "is taken by" in refusal(asked("check", "--sim", "--config", str(config)), 2)
        assert asked("check", "--sim", "--config", str(config), "--port", "0").returncode == 0


def test_check_tells_a_server_from_a_command_that_looks_around_too(tmp_path: Path) -> None:
    """Each of them has the data directory; only one goes on, and has the port, also before it has said so."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = ("--sim", "--port", str(taken.getsockname()[1]), "--data-dir", str(tmp_path))
        for briefly in (True, False):
            with DataDir.own(tmp_path, briefly=briefly):
                done = asked("check", *words)
            told = (done.returncode, "its server goes on" in done.stdout, "is taken by" in done.stdout + done.stderr)
            assert told == ((2, False, True) if briefly else (0, True, False)), done.stdout


def test_check_says_at_once_everything_that_serve_would_trip_over(tmp_path: Path) -> None:
    """Exit 2: a port that is taken, a flag that the engine does not know, a default that is nobody, pins that do not
    fit; and what stands in the way of any server, together."""
    tiny = tmp_path / "tiny.gguf"
    make_tiny_chat(tiny)
    config = tmp_path / "c.yaml"
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        config.write_text(
            f"server: {{port: {holder.getsockname()[1]}}}\n"
            "devices: {host_budget: 300MiB}\n"
            "library: {dirs: [], default_model: nobody}\n"
            f"models:\n  a: {{path: {tiny}, tier: pinned}}\n"
            f"  b: {{path: {tiny}, tier: pinned}}\n  c: {{path: {tiny}, tier: pinned}}\n"
            f"  d:\n    path: {tiny}\n    flags: [--no_mmap, --cachetype-k, q8_0]\n"
            f"  e:\n    path: {tiny}\n    flags: -ub 12 -ot (=CPU\n"
            f"  f:\n    path: {tiny}\n    env: {{A: b, LLAMA_ARG_N_GPU_LAYERS: 0}}\n",
            encoding="utf-8",
        )
        text = refusal(asked("check", "--data-dir", str(tmp_path / "data"), "--config", str(config)), 2)
    assert f"is taken by process {os.getpid()}" in text
    unknown = "this llama-server's help has no --cachetype-k; did you mean --cache-type-k?"
    assert f"{config}:10:24: models.d.flags[1]: {unknown}" in text
    assert "no_mmap" not in text
    assert f"{config}:13:12: models.e.flags: -ot: '(' is no regular expression to the engine" in text
    setting = "the engine's settings are planned from its flags: write --gpu-layers under flags instead"
    assert f"models.f.env.LLAMA_ARG_N_GPU_LAYERS: {setting}" in text
    assert "3 models cannot be served: d, e, f" in text
    assert "library.default_model: there is no model 'nobody'" in text
    assert "the pinned models do not fit together: a 1" in text
    config.write_text(
        f"engine: {{path: /nowhere}}\nlibrary: {{dirs: []}}\nmodels: {{a: {{path: {tiny}, flags: [--fit, on]}}}}\n",
        encoding="utf-8",
    )
    text = refusal(asked("check", "--data-dir", str(tmp_path / "data"), "--config", str(config)), 2)
    assert "/nowhere" in text
    assert f"{config}:3:" in text
    assert "models.a.flags[0]: --fit: the engine's own fitting would change the launch" in text
    assert "whether the engine knows the flags of the models was not checked" in text


def test_B16_cards_that_the_engine_cannot_use_are_said_and_the_processor_is_used(tmp_path: Path) -> None:
    """A driver and a card beside an engine that was built without them: every load on the card would fail."""
    build_library(tmp_path)
    (tmp_path / "story").write_text(f"card GPU-1 00000000:01:00.0 {16 * 2**30} 0 0 NVIDIA Small\n", encoding="utf-8")
    (tmp_path / "models").mkdir()
    make_tiny_chat(tmp_path / "models" / "tiny.gguf")
    words = ["check", "--data-dir", str(tmp_path / "data"), "--models-dir", str(tmp_path / "models")]
    done = run(*words, LD_LIBRARY_PATH=str(tmp_path), NVML_STORY=str(tmp_path / "story"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gpu0 (NVIDIA Small) is not used, because the engine does not list it" in done.stdout
    assert ", on host" in done.stdout


def test_check_looks_around_beside_a_server_that_runs(tmp_path: Path) -> None:
    """Its data directory and its port are no problem, and it goes on; another port that is taken is one."""
    models = tmp_path / "models"
    models.mkdir()
    make_tiny_chat(models / "tiny.gguf")
    gateway = start(tmp_path, "--models-dir", str(models))
    try:
        config, port = tmp_path / "c.yaml", gateway.url.rpartition(":")[2]
        config.write_text(f"server: {{port: {port}}}\n", encoding="utf-8")
        words = ["check", "--data-dir", str(tmp_path / "data"), "--models-dir", str(models), "--config", str(config)]
        done = asked(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"in use by process {gateway.process.pid} on port {port}" in done.stdout
        tiny = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        assert gateway.post("/v1/chat/completions", tiny).status_code == 200
    finally:
        assert gateway.stop() == 0


def test_nobody_to_print_to_is_no_reason_to_fail(tmp_path: Path) -> None:
    """A reader that has gone, closed descriptors, a locale without the letters; a full disk is said."""
    models = tmp_path / "models"
    models.mkdir()
    make_tiny_chat(models / "müde🦙.gguf")
    words = ["check", "--data-dir", str(tmp_path / "data"), "--models-dir", str(models)]
    shell = " ".join(map(shlex.quote, command(*words)))
    light = " ".join(map(shlex.quote, command("estimate", str(models / "müde🦙.gguf"), "--devices", "1GiB")))

    def said(line: str, **environment: str) -> str:
        variables = clean_environment() | environment
        shell_words = ["/bin/sh", "-c", line]
        return subprocess.run(shell_words, capture_output=True, text=True, timeout=60, check=True, env=variables).stdout

    assert said(f"{shell} 2>&1 >&- <&-; echo $?") == "0\n"
    assert said(f"{shell} >&- 2>&- <&-; echo $?") == "0\n"
    assert said(f"({light} 2>&1; echo $? >&2) 2>&1 | head -n 1 | grep -c llama") == "1\n"
    assert (
        said(f"{light} 2>&1 >/dev/full; echo $?")
        == "gridsched: cannot write the output, or a temporary file: No space left on device\n1\n"
    )
    assert r"m\xfcde\U0001f999" in said(shell, PYTHONIOENCODING="ascii")


def test_a_server_that_was_started_with_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    """The signal of a terminal that closes is nothing to it; that of a service manager is."""
    port, log = free_port(), tmp_path / "serve.log"
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            ["/usr/bin/env", "nohup", *command("serve", "--sim", "--port", str(port))],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env=clean_environment(),
        )
    gateway = Gateway(process, f"http://127.0.0.1:{port}", log)
    gateway.wait_until_up()
    process.send_signal(signal.SIGHUP)
    assert gateway.get("/health").status_code == 200
    assert gateway.stop() == 0


def test_an_empty_path_is_no_path(words: list[str]) -> None:
    """A variable that was not set does not mean the current folder."""
    assert "argument --data-dir: an empty path" in refusal(run(*words, "--data-dir", ""), 2)


def test_events_says_when_no_server_answers() -> None:
    """Exit 1."""
    assert "gridsched serve" in refusal(asked("events", "--server", f"http://127.0.0.1:{free_port()}"), 1)


def test_events_prints_the_decision_log(tmp_path: Path) -> None:
    """A line a decision, for a person and as JSON."""
    with simulated_gateway(tmp_path) as gateway:
        body = {"model": "sim-chat-4b", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        assert gateway.post("/v1/chat/completions", body).status_code == 200
        text = asked("events", "--server", gateway.url).stdout
        lines = asked("events", "--json", GRIDSCHED_URL=gateway.url).stdout.splitlines()
    assert " dispatch interactive step 1/1 -> sim-chat-4b" in text
    assert any('"event": "dispatch"' in line for line in lines)


def test_an_unknown_command_is_refused_by_its_name() -> None:
    """Argparse's own exit code, which is the contract's too."""
    assert "srve" in refusal(run("srve"), 2)


def test_H6_a_server_for_other_machines_without_a_key_is_refused_with_why_and_what_to_do(tmp_path: Path) -> None:
    """Exit 2 before it listens; with a key it starts, and with --insecure it says what that means."""
    data = ("--data-dir", str(tmp_path / "data"))
    serve = ("serve", "--sim", "--host", "0.0.0.0", "--port", "0", *data)  # noqa: S104 - that is the point
    text = refusal(run(*serve), 2)
    assert all(word in text for word in ("0.0.0.0", "gridsched keys add", "127.0.0.1", "--insecure"))  # noqa: S104
    assert "listening" not in text
    for said, words in (("INSECURE", ("--insecure",)), ("every request needs one", ())):
        if not words:
            assert asked("keys", "add", "tom", *data).returncode == 0
        gateway = start(tmp_path, "--sim", "--host", "0.0.0.0", *words)  # noqa: S104 - the same
        assert gateway.stop() == 0
        assert said in gateway.log.read_text(encoding="utf-8")
