"""Clients that show a key, each in its own way, to a gateway that wants one. Hardware and models are simulated."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import openai
import pytest

from tests.e2e.clients.test_curl import curl
from tests.e2e.clients.test_llm import llm
from tests.support.gateway import Gateway, clean_environment, command, simulated_gateway

pytestmark = pytest.mark.slow

HELLO = [{"role": "user", "content": "Say hello."}]
CHAT = {"model": "sim-chat-4b", "messages": HELLO, "max_tokens": 4}


class Guarded(NamedTuple):
    """A gateway, and the secret of its one key."""

    gateway: Gateway
    secret: str


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A key for background work on one model, one request at a time."""
    folder = tmp_path_factory.mktemp("keys")
    limits = ("--max-class", "background", "--models", "sim-chat-4b", "--concurrency", "1")
    words = command("keys", "add", "indexer", *limits, "--data-dir", str(folder / "data"), "--json")
    made = subprocess.run(words, env=clean_environment(), capture_output=True, text=True, check=True, timeout=60)
    with simulated_gateway(folder) as gateway:
        yield Guarded(gateway, json.loads(made.stdout)["secret"])


def openai_with(guarded: Guarded, secret: str) -> openai.OpenAI:
    """OpenAI's SDK, without its retries."""
    return openai.OpenAI(base_url=f"{guarded.gateway.url}/v1", api_key=secret, max_retries=0, timeout=60.0)


@pytest.mark.shows("openai-python", "keys")
def test_openai_s_sdk_shows_its_key(guarded: Guarded) -> None:
    """As a bearer token: with it an answer of the key's class, with another the SDK's own error."""
    with openai_with(guarded, guarded.secret) as client:
        raw = client.chat.completions.with_raw_response.create(**CHAT, service_tier="priority")
        assert raw.headers["x-gridsched-class"] == "background"
        assert [model.id for model in client.models.list()] == ["sim-chat-4b"]
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model="sim-embed", input="a cat")
    with openai_with(guarded, "gs-wrong") as client, pytest.raises(openai.AuthenticationError) as caught:
        client.chat.completions.create(**CHAT)
    assert caught.value.code == "invalid_api_key"


@pytest.mark.shows("openai-python", "keys")
def test_a_second_request_of_a_key_that_may_have_one_is_told_to_wait(guarded: Guarded) -> None:
    """429 while the first streams, raised as what it is; an answer once that has ended."""
    with openai_with(guarded, guarded.secret) as client:
        with client.chat.completions.create(**CHAT | {"max_tokens": 400}, stream=True) as stream:
            next(iter(stream))
            with pytest.raises(openai.RateLimitError) as caught:
                client.chat.completions.create(**CHAT)
            assert int(caught.value.response.headers["retry-after"]) >= 1
        assert client.with_options(max_retries=5).chat.completions.create(**CHAT).choices


@pytest.mark.shows("anthropic-python", "keys")
def test_anthropic_s_sdk_shows_its_key(guarded: Guarded, messages_sdk: ModuleType) -> None:
    """As `x-api-key`."""
    with messages_sdk.Anthropic(base_url=guarded.gateway.url, api_key=guarded.secret, max_retries=5) as client:
        assert client.messages.create(**CHAT).usage.output_tokens > 0
    with (
        messages_sdk.Anthropic(base_url=guarded.gateway.url, api_key="gs-wrong", max_retries=0) as client,
        pytest.raises(messages_sdk.AuthenticationError),
    ):
        client.messages.create(**CHAT)


@pytest.mark.shows("curl", "keys")
def test_curl_shows_a_key(guarded: Guarded) -> None:
    """`--oauth2-bearer`; without one the server says what it wants."""
    url = f"{guarded.gateway.url}/v1/models"
    assert json.loads(curl("--oauth2-bearer", guarded.secret, url))["data"]
    said = curl("-i", url)
    assert said.startswith("HTTP/1.1 401")
    assert "www-authenticate: bearer" in said.lower()


@pytest.mark.shows("llm", "keys")
def test_llm_shows_the_key_that_its_entry_names(guarded: Guarded, tmp_path: Path) -> None:
    """`api_key_name`, and `llm keys set`: an entry that names none never shows one, whatever `--key` says."""
    entry = f'model_name: sim-chat-4b, api_base: "{guarded.gateway.url}/v1"'
    models = f"- {{model_id: grid, {entry}, api_key_name: grid}}\n- {{model_id: keyless, {entry}}}\n"
    (tmp_path / "extra-openai-models.yaml").write_text(models, encoding="utf-8")
    assert llm(tmp_path, "keys", "set", "grid", "--value", guarded.secret).returncode == 0
    assert llm(tmp_path, "-m", "grid", "Say hello.").returncode == 0
    refused = llm(tmp_path, "-m", "keyless", "--key", guarded.secret, "Say hello.")
    assert refused.returncode == 1
    assert "API key is not known here" in refused.stderr
