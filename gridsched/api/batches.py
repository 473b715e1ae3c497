"""`/v1/batches` and `/v1/files`: which request goes where, and what is said of a batch (OpenAI's Batch API).

Owns what a batch may be asked to be. Must never run anything itself: `batch_runner` does.
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from gridsched.api.batch_asking import Office
from gridsched.api.batch_lines import ENDPOINTS
from gridsched.api.batch_run import BatchRun
from gridsched.api.batch_runner import BatchRunner
from gridsched.api.body import Incoming
from gridsched.api.decode import CLASS_WORDS
from gridsched.api.elsewhere import method_not_allowed, not_found
from gridsched.api.exchange import Exchange, send_problem
from gridsched.api.files import FILES, Files, Page, life_of, may_see, seen_by, send_json
from gridsched.api.inference import Inference
from gridsched.api.members import BadBody, members
from gridsched.api.routes import ROUTES
from gridsched.api.seat import House
from gridsched.api.upload import Upload, discard, of_disk, receive_upload
from gridsched.control.authority import Caller
from gridsched.control.problems import (
    LONGEST_SAID_NAME,
    Problem,
    RequestError,
    invalid,
)
from gridsched.core.job import JobClass
from gridsched.daytime import window_of
from gridsched.store.batches import BatchRecord, BatchStore, Status, StoreError

BATCHES: Final = "/v1/batches"
LONGEST_CREATE_BYTES = 64 * 1024
MOST_METADATA, LONGEST_KEY, LONGEST_VALUE = 16, 64, 512
MOST_LISTED, LISTED = 100, 20
LONGEST_WINDOW_SECONDS = 30 * 86400
_WINDOW = re.compile(r"(\d{1,4})(m|h|d)")
_UNITS: Final[Mapping[str, int]] = {"m": 60, "h": 3600, "d": 86400}
_TIMES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


class _Ours(msgspec.Struct, forbid_unknown_fields=True):
    window: str | None = None
    job_class: str | None = msgspec.field(name="class", default=None)


class _Create(msgspec.Struct, forbid_unknown_fields=True):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: object = None
    gridsched: _Ours | None = None


def in_batches(path: str) -> bool:
    """Whether a path is answered here, be it with a 404."""
    return any(path == each or path.startswith(each + "/") for each in (FILES, BATCHES))


class Batches:
    """Answers for files and batches, and runs what is handed in."""

    def __init__(self, house: House, inference: Inference, store: BatchStore | None) -> None:
        self._house = house
        self._store = store
        self._runner: BatchRunner | None = None
        if store is not None and store.why_closed is None:
            self._office = Office(house, inference, store)
            self._runner = BatchRunner(self._office)
            self._files = Files(store, self._runner.busy_files, self._office.wall)
            house.observer.watch_batches(self._runner.by_status, self._runner.lines_remaining)

    def takes(self, exchange: Exchange) -> bool:
        """Whether a request brings a file, which is written to disk while it comes."""
        return exchange.path == FILES and exchange.method == "POST"

    async def receive(self, exchange: Exchange, body: Incoming) -> Upload | None:
        """The file that a request brings, None where the client left. Raises RequestError."""
        if (refusal := self.refusal()) is not None:
            raise RequestError(refusal)
        content_type = exchange.headers.get(b"content-type", b"")
        longest = self._house.settings.batches.max_file_bytes
        return await receive_upload(body, content_type, self._office.store.folder, longest)

    async def put_away(self, upload: Upload) -> None:
        """Remove a file that was not kept."""
        if self._office.store.file(upload.id) is None:
            await discard(self._office.store.folder, upload.id)

    async def run(self) -> None:
        """Run batches until cancelled."""
        if self._runner is not None:
            await self._runner.run()

    async def answer(self, exchange: Exchange, upload: Upload | None) -> bool:
        """Answer one request to a path of `in_batches`. False: the answer was cut off."""
        try:
            return await self._route(exchange, upload)
        except RequestError as error:
            if upload is not None:
                await self.put_away(upload)  # before anybody is told
            await send_problem(exchange, error.problem)
            return True

    def refusal(self) -> Problem | None:
        """Why nothing can be handed in, or None."""
        if self._runner is not None:
            return None
        why = "it was started without a data directory; give it one with --data-dir"
        if self._store is not None:
            why = self._store.why_closed or ""
        return Problem("storage_unavailable", f"this server keeps no files and runs no batches: {why}")

    async def _route(self, exchange: Exchange, upload: Upload | None) -> bool:
        """Raises RequestError."""
        kind, *parts = exchange.path.split("/")[2:]
        method = "GET" if exchange.method == "HEAD" else exchange.method
        allowed = _allowed(kind, parts)
        if method == "OPTIONS" and allowed:
            await exchange.send_start(204, [(b"allow", ", ".join(allowed).encode())])
            return True
        if method not in allowed:
            wrong = method_not_allowed(exchange.method, exchange.path, allowed)
            raise RequestError(wrong if allowed else not_found(exchange.path))
        if (refusal := self.refusal()) is not None:
            raise RequestError(refusal)
        if kind == "files":
            return await self._answer_files(exchange, method, parts, upload)
        await self._answer_batches(exchange, method, parts)
        return True

    async def _answer_batches(self, exchange: Exchange, method: str, parts: Sequence[str]) -> None:
        """Raises RequestError."""
        match parts, method:
            case [], "POST":
                await self._create(exchange)
            case [batch_id, _], _:
                await self._cancel(exchange, batch_id)
            case [batch_id], _:
                await send_json(exchange, self._shown(self._find(exchange.caller, batch_id)))
            case _:
                asked = Page.read(exchange.query, LISTED, MOST_LISTED)
                found = seen_by(exchange.caller, self._office.store.batches())
                await send_json(exchange, asked.page(found, self._shown))

    async def _answer_files(self, exchange: Exchange, method: str, parts: Sequence[str], upload: Upload | None) -> bool:
        """Raises RequestError."""
        match parts, method:
            case [], "POST" if upload is not None:
                await self._files.create(exchange, upload)
            case [file_id, _], _:
                return await self._files.content(exchange, file_id)
            case [file_id], "DELETE":
                await self._files.delete(exchange, file_id)
            case [file_id], _:
                await self._files.retrieve(exchange, file_id)
            case _:
                await self._files.list(exchange)
        return True

    async def _create(self, exchange: Exchange) -> None:
        """Raises RequestError."""
        asked = _read(exchange.body)
        record = self._record(exchange.caller, asked)
        store = self._office.store
        try:
            await store.change([record])
        except StoreError as error:
            raise RequestError(of_disk(error)) from None
        assert self._runner is not None  # noqa: S101 - for the type checker
        self._runner.begin(record)
        await send_json(exchange, self._shown(record))

    def _record(self, caller: Caller, asked: _Create) -> BatchRecord:
        """Raises RequestError."""
        file = self._files.find(caller, asked.input_file_id)
        if file.purpose != "batch":
            raise invalid(f"{file.id} was not handed in for a batch", "input_file_id")
        known = [each for each in ENDPOINTS if each in ROUTES]
        if asked.endpoint not in known:
            raise invalid(f"endpoint must be one of {', '.join(known)}", "endpoint")
        ours = asked.gridsched or _Ours()
        return BatchRecord(
            id=f"batch_{secrets.token_hex(16)}",
            key=caller.key,
            endpoint=asked.endpoint,
            input_file_id=file.id,
            completion_window=asked.completion_window,
            limit_seconds=_completion_seconds(asked.completion_window),
            job_class=_class(ours.job_class, caller).label,
            created_at=int(self._office.wall()),
            metadata=_metadata(asked.metadata),
            window=_day_window(ours.window),
            output_expires_seconds=life_of(asked.output_expires_after, "output_expires_after"),
        )

    async def _cancel(self, exchange: Exchange, batch_id: str) -> None:
        """Raises RequestError."""
        record = self._find(exchange.caller, batch_id)
        assert self._runner is not None  # noqa: S101 - for the type checker
        run = self._runner.run_of(record.id)
        if run is None or (record.ending is not None and record.status is not Status.CANCELLING):
            raise RequestError(Problem("conflict", f"{record.id} is {record.status.value} and cannot be cancelled"))
        if record.status is not Status.CANCELLING:
            try:
                await run.cancel()
            except StoreError as error:
                raise RequestError(of_disk(error)) from None
        await send_json(exchange, self._shown(run.record))

    def _find(self, caller: Caller, batch_id: str) -> BatchRecord:
        """Raises RequestError."""
        record = self._office.store.batch(batch_id)
        if record is None or not may_see(caller, record.key):
            raise RequestError(Problem("not_found", f"there is no batch {batch_id[:LONGEST_SAID_NAME]!r}"))
        return record

    def _shown(self, record: BatchRecord) -> dict[str, object]:
        """OpenAI's batch object, and ours inside it."""
        run = None
        if self._runner is not None and not record.status.is_over:
            run = self._runner.run_of(record.id)
        total, well, badly = run.counts if run is not None else (record.total, record.completed, record.failed)
        errors = [msgspec.to_builtins(error) for error in record.errors]
        return {
            "id": record.id,
            "object": "batch",
            "endpoint": record.endpoint,
            "errors": {"object": "list", "data": errors} if errors else None,
            "input_file_id": record.input_file_id,
            "completion_window": record.completion_window,
            "status": record.status.value,
            "output_file_id": record.output_file_id,
            "error_file_id": record.error_file_id,
            "created_at": record.created_at,
            "expires_at": run.expires_at if run is not None else record.times.get("expires"),
            **{f"{name}_at": record.times.get(name) for name in _TIMES},
            "request_counts": {"total": total, "completed": well, "failed": badly},
            "metadata": record.metadata,
            "gridsched": {
                "class": record.job_class,
                "done": well,
                "failed": badly,
                **_progress(run),
                "window": record.window if run is None or run.window is None else str(run.window),
            },
        }


def _progress(run: BatchRun | None) -> dict[str, object]:
    """What is to be said of a batch that is not over."""
    if run is None:
        return {"state": "over", "running": 0, "waiting_for": None, "eta_s": None}
    waiting_for, eta_seconds = run.waiting_for, run.eta_seconds
    return {
        "state": "paused" if run.trouble or run.broken else "waiting" if waiting_for else "running",
        "running": run.running,
        "waiting_for": waiting_for,
        "eta_s": None if eta_seconds is None else round(eta_seconds, 1),
    }


def _allowed(kind: str, parts: Sequence[str]) -> tuple[str, ...]:
    """The methods that a path takes; none where there is no such path."""
    match kind, parts:
        case _, []:
            return ("GET", "HEAD", "POST", "OPTIONS")
        case "files", [_]:
            return ("GET", "HEAD", "DELETE", "OPTIONS")
        case ("batches", [_]) | ("files", [_, "content"]):
            return ("GET", "HEAD", "OPTIONS")
        case "batches", [_, "cancel"]:
            return ("POST", "OPTIONS")
    return ()


# --- what a batch is asked to be --------------------------------------------------------------------------------------


def _read(body: bytes) -> _Create:
    """Raises RequestError."""
    if len(body) > LONGEST_CREATE_BYTES:
        raise RequestError(Problem("request_too_large", f"the body is longer than {LONGEST_CREATE_BYTES} bytes"))
    try:
        members(body)
        return msgspec.json.decode(body, type=_Create)
    except BadBody as error:
        raise invalid(str(error)) from None
    except msgspec.MsgspecError as error:
        said = str(error).replace("`", "")
        param = next((each for each in _Create.__struct_fields__ if each in said), None)
        raise invalid(said[:1].lower() + said[1:], param) from None


def _completion_seconds(text: str) -> float:
    """Raises RequestError."""
    match = _WINDOW.fullmatch(text)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 60 <= seconds <= LONGEST_WINDOW_SECONDS:  # noqa: PLR2004 - a minute
        raise invalid("completion_window must be 24h, or another time from 1m to 30d", "completion_window")
    return float(seconds)


def _metadata(said: dict[str, str] | None) -> dict[str, str] | None:
    """Raises RequestError."""
    for key, value in (said or {}).items():
        if len(key) > LONGEST_KEY or len(value) > LONGEST_VALUE:
            message = f"metadata has keys of at most {LONGEST_KEY} and values of at most {LONGEST_VALUE} characters"
            raise invalid(message, "metadata")
    if said is not None and len(said) > MOST_METADATA:
        raise invalid(f"metadata has at most {MOST_METADATA} keys", "metadata")
    return said


def _day_window(said: str | None) -> str | None:
    """Raises RequestError."""
    try:
        return None if said is None else str(window_of(said))
    except ValueError as error:
        raise invalid(f"gridsched.window: {error}", "gridsched.window") from None


def _class(said: str | None, caller: Caller) -> JobClass:
    """Batch, or what was asked for as far as the key may. Raises RequestError."""
    if said is None:
        return JobClass.BATCH
    known = CLASS_WORDS.get(said.lower())
    if known is None:
        words = ", ".join(CLASS_WORDS)
        raise invalid(f"gridsched.class: {said!r} is no class; there are {words}", "gridsched.class", "invalid_class")
    return max(known, caller.highest_class) if caller.highest_class is not None else known
