"""An exchange whose client is this server itself. Implements `exchange.Exchange`; keeps the answer in memory.

Must never be given to a handler twice: a request that is asked again is a new exchange.
"""

from collections.abc import Mapping, Sequence

from gridsched.api.reply import Kept
from gridsched.control.authority import Caller
from gridsched.control.problems import Header, Problem


class InProcessExchange:
    """One POST and the answer to it."""

    def __init__(self, path: str, headers: Mapping[bytes, bytes], body: bytes, request_id: str, caller: Caller) -> None:
        self.method = "POST"
        self.path = path
        self.headers = headers
        self.body = body
        self.request_id = request_id
        self.caller = caller
        self.started = False
        self.status = 0
        self.answer_headers: dict[bytes, bytes] = {}
        self.query = b""
        self._kept = Kept()

    async def send_start(self, status: int, headers: Sequence[Header], first: bytes = b"") -> None:
        """Keep the head; of an answer that came to nothing nothing is kept. Raises as `send_body`."""
        self.started, self.status, self.answer_headers = True, status, dict(headers)
        self._kept = Kept()
        self._kept.add(first)

    async def send_body(self, data: bytes) -> None:
        """Keep body bytes. Raises RequestError where they have no end."""
        self._kept.add(data)

    @property
    def answer(self) -> bytes:
        """The body so far."""
        return self._kept.content

    def replace_by(self, problem: Problem) -> None:
        """There is no answer, or no rest of it: this is what is kept."""
        self.started, self.status, self.answer_headers = True, problem.status, dict(problem.head())
        self._kept = Kept()
        self._kept.add(problem.body())
