"""The README's table of what each client has been seen to do: `python -m tests.e2e.clients.table` writes it.

A test that drives a client says so with `@pytest.mark.shows(client, feature, …)`. The marks are read from the
source and no test is run for it: a tick is worth what the suite's last run was. Must never tick what no test shows.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
BEGIN = "<!-- written by tests/e2e/clients/table.py from the tests' marks -->"
END = "<!-- end of the clients -->"

CLIENTS = {
    "openai-python": "OpenAI SDK, Python",
    "openai-node": "OpenAI SDK, Node",
    "anthropic-python": "Anthropic SDK, Python",
    "anthropic-node": "Anthropic SDK, Node",
    "claude-code": "Claude Code",
    "langchain": "LangChain",
    "litellm": "LiteLLM",
    "llm": "`llm`",
    "curl": "curl",
}
"""The name in a mark, and the name for people."""

FEATURES = [
    "chat",
    "stream",
    "tools",
    "schema",
    "embeddings",
    "responses",
    "batches",
    "models",
    "class",
    "errors",
    "retries",
    "keys",
]
"""The columns. `chat` is the client's own way to talk: chat completions, or `/v1/messages` for Anthropic's."""


def marks(path: Path) -> Iterator[tuple[str, str]]:
    """(client, feature) of every mark in a file.

    Raises:
        ValueError: a mark that is not made of known words.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith("mark.shows"):
            continue
        client, *features = [ast.literal_eval(word) for word in node.args]
        if client not in CLIENTS or not features or not set(features) <= set(FEATURES):
            raise ValueError(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
        yield from ((client, feature) for feature in features)


def shown() -> set[tuple[str, str]]:
    """All that the tests of clients show."""
    folders = (ROOT / "tests/e2e/clients", ROOT / "tests/external")
    return {mark for folder in folders for path in folder.glob("test_*.py") for mark in marks(path)}


def table() -> str:
    """The table, between its two comment lines."""
    seen = shown()
    lines = [BEGIN, "", "| client | " + " | ".join(FEATURES) + " |", "|---" * (len(FEATURES) + 1) + "|"]
    for client, name in CLIENTS.items():
        ticks = ["✓" if (client, feature) in seen else "" for feature in FEATURES]
        if any(ticks):
            lines.append(f"| {name} | " + " | ".join(ticks) + " |")
    return "\n".join([*lines, "", END])


def rewritten(text: str) -> str:
    """The README's text with the table as it should be."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return before + table() + after


if __name__ == "__main__":
    README.write_text(rewritten(README.read_text(encoding="utf-8")), encoding="utf-8")
