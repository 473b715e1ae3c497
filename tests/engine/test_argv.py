"""What the engine is started with: everything that the plan decided, and nothing of ours that it should not see."""

from pathlib import Path

import pytest

from gridsched.core.ids import DeviceName, ModelName
from gridsched.core.model import DeviceFootprint, DeviceSpec, LaunchOption
from gridsched.engine.argv import (
    Build,
    Spawn,
    build_argv,
    build_env,
    devices_of,
    refused_flags,
)
from gridsched.ports import Backend, Capability, DeviceInfo, Launch

SPAWN = Spawn(Path("/run/x.sock"), "tag-1")
LATE_FLAGS = frozenset(
    (
        "--fit",
        "--slots",
        "--no-webui",
        "--tags",
        "--cache-ram",
        "--ctx-checkpoints",
        "--sse-ping-interval",
        "--verbosity",
    )
)
GIB = 1024**3
HOST = DeviceInfo(DeviceSpec(DeviceName("host"), 8 * GIB), "host", Backend.CPU)
CARD0 = DeviceInfo(DeviceSpec(DeviceName("gpu0"), 16 * GIB), "card", Backend.CUDA, 0, "GPU-aa", "0000:01:00.0")
CARD1 = DeviceInfo(DeviceSpec(DeviceName("gpu1"), 24 * GIB), "card", Backend.CUDA, 1, "GPU-bb", "0000:02:00.0")
NAMES = {CARD0.spec.name: "CUDA1", CARD1.spec.name: "CUDA0"}  # by speed, as CUDA lists them to one who asks


def launch(*devices: DeviceInfo, **more: object) -> Launch:
    """A launch on these devices, weights in the proportion of their memory."""
    footprint = tuple(DeviceFootprint(d.spec.name, weights_bytes=d.spec.total_bytes) for d in devices)
    flags = more.pop("rung", ())
    option = LaunchOption("key", 8192, 2, footprint, flags=flags)  # type: ignore[arg-type]  # a test's shorthand
    values = {"capabilities": frozenset({Capability.CHAT}), **more}
    return Launch(ModelName("org/model"), Path("/models/m.gguf"), option, **values)  # type: ignore[arg-type]  # the same


def argv(*devices: DeviceInfo, known: frozenset[str] = LATE_FLAGS, **more: object) -> list[str]:
    """The command line for it."""
    build = Build(Path("/bin/llama-server"), known, NAMES)
    return list(build_argv(build, launch(*devices, **more), devices, SPAWN))


def value(line: list[str], flag: str) -> str:
    """What follows a flag, which must be there once."""
    assert line.count(flag) == 1, line
    return line[line.index(flag) + 1]


def test_what_the_plan_decided_is_said_explicitly() -> None:
    """L7: slots, context, placement, and no fitting by the engine."""
    line = argv(CARD0)
    assert line[0] == "/bin/llama-server"
    assert value(line, "--model") == "/models/m.gguf"
    assert value(line, "--host") == "/run/x.sock"
    assert value(line, "--parallel") == "2"
    assert value(line, "--ctx-size") == "8192"
    assert value(line, "--device") == "CUDA0"
    assert int(value(line, "--n-gpu-layers")) > 500
    assert value(line, "--split-mode") == "none"
    assert value(line, "--fit") == "off"
    assert value(line, "--tags") == "tag-1"
    assert value(line, "--sse-ping-interval") == "-1"
    assert {"--slots", "--no-webui"} <= set(line)


def test_the_alias_is_the_models_name_because_answers_carry_it() -> None:
    """A comma would make two names of it."""
    assert value(argv(HOST), "--alias") == "org/model"
    comma = Launch(ModelName("a,b"), Path("/m"), launch(HOST).option, frozenset())
    renamed = build_argv(Build(Path("/e"), LATE_FLAGS, {}), comma, (HOST,), SPAWN)
    assert "a_b" in renamed


def test_a_host_budget_gets_no_card_and_no_cache_that_grows() -> None:
    """L6b: there every byte is planned."""
    line = argv(HOST)
    assert value(line, "--device") == "none"
    assert value(line, "--n-gpu-layers") == "0"
    assert value(line, "--cache-ram") == "0"
    assert int(value(argv(CARD0), "--cache-ram")) > 0


def test_several_cards_share_layers_as_planned() -> None:
    """In proportion to the weights of each, in the order of the footprint."""
    line = argv(CARD1, CARD0)
    assert value(line, "--device") == "CUDA0,CUDA1"
    assert value(line, "--split-mode") == "layer"
    shares = [int(share) for share in value(line, "--tensor-split").split(",")]
    assert shares[0] * 16 == shares[1] * 24


def test_a_vulkan_engine_hears_its_own_names() -> None:
    """Its numbers count all the cards there are."""
    build = Build(Path("/e"), LATE_FLAGS, {CARD1.spec.name: "Vulkan3"})
    assert value(list(build_argv(build, launch(CARD1), (CARD1,), SPAWN)), "--device") == "Vulkan3"


@pytest.mark.parametrize(("level", "asked"), [("4", ["--verbosity", "4"]), ("", [])])
def test_an_engine_that_tells_of_its_memory_at_a_level_is_asked_for_it(level: str, asked: list[str]) -> None:
    """Before the person's own flags, which win; others have no such level."""
    build = Build(Path("/e"), LATE_FLAGS, NAMES, level)
    line = list(build_argv(build, launch(CARD0, flags=("--verbosity", "2")), (CARD0,), SPAWN))
    assert asked == (line[line.index("--verbosity") :][:2] if level else [])
    assert line[-2:] == ["--verbosity", "2"]
    assert line.count("--verbosity") == 1 + bool(asked)


def test_relative_paths_begin_where_the_server_stands_and_not_where_its_processes_do() -> None:
    """Of files alone, one or several of them; what is no path of a file stays as it was written."""
    known, files = (
        frozenset(("--lora", "--lora-scaled", "--grammar-file", "-jf", "--jinja")),
        frozenset(("--lora", "-jf")),
    )
    build = Build(Path("/e"), known, NAMES, file_flags=files, folder=Path("/srv/here"))
    given = ("--lora", "a.gguf,/b.gguf", "--lora=sub/c.gguf", "-jf", "--jinja", "--lora-scaled", "d.gguf:0.5")
    line = list(build_argv(build, launch(HOST, flags=given), (HOST,), SPAWN))
    passed = ["/srv/here/a.gguf,/b.gguf", "--lora", "/srv/here/sub/c.gguf", "-jf", "--jinja"]
    assert line[-7:] == [*passed, "--lora-scaled", "d.gguf:0.5"]
    relative = Launch(ModelName("m"), Path("m.gguf"), launch(HOST).option, frozenset(), mmproj=Path("p.gguf"))
    line = list(build_argv(build, relative, (HOST,), SPAWN))
    assert value(line, "--model") == "/srv/here/m.gguf"
    assert value(line, "--mmproj") == "/srv/here/p.gguf"


def test_a_plan_over_host_and_card_is_a_bug() -> None:
    """No such plan is made."""
    with pytest.raises(ValueError, match="spans the host"):
        argv(CARD0, HOST)


def test_flags_that_a_build_does_not_know_are_left_out() -> None:
    """An older engine would refuse to start."""
    line = argv(CARD0, known=frozenset())
    assert not LATE_FLAGS & set(line)
    assert "--parallel" in line


@pytest.mark.parametrize(
    ("capability", "flag"), [(Capability.EMBEDDING, "--embeddings"), (Capability.RERANK, "--reranking")]
)
def test_a_models_kind_is_told(capability: Capability, flag: str) -> None:
    """Embedding models serve embeddings only."""
    assert flag in argv(HOST, capabilities=frozenset({capability}))
    assert flag not in argv(HOST)


def test_the_rungs_flags_and_then_the_persons_come_last() -> None:
    """The engine takes the last of a kind, so a person has the last word."""
    line = argv(HOST, rung=("--cache-type-k", "q8_0"), flags=("-fa", "on"), mmproj=Path("/models/p.gguf"))
    assert line[-4:] == ["--cache-type-k", "q8_0", "-fa", "on"]
    assert value(line, "--mmproj") == "/models/p.gguf"


def test_flags_that_would_take_the_process_out_of_our_hands_are_refused() -> None:
    """However they are written."""
    flags = ("-fa", "on", "--host=0.0.0.0", "--api_key", "x", "-m", "other.gguf", "--ctx-size", "9", "-dev", "CUDA1")
    assert refused_flags(flags) == ("--host", "--api_key", "-m", "-dev")
    assert refused_flags(("--threads", "-1")) == ()


def test_E25_the_engine_gets_a_persons_flags_as_it_knows_them() -> None:
    """`--x=y` is an argument that it does not know: it gets two words."""
    assert argv(HOST, flags=("--cache-type-k=q8_0", "-ot", "a=CPU"))[-4:] == ["--cache-type-k", "q8_0", "-ot", "a=CPU"]


@pytest.mark.parametrize("words", ["-ngl auto", "--gpu-layers=all", "--n_gpu_layers -1", "-ngld auto"])
def test_E23_automatic_layers_are_said_as_the_number_that_was_planned(words: str) -> None:
    """Older builds know no `auto`, and newer ones would fit it to the memory that they find."""
    assert argv(CARD0, flags=tuple(words.split()))[-1] == "999"
    assert argv(CARD0, flags=("-ngl", "12"))[-1] == "12"


SLEEPING = {"OMP_WAIT_POLICY": "passive"}


def test_the_childs_environment_has_no_secrets_and_no_settings_of_the_engine() -> None:
    """What the engine does not need, it does not see; what a person gave the model, it does."""
    base = {
        "PATH": "/bin",
        "HOME": "/h",
        "LLAMA_ARG_CTX_SIZE": "1",
        "HF_TOKEN": "s",
        "OPENAI_API_KEY": "s",
        "my_password": "s",
        "GRIDSCHED_DATA_DIR": "/d",
        "CUDA_VISIBLE_DEVICES": "3",
        "GGML_CUDA_ENABLE_UNIFIED_MEMORY": "1",
    }
    env = build_env(base, {"LD_LIBRARY_PATH": "/w"}, launch(HOST, env={"GGML_X": "1"}), (HOST,))
    assert env == {"PATH": "/bin", "HOME": "/h", "LD_LIBRARY_PATH": "/w", "GGML_X": "1"} | SLEEPING


def test_threads_on_the_host_sleep_where_they_would_spin_unless_a_person_says_otherwise() -> None:
    """Two processes that spin on the same cores slow each other tenfold; a card's process has no such threads."""
    assert build_env({}, {}, launch(HOST), (HOST,)) == SLEEPING
    assert build_env({"OMP_WAIT_POLICY": "active"}, {}, launch(HOST), (HOST,)) == {"OMP_WAIT_POLICY": "active"}
    assert not SLEEPING.items() & build_env({}, {}, launch(CARD0), (CARD0,)).items()


def test_D8_a_cuda_card_is_named_by_its_uuid() -> None:
    """CUDA's own numbers follow speed, the driver's the bus."""
    env = build_env({}, {}, launch(CARD1, CARD0), (CARD1, CARD0))
    assert env == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "GPU-bb,GPU-aa"}


def test_devices_come_in_the_order_of_the_footprint() -> None:
    """And an unknown one is a bug of the plan."""
    option = launch(CARD1, CARD0).option
    known = {device.spec.name: device for device in (CARD0, CARD1)}
    assert devices_of(option, known) == (CARD1, CARD0)
    with pytest.raises(KeyError):
        devices_of(option, {})
