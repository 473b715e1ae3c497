"""Requests to a gateway while a page is looked at: begun, and awaited or cancelled at the end."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from tests.support.gateway import Gateway

LONG = 3000
"""Tokens: a chat that outlives what a test looks at, and is cancelled."""


@dataclass
class Asking:
    """What is asked of one gateway."""

    gateway: Gateway
    pool: ThreadPoolExecutor

    def chat(self, model: str = "sim-chat-4b", job_class: str = "interactive", tokens: int = LONG) -> Future[int]:
        """One chat: its status, in time."""
        body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": tokens}
        return self.pool.submit(self._post, "/v1/chat/completions", body, job_class)

    def embed(self, inputs: int, job_class: str = "background") -> Future[int]:
        """So many inputs, in steps of 32."""
        return self.pool.submit(
            self._post, "/v1/embeddings", {"model": "sim-embed", "input": ["a"] * inputs}, job_class
        )

    def _post(self, path: str, body: object, job_class: str) -> int:
        url, headers = self.gateway.url + path, {"X-Class": job_class}
        return httpx.post(url, json=body, headers=headers, trust_env=False, timeout=120.0).status_code

    def cancel_all(self) -> None:
        """End whatever waits or runs."""
        told = self.gateway.get("/api/jobs").json()
        for each in (*told["waiting"], *told["running"]):
            httpx.delete(f"{self.gateway.url}/api/jobs/{each['job']}", trust_env=False, timeout=10.0)


@contextmanager
def asking(gateway: Gateway) -> Iterator[Asking]:
    """For the length of a block; nothing that it has begun goes on behind it."""
    with ThreadPoolExecutor(max_workers=24) as pool:
        asked = Asking(gateway, pool)
        try:
            yield asked
        finally:
            asked.cancel_all()
