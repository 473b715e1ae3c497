"""What LiteLLM's SDK gets from a gateway, as one JSON object: `python litellm_program.py URL`.

Runs in LiteLLM's own environment (`make .cache/clients/litellm/made`), so it imports nothing of ours. One process
for all calls, because the import alone takes seconds.
"""

import json
import sys
from typing import Any

import litellm

HELLO = [{"role": "user", "content": "Say hello."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SCHEMA = {"type": "object", "properties": {"large": {"type": "boolean"}}, "required": ["large"]}


def main(url: str) -> dict[str, Any]:
    """Every call once."""
    there = {"api_base": f"{url}/v1", "api_key": "unused", "num_retries": 0, "timeout": 60}
    chat = there | {"model": "openai/smollm2", "messages": HELLO, "max_tokens": 8, "temperature": 0}
    said: dict[str, Any] = {}
    said["chat"] = litellm.completion(**chat).choices[0].message.content
    said["stream"] = [piece.choices[0].delta.content for piece in litellm.completion(**chat, stream=True)]
    called = litellm.completion(**chat | {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 80})
    said["tool"] = called.choices[0].message.tool_calls[0].function.name
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
    said["schema"] = litellm.completion(**chat | {"response_format": form, "max_tokens": 40}).choices[0].message.content
    vectors = litellm.embedding(model="openai/minilm", input=["a cat", "a train"], **there)
    said["embeddings"] = [len(item["embedding"]) for item in vectors.data]
    low = litellm.completion(**chat | {"max_tokens": 1}, extra_headers={"X-Class": "background"})
    said["class"] = low._hidden_params["additional_headers"]["llm_provider-x-gridsched-class"]
    answer = litellm.responses(model="openai/smollm2", input="Say hello.", max_output_tokens=8, **there)
    said["responses"] = answer.output[0].content[0].text
    there = {"api_base": url, "api_key": "unused"}
    message = litellm.completion(model="anthropic/smollm2", messages=HELLO, max_tokens=8, **there)
    said["messages"] = message.choices[0].message.content
    try:
        litellm.completion(**chat | {"model": "openai/nobody"})
    except litellm.NotFoundError as error:
        said["error"] = str(error)
    return said


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
