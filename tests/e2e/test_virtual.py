"""A name over another model, before the real engine: what it is told, and that bounds are heeded in every protocol."""

import json
import urllib.request
from collections.abc import Mapping

import pytest
from openai import OpenAI

from tests.e2e.conftest import WORDS
from tests.support.gateway import Gateway

pytestmark = pytest.mark.slow
SYSTEM = {"role": "system", "content": WORDS}
TURNS = [{"role": "user", "content": "Count to a hundred."}]


def ask(server: Gateway, path: str, body: Mapping[str, object]) -> dict[str, dict[str, int]]:
    """One answer."""
    data = json.dumps({"model": "reviewer", **body}).encode()
    request = urllib.request.Request(server.url + path, data, {"Content-Type": "application/json"})  # noqa: S310 - ours
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - the same
        assert answer.headers["x-gridsched-model"] == "smollm2"
        found = json.loads(answer.read())
        assert isinstance(found, dict)
        return found


@pytest.mark.parametrize(
    ("path", "body", "counted"),
    [
        ("/v1/chat/completions", {"messages": TURNS}, "completion_tokens"),
        (
            "/v1/chat/completions",
            {"messages": TURNS, "max_completion_tokens": 99, "max_tokens": 2},
            "completion_tokens",
        ),
        ("/v1/completions", {"prompt": "1 2 3 4", "n_predict": -1}, "completion_tokens"),
        ("/v1/responses", {"input": "Count to a hundred."}, "output_tokens"),
        ("/v1/messages", {"messages": TURNS, "max_tokens": 99}, "output_tokens"),
    ],
)
def test_a_bound_is_heeded_by_the_engine(server: Gateway, path: str, body: Mapping[str, object], counted: str) -> None:
    """Four tokens and no more, whatever the client asks for."""
    assert ask(server, path, body)["usage"][counted] == 4


def test_the_systems_words_reach_the_model(server: Gateway, openai: OpenAI) -> None:
    """They take their tokens in each protocol, once; a client's own keep them out."""
    plain = {"model": "smollm2", "messages": TURNS}
    own = [{"role": "system", "content": "x"}, *TURNS]

    def counted(body: Mapping[str, object]) -> int:
        return int(ask(server, "/v1/chat/completions", {**body, "max_tokens": 1})["usage"]["prompt_tokens"])

    assert counted({"messages": TURNS}) == counted({"model": "smollm2", "messages": [SYSTEM, *TURNS]})
    assert counted({"messages": own}) == counted({**plain, "messages": own})
    whole = ask(server, "/v1/messages/count_tokens", {"messages": TURNS})
    assert whole == ask(server, "/v1/messages/count_tokens", {**plain, "system": SYSTEM["content"]})
    answer = openai.responses.create(model="reviewer", input="Hello")
    assert answer.usage is not None
    assert answer.usage.input_tokens > 20
    assert [model.id for model in openai.models.list() if model.id == "reviewer"] == ["reviewer"]
