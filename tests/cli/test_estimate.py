"""`gridsched estimate`: what the engine itself accounted for comes out, and whatever cannot be planned is said."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gridsched.cli import main as program
from tests.library.models import write_split
from tests.support.gguf_header import build_header, data_end
from tests.support.range_server import serving
from tests.vram.models import MIB, real_file, real_headers, rows

GEMMA_3N, QWEN_35, GPT_OSS = "Gemma-3n-E4B-Q8_0", "Qwen3.5-27B-Q4_K_M", "gpt-oss-20b-MXFP4"
EXPERTS = "DeepSeek-V2-Lite-Q4_K_M"
CUDA = ("--backend", "cuda")


def run(*words: str | Path) -> int:
    """The command's exit code."""
    return program.main(["estimate", *map(str, words)])


def told(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, Any]:
    """What it says to a program."""
    ours = words.index("--") if "--" in words else len(words)
    assert run(*words[:ours], *CUDA, "--json", *words[ours:]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert isinstance(answer, dict)
    return answer


def refusal(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """Why it ends with 2; one line."""
    assert run(*words) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    return str(err)


GOLDEN = [
    (GEMMA_3N, ("-c", "8192", "-ngl", "999")),
    (QWEN_35, ("-c", "8192", "-np", "4", "-ngl", "999")),
    (GPT_OSS, ("-c", "32768", "-np", "1", "-ngl", "999", "-fa", "on")),
    (EXPERTS, ("-c", "8192", "-np", "1", "-ngl", "999", "--cpu-moe")),
]


@pytest.mark.parametrize(("name", "flags"), GOLDEN, ids=[name for name, _ in GOLDEN])
def test_the_engines_own_figures_come_out(
    name: str, flags: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights, cache and state to the byte on the card and on the host; the compute buffer never below."""
    (row,) = [row for row in rows() if row.model == name and row.flags == flags]
    answer = told(capsys, real_file(name, tmp_path), "--", *flags)
    keys = ("weights_bytes", "kv_bytes", "recurrent_bytes")
    (card,) = answer["devices"]
    assert tuple(card[key] for key in keys) == row.devices[0][:3]
    assert tuple(answer["host"][key] for key in keys) == row.host
    compute = row.devices[0][3]
    assert compute is not None
    assert 0 <= card["compute_bytes"] - compute < 128 * MIB
    assert answer["total_bytes"] == card["total_bytes"]


def test_per_layer_embeddings_stay_on_the_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Gemma 3n, with a note on what surprises: those, the tied table, the four slots that nobody asked for."""
    answer = told(capsys, real_file(GEMMA_3N, tmp_path), "--", "-c", "8192")
    assert answer["layers"] == {"full": 4, "window": 16, "shared": 15, "recurrent": 0, "none": 0}
    assert answer["host"]["weights_bytes"] > 2300 * MIB
    assert (answer["parallel"], answer["ctx_size"], answer["ctx_per_slot"]) == (4, 8192, 8192)
    notes = " · ".join(answer["notes"])
    assert "2,380 MiB of per-layer embeddings stay in host memory" in notes
    assert "held twice" in notes
    assert "without --parallel there are 4 slots" in notes


def test_one_layer_in_four_has_a_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Qwen 3.5: the others have a state, whatever the context, one a slot."""
    path = real_file(QWEN_35, tmp_path)
    answer = told(capsys, path, "--", "-c", "8192", "-np", "1")
    assert answer["layers"] == {"full": 16, "window": 0, "shared": 0, "recurrent": 48, "none": 0}
    longer = told(capsys, path, "--", "-c", "16384", "-np", "2")
    assert longer["devices"][0]["recurrent_bytes"] == 2 * answer["devices"][0]["recurrent_bytes"]
    assert longer["devices"][0]["kv_bytes"] == 2 * answer["devices"][0]["kv_bytes"]


def test_every_other_layer_of_gpt_oss_has_a_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So twice the context is not twice the cache."""
    path = real_file(GPT_OSS, tmp_path)
    short, long = (told(capsys, path, "--", "-c", size, "-np", "1") for size in ("65536", "131072"))
    assert short["layers"] == {"full": 12, "window": 12, "shared": 0, "recurrent": 0, "none": 0}
    grown = long["devices"][0]["kv_bytes"] - short["devices"][0]["kv_bytes"]
    assert grown == 65536 * 24 * 1024


def test_any_part_of_a_split_model_will_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The four parts are one model; a missing one is named, and nothing is made up."""
    first = real_file(GPT_OSS, tmp_path, parts=4)
    third = first.with_name(first.name.replace("00001-of", "00003-of"))
    whole = told(capsys, real_file(GPT_OSS, tmp_path), "--", "-c", "4096")
    split = told(capsys, third, "--", "-c", "4096")
    assert split["devices"] == whole["devices"]
    assert split["model"] == first.name
    third.unlink()
    assert f"{third.name}: the file is not there" in refusal(capsys, first)


def test_equal_cards_share_alike_and_sizes_share_by_what_is_free(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the engine splits where no flag says it; a flag wins."""
    path = real_file(GPT_OSS, tmp_path)
    flags = ("--", "-c", "16384", "-np", "1")
    two = told(capsys, path, "--devices", "2", *flags)
    assert [part["name"] for part in two["devices"]] == ["gpu0", "gpu1"]
    assert two["fits"] is None
    alike = told(capsys, path, "--devices", "24GiB,24GiB", *flags)
    weights = [[part["weights_bytes"] for part in answer["devices"]] for answer in (two, alike)]
    assert weights[0] == weights[1]
    unlike = told(capsys, path, "--devices", "24GiB,8GiB", *flags)
    asked = told(capsys, path, "--devices", "2", *flags, "-ts", "24,8")
    assert unlike["devices"][0]["weights_bytes"] == asked["devices"][0]["weights_bytes"] > weights[0][0]
    assert unlike["fits"] is True
    assert unlike["suggestions"] == []


@pytest.mark.parametrize("sizes", ["8GiB", "11GiB", "4GiB,9GiB", "12GiB,2GiB", "7GiB,7GiB"])
def test_L7_what_is_suggested_makes_it_fit(sizes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each by itself, taken as it is printed."""
    path, flags = real_file(GPT_OSS, tmp_path), ("--", "-c", "131072", "-np", "4")
    answer = told(capsys, path, "--devices", sizes, *flags)
    assert answer["fits"] is False
    assert answer["suggestions"]
    for one in answer["suggestions"]:
        words = one.partition(" (")[0].split()
        assert told(capsys, path, "--devices", sizes, *flags, *words)["fits"] is True, one


def test_L7_the_largest_context_fits_and_a_step_more_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the slots that were asked for."""
    path, sized = real_file(QWEN_35, tmp_path), ("--devices", "18GiB", "--", "-np", "1")
    most = told(capsys, path, *sized, "-c", "4096")["max_ctx_that_fits"]
    assert told(capsys, path, *sized, "-c", str(most))["fits"] is True
    assert told(capsys, path, *sized, "-c", str(most + 256))["fits"] is False


def test_flags_choose_among_the_cards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that are left alone take nothing; without any all of it is on the host."""
    path = real_file(GPT_OSS, tmp_path)
    for flags in (("-dev", "CUDA1"), ("-sm", "none", "-mg", "1")):
        first, second = told(capsys, path, "--devices", "2", "--", "-c", "4096", *flags)["devices"]
        assert first["total_bytes"] == 0
        assert second["weights_bytes"] > 10_000 * MIB
    alone = told(capsys, path, "--", "-c", "4096", "-dev", "none")
    assert alone["total_bytes"] == 0
    assert alone["host"]["weights_bytes"] > 10_000 * MIB


def test_host_memory_alone_is_one_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And nothing lies beside it."""
    assert run(real_file(GPT_OSS, tmp_path), "--backend", "cpu", "--json", "--", "-c", "4096") == 0
    answer = json.loads(capsys.readouterr().out)
    assert [part["name"] for part in answer["devices"]] == ["host"]
    assert answer["host"]["total_bytes"] == 0


def test_a_measured_card_is_charged_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A card that nobody names is charged what is usual, and that is noted."""
    path = real_file(GPT_OSS, tmp_path)
    known = told(capsys, path, "--card", "NVIDIA GeForce RTX 3090", "--", "-c", "4096")
    unknown = told(capsys, path, "--", "-c", "4096")
    assert known["devices"][0]["overhead_bytes"] < unknown["devices"][0]["overhead_bytes"]
    assert any("so say which it is" in note for note in unknown["notes"])
    assert not any("no measurement" in note for note in known["notes"])


def test_a_person_gets_an_aligned_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row a device, one unit; columns that are 0 everywhere are left out."""
    assert run(real_file(GPT_OSS, tmp_path), *CUDA, "--devices", "8GiB,12GiB", "--", "-c", "8192", "-np", "1") == 0
    lines = capsys.readouterr().out.splitlines()
    head = next(line for line in lines if line.startswith("MiB"))
    assert head.split() == ["MiB", "weights", "cache", "compute", "outside", "total", "free", "left"]
    at = lines.index(head)
    assert [line.split()[0] for line in lines[at + 1 : at + 4]] == ["gpu0", "gpu1", "host"]
    assert len({len(line) for line in lines[at : at + 3]}) == 1
    assert "fits     yes" in lines
    assert any(line.startswith("at most  ") for line in lines)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("-fa", "off", "-ctv", "q8_0"), "--cache-type-v: q8_0 needs flash attention"),
        (("-fit", "on"), "-fit: the engine's own fitting"),
        (("-dev", "CUDA1"), "--device: there is no 'CUDA1' (there is CUDA0)"),
        (("-sm", "none", "-mg", "1"), "--main-gpu: there is no device 1"),
        (("-ot", "exps=CUDA7"), "--override-tensor: there is no buffer type 'CUDA7'"),
        (("-ot", "(=CPU"), "-ot: '(' is no regular expression"),
        (("-c", "many"), "-c: 'many' is not a whole number"),
        (("-c",), "-c: needs a value"),
        (("-np", "300"), "--parallel: 300 slots are more than the engine has"),
        (("-m", "other.gguf"), "--model: the model is FILE"),
        (("-hf", "some/repo"), "-hf: download the file"),
        (("-md", "none.gguf"), "--model-draft none.gguf: the file is not there"),
        (("--mmproj", "none.gguf"), "mmproj none.gguf: the file is not there"),
        (("--lora", "none.gguf"), "--lora none.gguf: the file is not there"),
    ],
)
def test_what_the_engine_would_refuse_is_refused_with_the_rule(
    flags: tuple[str, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The flag is named, and the exit code is the configuration's."""
    monkeypatch.chdir(tmp_path)
    assert words in refusal(capsys, real_file(GPT_OSS, tmp_path), *CUDA, "--", *flags)


def test_files_that_flags_name_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the folder that the command runs in. A projector that merely lies there is not, and that is noted."""
    monkeypatch.chdir(tmp_path)
    path = real_file("Gemma-3-4B-Q4_K_M", tmp_path)
    keys = {"general.architecture": "clip", "clip.projector_type": "gemma3", "clip.vision.projection_dim": 2560}
    keys |= {f"clip.vision.{key}": size for key, size in (("image_size", 896), ("patch_size", 14))}
    keys |= {"clip.vision.embedding_length": 1152, "clip.vision.feed_forward_length": 4304}
    keys |= {"clip.vision.attention.head_count": 16, "clip.vision.block_count": 27}
    tensors = [("v.w", [1024, 1024], "F32")]
    header = build_header(keys, tensors)
    (tmp_path / "mmproj-4b.gguf").write_bytes(header + bytes(data_end(header, tensors) - len(header)))
    real_file("Qwen2.5-1.5B-Q4_K_M", tmp_path)
    plain = told(capsys, path, "--", "-c", "4096")
    assert plain["devices"][0]["mmproj_bytes"] == 0
    assert any(note.startswith("mmproj-4b.gguf lies beside the model and is not counted") for note in plain["notes"])
    answer = told(capsys, path, "--", "-c", "4096", "--mmproj", "mmproj-4b.gguf", "-md", "Qwen2.5-1.5B-Q4_K_M.gguf")
    assert answer["devices"][0]["mmproj_bytes"] > 100 * MIB
    assert answer["devices"][0]["draft_bytes"] > 900 * MIB
    assert answer["devices"][0]["weights_bytes"] == plain["devices"][0]["weights_bytes"]
    assert "it is a projector" in refusal(capsys, tmp_path / "mmproj-4b.gguf")


def test_F11_a_file_that_cannot_be_read_is_named_with_the_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where it ends, what is no GGUF, what is no file: a sentence and 2."""
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(real_headers()[GPT_OSS][:3000])
    said = refusal(capsys, cut, *CUDA)
    assert str(cut) in said
    assert "byte" in said
    (tmp_path / "page.gguf").write_text("<html>")
    assert "page.gguf: " in refusal(capsys, tmp_path / "page.gguf", *CUDA)
    assert "File name too long" in refusal(capsys, tmp_path / ("long" * 100), *CUDA)
    (tmp_path / "empty.gguf").touch()
    assert "the file is empty" in refusal(capsys, tmp_path / "empty.gguf", *CUDA)
    assert "the file is not there" in refusal(capsys, tmp_path / "none.gguf", *CUDA)
    assert "it is a folder, not a file: name a file in it (cut.gguf, empty.gguf" in refusal(capsys, tmp_path, *CUDA)
    (tmp_path / "bare").mkdir()
    assert "it is a folder, not a file, and there is no GGUF file in it" in refusal(capsys, tmp_path / "bare", *CUDA)
    assert "it is a folder" in refusal(capsys, "/", *CUDA)
    assert "an empty path" in refusal(capsys, "", *CUDA)


def test_an_address_will_do_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All parts of a model on a web server, by ranges of bytes; and what is wrong there is said."""
    monkeypatch.setenv("no_proxy", "*")
    first = write_split(tmp_path, "m", 3)[0]
    with serving() as server:
        server.files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        there = told(capsys, f"{server.url}/good/{first.name}", "--", "-c", "4096")
        missing = refusal(capsys, f"{server.url}/good/none.gguf", *CUDA)
    here = told(capsys, first, "--", "-c", "4096")
    assert there["devices"] == here["devices"]
    assert there["model"] == first.name
    assert "none.gguf: the server has no such file" in missing
    assert "ftp is not supported" in refusal(capsys, "ftp://host/model.gguf", *CUDA)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0", "from 1 to 15 devices"),
        ("16", "from 1 to 15 devices"),
        ("24GX", "expected a size such as 512MiB"),
        ("24GiB,", "expected a size"),
        ("", "expected a size"),
        ("-1", "expected a size"),
    ],
)
def test_devices_that_are_none_are_refused(text: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As an option that is wrong."""
    with pytest.raises(SystemExit) as caught:
        run("model.gguf", "--devices", text)
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_two_devices_without_cards_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Host memory is one."""
    path = real_file(GPT_OSS, tmp_path)
    assert "one device, the host's memory" in refusal(capsys, path, "--backend", "cpu", "--devices", "2")


def test_who_names_the_backend_is_told_that_no_engine_was_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flag that is misspelt moves no figure, and nobody here would notice it."""
    path = real_file(GPT_OSS, tmp_path)
    unchecked = [note for note in told(capsys, path, "--", "--ctx-sze", "5")["notes"] if "not checked" in note]
    assert unchecked
    assert "--backend" in unchecked[0]
    assert not any("not checked" in note for note in told(capsys, path)["notes"])


def test_what_is_assumed_of_unlike_devices_names_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of equal ones it is said once."""
    path = real_file(GPT_OSS, tmp_path)
    unlike, alike = (told(capsys, path, "--devices", sizes)["notes"] for sizes in ("24GiB,16GiB", "24GiB,24GiB"))
    assert [note[:20] for note in unlike if "no measurement" in note] == [
        "gpu0: no measurement",
        "gpu1: no measurement",
    ]
    assert [note[:14] for note in alike if "no measurement" in note] == ["no measurement"]


def test_the_table_speaks_to_a_person(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No slot at all is no 0, and a layer that keeps nothing is no `none`."""
    assert run(real_file(GPT_OSS, tmp_path), *CUDA, "--devices", "14GiB", "--", "-c", "131072") == 0
    assert " tokens with these slots; no slots with this context" in capsys.readouterr().out
    assert run(real_file("nomic-embed-text-v1.5-F16", tmp_path), *CUDA) == 0
    assert "layers   12 without a cache" in capsys.readouterr().out


def test_a_setting_of_the_environment_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not counted, because no launch of ours gets it."""
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "4096")
    answer = told(capsys, real_file(GPT_OSS, tmp_path))
    assert answer["ctx_size"] == 131072
    assert any(note.startswith("LLAMA_ARG_CTX_SIZE") for note in answer["notes"])


@pytest.mark.slow
def test_it_needs_neither_server_nor_configuration_nor_their_libraries(tmp_path: Path) -> None:
    """A whole process, with the largest vocabulary there is: what it imports, and the processor's time it takes."""
    count = 262_144
    words = {"tokenizer.ggml.tokens": [f"word{number}" for number in range(count)]}
    tensors = [("token_embd.weight", [64, count], "F16"), ("output.weight", [64, count], "F16")]
    sizes = {"block_count": 1, "context_length": 4096, "embedding_length": 64, "feed_forward_length": 256}
    sizes |= {"attention.head_count": 1}
    keys = {"general.architecture": "llama", **{f"llama.{key}": size for key, size in sizes.items()}, **words}
    header = build_header(keys, tensors)
    path = tmp_path / "wide.gguf"
    path.write_bytes(header + bytes(data_end(header, tensors) - len(header)))
    code = (
        "import resource, sys\n"
        "from gridsched.cli.main import main\n"
        f"code = main(['estimate', {str(path)!r}, '--backend', 'cuda', '--json'])\n"
        "heavy = {'httpx', 'trio', 'quart', 'pydantic', 'msgspec', 'pynvml', 'numpy', 'gguf'} & set(sys.modules)\n"
        "usage = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(code, sorted(heavy), usage.ru_utime + usage.ru_stime, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    code_told, heavy, seconds = done.stderr.split()
    assert (code_told, heavy) == ("0", "[]")
    assert float(seconds) < 1.0
    assert json.loads(done.stdout)["devices"][0]["weights_bytes"] == count * 64 * 2
