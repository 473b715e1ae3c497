"""Long verbs while they run: each with an id, how far it has come, and its end, which is kept for a while.

Owns the tasks. Whoever started one may leave: it goes on (a load that was asked for is not undone by a lost
connection), until it has ended or somebody cancels it. Must never know what an operation does.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

import trio

from gridsched.control.problems import Problem, RequestError
from gridsched.credentials import Scope

log = logging.getLogger(__name__)

KEPT = 200
"""Operations that are over and can still be asked about."""


class State(Enum):
    """How an operation stands."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(slots=True)
class Operation:
    """One long verb, from its start. `done` of `total` (None: nobody knows), in the verb's own unit; times are the
    runtime's clock, in seconds. At its end it has a `result` or a `problem`. Whoever has the scope that it `needs` may
    cancel it."""

    id: str
    verb: str
    arguments: Mapping[str, object]
    began_at: float
    needs: Scope
    asked: object = None
    state: State = State.RUNNING
    done: float = 0.0
    total: float | None = None
    text: str = ""
    result: object = None
    problem: Problem | None = None
    ended_at: float | None = None
    changed: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    at_end: Callable[[], None] = lambda: None

    def tell(self, done: float, total: float | None, text: str) -> None:
        """Say how far it has come: a `verb.Tell`."""
        self.done, self.total, self.text = done, total, text
        self._wake()

    def end(self, state: State, at: float, *, result: object = None, problem: Problem | None = None) -> None:
        """It is over."""
        self.state, self.ended_at, self.result, self.problem = state, at, result, problem
        self._wake()
        self.at_end()

    async def wait(self) -> None:
        """Return when it is over."""
        while self.state is State.RUNNING:
            await self.changed.wait()

    def outcome(self) -> object:
        """What came of it, once it is over. Raises RequestError where that is nothing."""
        if self.problem is not None:
            raise RequestError(self.problem)
        if self.state is State.CANCELLED:
            raise RequestError(Problem("cancelled", f"{self.verb} ({self.id}) was cancelled before its end"))
        return self.result

    def _wake(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


Work = Callable[[Operation], Awaitable[object]]


class Operations:
    """All that run, and those that ended lately. `run` must be running before the first is started."""

    def __init__(self) -> None:
        self._last = 0
        self._known: dict[str, Operation] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Have operations run for as long as this does. Cancelled, it ends them."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def start(self, verb: str, asked: object, arguments: Mapping[str, object], work: Work, needs: Scope) -> Operation:
        """Begin one: what is `asked` stays here, the `arguments` are shown. Raises RequestError where the server is
        ending, or has not begun."""
        if self._nursery is None or self._nursery.cancel_scope.cancel_called:
            raise RequestError(Problem("draining", "this server takes on nothing more"))
        self._last += 1
        operation = Operation(f"op-{self._last}", verb, arguments, trio.current_time(), needs, asked)
        self._known[operation.id] = operation
        self._forget()
        self._nursery.start_soon(self._do, operation, work)
        return operation

    def all(self) -> tuple[Operation, ...]:
        """Those that are known, oldest first."""
        return tuple(self._known.values())

    def find(self, operation_id: str) -> Operation | None:
        """One of them."""
        return self._known.get(operation_id)

    def cancel(self, operation: Operation) -> bool:
        """Have it end; False for one that is over, which stays as it is."""
        operation.scope.cancel()
        return operation.state is State.RUNNING

    def same(self, verb: str, asked: object) -> Operation | None:
        """One that runs and does what is asked already."""
        running = (
            each for each in self._known.values() if each.state is State.RUNNING and not each.scope.cancel_called
        )
        return next((each for each in running if each.verb == verb and each.asked == asked), None)

    async def _do(self, operation: Operation, work: Work) -> None:
        try:
            with operation.scope:
                result = await work(operation)
                operation.end(State.DONE, trio.current_time(), result=result)
        except RequestError as error:
            operation.end(State.FAILED, trio.current_time(), problem=error.problem)
        except Exception:
            log.exception("%s (%s) has failed by a bug", operation.verb, operation.id)
            problem = Problem("internal", "an error of this server; its log has the details")
            operation.end(State.FAILED, trio.current_time(), problem=problem)
        finally:
            if operation.state is State.RUNNING:
                operation.end(State.CANCELLED, trio.current_time())

    def _forget(self) -> None:
        over = [each for each in self._known.values() if each.state is not State.RUNNING]
        for operation in over[: max(0, len(over) - KEPT)]:
            del self._known[operation.id]
