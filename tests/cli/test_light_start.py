"""What a start of the server does not wait for: programs' parts that no chat needs."""

import json
import subprocess
import sys

import pytest

HEAVY = {
    "quart": "what is beside the data plane is made while the server already serves",
    "werkzeug": "it comes with quart",
    "jinja2": "it comes with quart",
    "mcp": "imported for the first agent",
    "starlette": "it comes with mcp",
    "uvicorn": "it comes with mcp",
    "httpx": "imported for the first image by address, and for the first estimate of one",
    "httpx2": "imported for the first question to the hub",
    "huggingface_hub": "imported for the first question to the hub",
    "rich": "for people at a terminal",
    "numpy": "it comes with the library gguf, which tests use alone",
    "gguf": "headers are read by our own reader",
    "opentelemetry": "an extra, for whom the environment asks",
    "matplotlib": "an extra, for pages of load tests",
    "sim": "for simulated hardware alone",
    "loadtest": "speaks HTTP to a server",
}


@pytest.mark.slow
def test_a_start_imports_nothing_that_no_chat_needs() -> None:
    """The names are what a start was seen to wait for, or must never begin to."""
    program = "import json, sys; import gridsched.cli.serve; print(json.dumps(sorted(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    imported = {name.partition(".")[0] for name in json.loads(told.stdout)}
    assert "trio" in imported, "the start itself is there"
    assert {name: why for name, why in HEAVY.items() if name in imported} == {}
