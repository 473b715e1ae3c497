"""What is under way, in a real browser: a batch with its progress, an operation, an empty place in words."""

import json

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.external.browser.entering import go_to
from tests.support.gateway import Gateway

pytestmark = pytest.mark.slow


def batch(gateway: Gateway, lines: int) -> str:
    """The id of a batch of so many embeddings."""
    asked = [
        {"custom_id": str(at), "method": "POST", "url": "/v1/embeddings", "body": {"model": "sim-embed", "input": "a"}}
        for at in range(lines)
    ]
    content = "\n".join(map(json.dumps, asked)).encode()
    files = {"file": ("lines.jsonl", content), "purpose": (None, "batch")}
    file = httpx.post(f"{gateway.url}/v1/files", files=files, trust_env=False, timeout=10.0).json()["id"]
    body = {"input_file_id": file, "endpoint": "/v1/embeddings", "completion_window": "24h"}
    return str(gateway.post("/v1/batches", body).json()["id"])


def test_a_batch_is_seen_to_go_on_until_it_is_done(page: Page, gateway: Gateway) -> None:
    """How many of its lines are answered, and its state; nothing is left to cancel at the end."""
    go_to(page, "work")
    expect(page.locator("main")).to_contain_text("There is no batch.")
    name = batch(gateway, 6)
    row = page.locator("tr", has=page.get_by_text(name))
    expect(row).to_contain_text("of 6 answered", timeout=20_000)
    expect(row).to_contain_text("6 of 6 answered", timeout=30_000)
    expect(row).to_contain_text("completed")
    expect(page.get_by_role("button", name=f"Cancel {name}")).to_be_hidden()
    expect(page.get_by_role("progressbar", name=f"Batch {name}")).to_have_attribute("value", "1")


def test_a_load_is_listed_with_how_it_ended(page: Page, gateway: Gateway) -> None:
    """As an operation, with its model."""
    gateway.post("/api/models/sim-rerank/load?wait=60", {})
    go_to(page, "work")
    row = page.locator("tr", has=page.get_by_text("load model sim-rerank"))
    expect(row).to_contain_text("done")
