"""Files and batches over real sockets, on simulated hardware: shapes, damaged lines, windows, ends, refusals."""

import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from gridsched.api.settings import BatchFigures, FrontSettings
from gridsched.ports import UpstreamFailureKind
from gridsched.store.batches import BatchStore
from tests.support.fakes import Script
from tests.support.front import Answer, House, serving

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
NIGHT = 1_800_000_000.0 - 8 * 3600
"""2027-01-15T00:00:00Z."""


@pytest.fixture
def clock() -> MockClock:
    """One that jumps when nothing has happened for a moment: files are written in threads, which it does not know."""
    return MockClock(autojump_threshold=0.01)


@dataclass
class SetClock:
    """A wall clock that goes with trio's, and can be set."""

    ahead: float = NIGHT

    def wall_seconds(self) -> float:
        return trio.current_time() + self.ahead

    def boot_seconds(self) -> float:
        return trio.current_time()

    def awake_seconds(self) -> float:
        return trio.current_time()


@dataclass
class Desk:
    """A server with a data directory, and what a client of batches does there."""

    house: House
    store: BatchStore
    wall: SetClock
    said: list[str] = field(default_factory=list)

    async def hand_in(self, data: bytes, name: str = "in.jsonl", **fields: str) -> Answer:
        """Upload a file."""
        body, headers = form(data, name, {"purpose": "batch", **fields})
        return await self.house.ask("POST", "/v1/files", body, headers)

    async def begin(self, data: bytes, endpoint: str = EMBEDDINGS, **more: object) -> str:
        """Upload a file and make a batch of it: its id."""
        file_id = str((await self.hand_in(data)).json["id"])
        asked = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h", **more}
        answer = await self.house.ask("POST", "/v1/batches", asked)
        assert answer.status == 200, answer.body
        assert answer.json["status"] == "validating"
        return str(answer.json["id"])

    async def look(self, batch_id: str) -> dict[str, Any]:
        """A batch as it is."""
        return (await self.house.ask("GET", f"/v1/batches/{batch_id}")).json

    async def until(self, batch_id: str, *statuses: str) -> dict[str, Any]:
        """Wait for one of these."""
        for _ in range(10_000):
            found = await self.look(batch_id)
            if found["status"] in statuses:
                return found
            await trio.sleep(1)
        raise AssertionError(found)

    async def results(self, batch: Mapping[str, Any], which: str = "output_file_id") -> dict[str, dict[str, Any]]:
        """The lines of one of its files, by custom id."""
        if batch[which] is None:
            return {}
        answer = await self.house.ask("GET", f"/v1/files/{batch[which]}/content")
        assert (answer.status, answer.complete) == (200, True)
        lines = [json.loads(line) for line in answer.body.splitlines()]
        assert len({line["id"] for line in lines}) == len(lines)
        return {str(line["custom_id"]): line for line in lines}


@asynccontextmanager
async def desk(
    clock: MockClock, folder: Path, figures: BatchFigures | None = None, wall: SetClock | None = None
) -> AsyncIterator[Desk]:
    """A server for the length of a block. Nothing is left in its folder that no record names."""
    wall = wall or SetClock()
    said: list[str] = []
    store = BatchStore(folder, said.append)
    try:
        async with serving(clock, FrontSettings(batches=figures or BatchFigures()), batches=store, wall=wall) as house:
            yield Desk(house, store, wall, said)
    finally:
        store.close()


async def until(holds: Callable[[], object]) -> None:
    """Look again and again, by a clock that jumps."""
    for _ in range(10_000):
        if holds():
            return
        await trio.sleep(0.1)
    raise AssertionError("it never held")


def form(data: bytes, name: str, fields: Mapping[str, str]) -> tuple[bytes, dict[str, str]]:
    """A body of multipart/form-data, and its header."""
    parts = [
        f'--xyz\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
        for key, value in fields.items()
    ]
    head = f'--xyz\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode()
    body = b"".join(parts) + head + data + b"\r\n--xyz--\r\n"
    return body, {"Content-Type": "multipart/form-data; boundary=xyz"}


def line(number: int, **more: object) -> bytes:
    """One good request, with what is different."""
    body = {"model": "sim-embed", "input": f"text {number}"}
    told = {"custom_id": f"r{number}", "method": "POST", "url": EMBEDDINGS, "body": body, **more}
    return json.dumps(told).encode()


def chat(number: int, **more: object) -> bytes:
    """One chat."""
    body = {"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, **more}
    return line(number, url=CHAT, body=body)


def lines(count: int, first: int = 0) -> bytes:
    """A file of so many."""
    return b"".join(line(number) + b"\n" for number in range(first, first + count))


# --- files ------------------------------------------------------------------------------------------------------------


async def test_a_file_is_kept_listed_given_back_and_deleted(clock: MockClock, tmp_path: Path) -> None:
    """OpenAI's file object, byte for byte the content, pages, and nothing left after the delete."""
    data = os.urandom(3_000_000)
    async with desk(clock, tmp_path) as at:
        made = (await at.hand_in(data, "C:\\Users\\x\\in put.jsonl")).json
        assert made == {
            "id": made["id"],
            "object": "file",
            "bytes": len(data),
            "created_at": int(NIGHT),
            "filename": "in put.jsonl",
            "purpose": "batch",
            "status": "processed",
            "expires_at": None,
            "status_details": None,
        }
        assert (await at.house.ask("GET", f"/v1/files/{made['id']}/content")).body == data
        assert (await at.house.ask("GET", f"/v1/files/{made['id']}")).json == made
        others = [str((await at.hand_in(b"x")).json["id"]) for _ in range(4)]
        every = [made["id"], *others]
        page = (await at.house.ask("GET", "/v1/files?limit=2&order=asc")).json
        assert ([one["id"] for one in page["data"]], page["has_more"]) == (every[:2], True)
        rest = (await at.house.ask("GET", f"/v1/files?after={page['last_id']}&order=asc&purpose=batch")).json
        assert ([one["id"] for one in rest["data"]], rest["has_more"]) == (every[2:], False)
        assert [one["id"] for one in (await at.house.ask("GET", "/v1/files")).json["data"]] == every[::-1]
        gone = await at.house.ask("DELETE", f"/v1/files/{made['id']}")
        assert gone.json == {"id": made["id"], "object": "file", "deleted": True}
        assert (await at.house.ask("GET", f"/v1/files/{made['id']}")).status == 404
        assert sorted(path.name for path in (tmp_path / "files").iterdir()) == sorted(others)


UPLOADS = [
    ({"purpose": "fine-tune"}, b"x", 400, "purpose must be batch"),
    ({"purpose": "batch", "other": "1"}, b"x", 400, "a field that is not known: other"),
    ({"purpose": "batch"}, b"", 400, "the file is empty"),
    ({"purpose": "batch"}, b"x" * 5001, 413, "longer than 5000 bytes"),
    ({"purpose": "x" * 5000}, b"x", 400, "a field of the form is longer"),
    ({str(n): "x" for n in range(30)}, b"x", 400, "a form may have 16 parts"),
    (
        {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "9"},
        b"x",
        400,
        "expires_after",
    ),
]


@pytest.mark.parametrize(("fields", "data", "status", "said"), UPLOADS)
async def test_H1_an_upload_that_is_wrong_is_refused_and_leaves_nothing(
    clock: MockClock, tmp_path: Path, fields: Mapping[str, str], data: bytes, status: int, said: str
) -> None:
    """A 4xx with a sentence, on a connection that goes on."""
    async with desk(clock, tmp_path, BatchFigures(max_file_bytes=5000)) as at, await at.house.connect() as client:
        body, headers = form(data, "a", fields)
        answer = await client.ask("POST", "/v1/files", body, headers)
        assert (answer.status, said in str(answer.error["message"])) == (status, True), answer.body
        assert list((tmp_path / "files").iterdir()) == []
        assert (await client.ask("GET", "/v1/files")).json["data"] == []


FORMS = [
    (b"", "multipart/form-data; boundary=xyz", 400),
    (b"{}", "application/json", 415),
    (b"--xyz\r\n", "multipart/form-data", 400),
    (b"nothing of a form", "multipart/form-data; boundary=xyz", 400),
    (form(b"data", "a", {})[0][:-12], "multipart/form-data; boundary=xyz", 400),
    (b"--xyz\r\n\r\nno header\r\n--xyz--\r\n", "multipart/form-data; boundary=xyz", 400),
    (b"--xyz--\r\n", "multipart/form-data; boundary=xyz", 400),
    (
        b'--xyz\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--xyz--\r\n',
        "multipart/form-data; boundary=xyz",
        400,
    ),
]


@pytest.mark.parametrize(("body", "content_type", "status"), FORMS)
async def test_H1_a_form_that_cannot_be_read_is_refused(
    clock: MockClock, tmp_path: Path, body: bytes, content_type: str, status: int
) -> None:
    """Cut off, without a boundary, without a file, or no form at all."""
    async with desk(clock, tmp_path) as at:
        answer = await at.house.ask("POST", "/v1/files", body, {"Content-Type": content_type})
        assert (answer.status, answer.error["type"]) == (status, "invalid_request_error"), answer.body
        assert list((tmp_path / "files").iterdir()) == []


async def test_a_client_that_leaves_while_it_uploads_leaves_nothing(clock: MockClock, tmp_path: Path) -> None:
    """What had come of the file is gone."""
    async with desk(clock, tmp_path) as at:
        async with await at.house.connect() as client:
            body, headers = form(b"x" * 100_000, "a", {"purpose": "batch"})
            head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            start = f"POST /v1/files HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}Content-Length: {len(body)}\r\n\r\n"
            await client.stream.send_all(start.encode() + body[:90_000])
            await until(lambda: list((tmp_path / "files").iterdir()))
        await until(lambda: not list((tmp_path / "files").iterdir()))
        assert at.store.files() == ()


async def test_without_a_data_directory_files_are_refused_with_the_reason(autojump_clock: MockClock) -> None:
    """503, also to an upload, which is read to its end."""
    async with serving(autojump_clock) as house, await house.connect() as client:
        body, headers = form(b"x" * 1_000_000, "a", {"purpose": "batch"})
        for answer in (
            await client.ask("POST", "/v1/files", body, headers),
            await client.ask("GET", "/v1/batches"),
        ):
            assert (answer.status, answer.error["code"]) == (503, "storage_unavailable")
            assert "--data-dir" in str(answer.error["message"])


# --- batches ----------------------------------------------------------------------------------------------------------


async def test_a_batch_runs_and_its_answers_are_given_back(clock: MockClock, tmp_path: Path) -> None:
    """Every line once, in OpenAI's shapes, as jobs of the class batch; the engine's own bodies, and counts."""
    async with desk(clock, tmp_path) as at:
        batch_id = await at.begin(lines(20), metadata={"for": "me"})
        done = await at.until(batch_id, "completed")
        found = await at.results(done)
        assert set(found) == {f"r{number}" for number in range(20)}
        one = found["r7"]
        assert set(one) == {"id", "custom_id", "response", "error"}
        assert (one["response"]["status_code"], one["error"]) == (200, None)
        assert one["response"]["body"]["object"] == "list"
        assert one["response"]["request_id"]
        assert done["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
        assert (done["error_file_id"], done["errors"], done["metadata"]) == (None, None, {"for": "me"})
        assert done["created_at"] <= done["in_progress_at"] <= done["finalizing_at"] <= done["completed_at"]
        assert {done[f"{name}_at"] for name in ("failed", "expired", "cancelling", "cancelled")} == {None}
        assert done["gridsched"]["state"] == "over"
        assert {entry["class"] for entry in at.house.logged("enqueue")} == {"batch"}
        page = (await at.house.ask("GET", "/metrics")).body.decode()
        assert 'gridsched_batch_lines_total{outcome="completed"} 20.0' in page
        assert 'gridsched_batches{status="completed"} 1.0' in page
        assert "gridsched_batch_lines_remaining 0.0" in page


async def test_damaged_lines_are_reported_and_the_good_ones_run(clock: MockClock, tmp_path: Path) -> None:
    """With their line, a code and a sentence; a BOM, CRLF, blank lines and a last line without an end are no damage."""
    file = b"\xef\xbb\xbf" + b"\r\n".join(
        [
            line(1),
            b"",
            b"{not json",
            line(1),
            line(3, method="GET"),
            line(4, url=CHAT),
            line(5, body=[]),
            line(6, body={"stream": True, "input": "x"}),
            b'{"custom_id": "r7", "method": "POST", "url": "/v1/embeddings"}',
            b'{"custom_id": 8, "method": "POST", "url": "/v1/embeddings", "body": {}}',
            b'\xff\xfe{"custom_id": "r9"}',
            b"   ",
            line(10, body={"model": "sim-embed", "input": 1e3}).replace(b"1000.0", b"NaN"),
            line(11),
        ]
    )
    async with desk(clock, tmp_path) as at:
        done = await at.until(await at.begin(file), "completed")
        assert set(await at.results(done)) == {"r1", "r11"}
        told = {error["line"]: (error["code"], error["param"]) for error in done["errors"]["data"]}
        assert told == {
            3: ("invalid_json_line", None),
            4: ("duplicate_custom_id", "custom_id"),
            5: ("invalid_method", "method"),
            6: ("mismatched_endpoint", "url"),
            7: ("invalid_type", "body"),
            8: ("stream_not_supported", "body"),
            9: ("missing_required_parameter", "body"),
            10: ("invalid_type", "custom_id"),
            11: ("invalid_json_line", None),
            13: ("invalid_json_line", None),
        }
        answer = await at.house.ask("GET", f"/v1/files/{done['error_file_id']}/content")
        reported = [json.loads(each) for each in answer.body.splitlines()]
        assert [each["line"] for each in reported] == sorted(told)
        assert all(each["response"] is None and each["error"]["code"] == told[each["line"]][0] for each in reported)
        assert done["request_counts"] == {"total": 12, "completed": 2, "failed": 10}


FAILING = [
    (b"\n\n", "empty_file", None),
    (b"x\ny\n", "invalid_json_line", 1),
    (b"\n".join(b"{}" for _ in range(50_001)), "too_many_tasks", None),
]


@pytest.mark.parametrize(("file", "code", "number"), FAILING)
async def test_a_file_with_nothing_to_run_fails_its_batch(
    clock: MockClock, tmp_path: Path, file: bytes, code: str, number: int | None
) -> None:
    """Blank, damaged throughout, or of more than 50,000 lines."""
    async with desk(clock, tmp_path) as at:
        failed = await at.until(await at.begin(file), "failed")
        assert (failed["errors"]["data"][0]["code"], failed["errors"]["data"][0]["line"]) == (code, number)
        assert failed["failed_at"] is not None
        assert (failed["output_file_id"], failed["error_file_id"]) == (None, None)
        assert [path.name for path in (tmp_path / "files").iterdir()] == [failed["input_file_id"]]


async def test_an_error_that_passes_is_tried_again_and_another_is_reported(clock: MockClock, tmp_path: Path) -> None:
    """The engine's 503 is not the answer; its 400 is, byte for byte, and so is an unknown model's 404."""
    refused = b'{ "error" : {"code": 400,\n "type": "exceed_context_size_error"} }'
    async with desk(clock, tmp_path, BatchFigures(in_flight=1)) as at:
        at.house.upstream.scripts += [
            Script([b'{"error":{"message":"Loading model"}}'], status=503),
            Script([UpstreamFailureKind.BROKEN]),
            Script([refused], status=400),
            Script([b"no json"], status=200),
        ]
        file = b"\n".join([chat(1), chat(2), chat(3), chat(4, model="nobody"), chat(5)])
        done = await at.until(await at.begin(file, CHAT), "completed")
        failed = await at.results(done, "error_file_id")
        good = await at.results(done)
        assert (set(good), set(failed)) == ({"r2", "r3", "r5"}, {"r1", "r4"})
        assert failed["r1"]["response"]["body"] == json.loads(refused)
        assert failed["r4"]["response"]["body"]["error"]["code"] == "model_not_found"
        assert good["r2"]["response"]["body"] == "no json"


async def test_an_error_that_stays_is_reported_after_some_tries(clock: MockClock, tmp_path: Path) -> None:
    """Six times; then the engine's last answer stands."""
    async with desk(clock, tmp_path) as at:
        busy = b'{"error":{"message":"busy"}}'
        at.house.upstream.scripts += [Script([busy], status=429) for _ in range(6)]
        done = await at.until(await at.begin(chat(1), CHAT), "completed")
        (failed,) = (await at.results(done, "error_file_id")).values()
        assert failed["response"]["status_code"] == 429
        assert failed["response"]["body"] == json.loads(busy)
        assert len(at.house.upstream.asked) == 6
