"""Files and batches over real sockets, on simulated hardware: shapes, damaged lines, windows, ends, refusals."""

import base64
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from gridsched.api import reply
from gridsched.api.batch_lines import answer_line, undone_line
from gridsched.api.settings import BatchFigures, FrontSettings
from gridsched.core.job import JobClass
from gridsched.credentials import Scope
from gridsched.daytime import window_of
from gridsched.ports import UpstreamFailureKind
from gridsched.store.batches import BatchRecord, BatchStore, FileRecord, Status
from tests.api.test_api_keys import key, shown
from tests.store.test_full_disk import Disk, limit, tmpfs
from tests.support.fakes import Script
from tests.support.front import ADMIN_WORD, Answer, House, serving
from tests.support.image_host import PNG, image_host
from tests.support.image_host import answer as image

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
NIGHT = 1_800_000_000.0 - 8 * 3600
"""2027-01-15T00:00:00Z."""


@pytest.fixture
def clock() -> MockClock:
    """One that jumps when nothing has happened for a moment: files are written in threads, which it does not know."""
    return MockClock(autojump_threshold=0.004)


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

    async def hand_in(
        self, data: bytes, name: str = "in.jsonl", who: Mapping[str, str] | None = None, **fields: str
    ) -> Answer:
        """Upload a file."""
        body, headers = form(data, name, {"purpose": "batch", **fields})
        return await self.house.ask("POST", "/v1/files", body, headers | dict(who or {}))

    async def begin(
        self, data: bytes, endpoint: str = EMBEDDINGS, who: Mapping[str, str] | None = None, **more: object
    ) -> str:
        """Upload a file and make a batch of it: its id."""
        file_id = str((await self.hand_in(data, who=who)).json["id"])
        asked = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h", **more}
        answer = await self.house.ask("POST", "/v1/batches", asked, who)
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
    clock: MockClock,
    folder: Path,
    figures: BatchFigures | None = None,
    wall: SetClock | None = None,
    image_hosts: frozenset[str] = frozenset(),
) -> AsyncIterator[Desk]:
    """A server for the length of a block. Nothing is left in its folder that no record names."""
    wall = wall or SetClock()
    said: list[str] = []
    store = BatchStore(folder, said.append)
    try:
        patient = FrontSettings(  # a slow disk is no client
            batches=figures or BatchFigures(), upload_stall_seconds=1e6, image_hosts=image_hosts
        )
        async with serving(clock, patient, batches=store, wall=wall) as house:
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


def noon() -> float:
    """Noon of the day, by this machine's clocks."""
    shown = time.localtime(NIGHT)
    return NIGHT + (12 - shown.tm_hour) * 3600 - shown.tm_min * 60


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
            "created_at": pytest.approx(NIGHT, abs=60),
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
        life = {"anchor": "created_at", "seconds": 3600}
        batch_id = await at.begin(lines(20), metadata={"for": "me"}, output_expires_after=life)
        done = await at.until(batch_id, "completed")
        output = (await at.house.ask("GET", f"/v1/files/{done['output_file_id']}")).json
        assert (output["purpose"], output["filename"]) == ("batch_output", f"{batch_id}_output.jsonl")
        assert output["expires_at"] == output["created_at"] + 3600
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


HI = [{"role": "user", "content": "hi"}]
BODIES: list[tuple[str, dict[str, object]]] = [
    ("/v1/completions", {"prompt": "a"}),
    ("/v1/responses", {"input": "hi"}),
    ("/v1/messages", {"messages": HI, "max_tokens": 2}),
    (CHAT, {"messages": HI, "gridsched": {"warm_only": False}, "x_class": "interactive"}),
]


@pytest.mark.parametrize(("endpoint", "body"), BODIES, ids=[each[0] for each in BODIES])
async def test_every_endpoint_of_a_batch_is_served(
    clock: MockClock, tmp_path: Path, endpoint: str, body: dict[str, object]
) -> None:
    """The engine is asked on its path; our own members do not go up, and no line makes itself more than batch work."""
    async with desk(clock, tmp_path) as at:
        file = line(1, url=endpoint, body={"model": "sim-chat-4b@background", **body})
        done = await at.until(await at.begin(file, endpoint), "completed")
        (one,) = (await at.results(done)).values()
        assert one["response"]["status_code"] == 200
        assert [asked.target for asked in at.house.upstream.asked] == [endpoint]
        assert b"gridsched" not in at.house.upstream.asked[0].body
        assert {entry["class"] for entry in at.house.logged("enqueue")} == {"batch"}


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


async def test_an_image_by_url_in_a_line_is_fetched_under_the_same_guard(clock: MockClock, tmp_path: Path) -> None:
    """It goes up as data; a line whose image is at home, or is not there, has its 400, and the engine is not asked."""
    async with image_host() as host, desk(clock, tmp_path, image_hosts=frozenset((f"127.0.0.1:{host.port}",))) as at:
        host.answers["/a"] = [1.0, *image(PNG)]
        urls = (
            f"http://127.0.0.1:{host.port}/a",
            "http://127.0.0.1:9/",
            f"http://127.0.0.1:{host.port}/none",
            "file:///x",
        )
        parts = ({"type": "image_url", "image_url": {"url": url}} for url in urls)
        file = b"\n".join(chat(number, messages=[{"role": "user", "content": [p]}]) for number, p in enumerate(parts))
        done = await at.until(await at.begin(file, CHAT), "completed")
        assert set(await at.results(done)) == {"r0"}
        failed = await at.results(done, "error_file_id")
        assert {name: each["response"]["status_code"] for name, each in failed.items()} == {
            "r1": 400,
            "r2": 400,
            "r3": 400,
        }
        (asked,) = at.house.upstream.asked
        assert f"data:image/png;base64,{base64.b64encode(PNG).decode()}".encode() in asked.body
        assert {target for target, _ in host.asked} == {"/a", "/none"}


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


async def test_an_answer_without_an_end_is_not_kept_and_its_line_asked_again(
    clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that runs away is an error like any other, and nothing of its answer is in the next one's."""
    monkeypatch.setattr(reply, "LONGEST_KEPT_BYTES", 100_000)
    async with desk(clock, tmp_path) as at:
        at.house.upstream.scripts += [Script([b"#" * 10_000] * 1_000_000), Script([b"fine"])]
        done = await at.until(await at.begin(chat(1), CHAT), "completed")
        assert (await at.results(done))["r1"]["response"]["body"] == "fine"


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


# --- when, and how it ends --------------------------------------------------------------------------------------------


async def test_no_line_begins_outside_the_window_and_a_batch_does_not_expire_there(
    clock: MockClock, tmp_path: Path
) -> None:
    """A batch for the night with an hour to do waits through the day, says why, and runs; one has its own window."""
    wall = SetClock(noon())
    async with desk(clock, tmp_path, BatchFigures(window=window_of("22:00-07:00")), wall) as at:
        batch_id = await at.begin(lines(6), completion_window="1h")
        now = await at.begin(lines(2), gridsched={"window": "11:00–13:00"})  # noqa: RUF001
        assert (await at.until(now, "completed"))["gridsched"]["window"] == "11:00-13:00"
        waits = await at.until(batch_id, "in_progress")
        assert (waits["gridsched"]["state"], waits["gridsched"]["window"]) == ("waiting", "22:00-07:00")
        assert waits["gridsched"]["waiting_for"] == "its window, 22:00-07:00"
        assert waits["expires_at"] == pytest.approx(noon() + 11 * 3600, abs=60)
        wall.ahead += 9.9 * 3600
        await trio.sleep(100)
        assert (await at.look(batch_id))["request_counts"]["completed"] == 0
        wall.ahead += 0.1 * 3600
        done = await at.until(batch_id, "completed")
        assert done["completed_at"] - noon() == pytest.approx(10 * 3600, abs=200)


async def test_a_line_that_has_queued_until_the_window_closes_is_taken_back(clock: MockClock, tmp_path: Path) -> None:
    """What runs ends, what waits does not begin after the window; the next day it is run. None of it was a try."""
    wall = SetClock(noon())
    async with desk(clock, tmp_path, BatchFigures(window=window_of("11:00-12:02"), in_flight=8), wall) as at:
        at.house.upstream.scripts += [Script([b"{}"], head_seconds=100.0) for _ in range(8)]
        file = b"\n".join(chat(number) for number in range(30))
        batch_id = await at.begin(file, CHAT)
        await trio.sleep(210)
        asked = len(at.house.upstream.asked)
        wall.ahead += 12 * 3600
        await trio.sleep(100)
        assert len(at.house.upstream.asked) == asked
        assert asked < 30
        assert at.house.runtime.desk.open_tickets == 0
        wall.ahead += 11 * 3600
        done = await at.until(batch_id, "completed")
        assert done["request_counts"] == {"total": 30, "completed": 30, "failed": 0}
        assert done["completed_at"] - noon() > 12 * 3600


async def test_S4_a_batch_that_waits_for_a_chat_says_what_it_waits_for(clock: MockClock, tmp_path: Path) -> None:
    """In the scheduler's words; when the chat is over it runs."""
    async with desk(clock, tmp_path) as at, trio.open_nursery() as nursery:
        at.house.upstream.scripts += [Script([b"{}"], head_seconds=40.0)]
        chatting = {"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}]}
        nursery.start_soon(at.house.ask, "POST", CHAT, chatting)
        await until(lambda: at.house.upstream.asked)
        batch_id = await at.begin(b"\n".join(map(chat, range(3))), CHAT)
        await until(lambda: at.house.logged("enqueue")[3:])
        waits = await at.look(batch_id)
        assert waits["gridsched"]["state"] == "waiting"
        assert "queued" in waits["gridsched"]["waiting_for"]
        done = await at.until(batch_id, "completed")
        assert done["request_counts"]["completed"] == 3


async def test_a_clock_that_is_set_neither_expires_a_batch_nor_tidies_it_away(clock: MockClock, tmp_path: Path) -> None:
    """A year ahead and back again, while it runs and after."""
    wall = SetClock()
    async with desk(clock, tmp_path, BatchFigures(tidy_seconds=60.0), wall) as at:
        at.house.upstream.scripts += [Script([b"{}"], head_seconds=100.0)]
        batch_id = await at.begin(chat(1), CHAT)
        await trio.sleep(30)
        wall.ahead += 366 * 86400
        await trio.sleep(20)
        assert (await at.look(batch_id))["status"] == "in_progress"
        wall.ahead -= 400 * 86400
        done = await at.until(batch_id, "completed")
        wall.ahead += 400 * 86400
        await trio.sleep(55)
        assert await at.results(done)


async def test_a_batch_that_is_cancelled_before_a_line_runs_has_a_line_about_each(
    clock: MockClock, tmp_path: Path
) -> None:
    """At once after it was made: whether it has been read by then or not."""
    async with desk(clock, tmp_path, BatchFigures(window=window_of("03:00-03:01"))) as at:
        file = lines(3) + b"no json\n"
        file_id = str((await at.hand_in(file)).json["id"])
        asked = {"input_file_id": file_id, "endpoint": EMBEDDINGS, "completion_window": "24h"}
        made = (await at.house.ask("POST", "/v1/batches", asked)).json
        assert (await at.house.ask("POST", f"/v1/batches/{made['id']}/cancel")).json["status"] == "cancelling"
        over = await at.until(str(made["id"]), "cancelled")
        assert over["request_counts"] == {"total": 4, "completed": 0, "failed": 4}
        told = await at.results(over, "error_file_id")
        assert {name: each["error"]["code"] for name, each in told.items()} == {
            **dict.fromkeys(("r0", "r1", "r2"), "batch_cancelled"),
            "None": "invalid_json_line",
        }


async def test_a_batch_expires_with_what_has_been_answered(clock: MockClock, tmp_path: Path) -> None:
    """Once lines could begin for as long as its completion window; each of the rest says so."""
    async with desk(clock, tmp_path, BatchFigures(in_flight=1)) as at:
        at.house.upstream.scripts += [Script([b"{}"]), *(Script([b"{}"], head_seconds=400.0) for _ in range(9))]
        over = await at.until(await at.begin(b"\n".join(map(chat, range(3))), CHAT, completion_window="1m"), "expired")
        assert over["expired_at"] - over["created_at"] == pytest.approx(60, abs=20)
        assert over["expires_at"] == pytest.approx(over["expired_at"], abs=5)
        assert set(await at.results(over)) == {"r0"}
        undone = await at.results(over, "error_file_id")
        assert {(name, each["error"]["code"], each["response"]) for name, each in undone.items()} == {
            (name, "batch_expired", None) for name in ("r1", "r2")
        }
        assert over["request_counts"] == {"total": 3, "completed": 1, "failed": 2}


async def test_a_batch_is_cancelled_with_what_has_been_answered(clock: MockClock, tmp_path: Path) -> None:
    """What runs is left at once; its file cannot be deleted before, and what is over cannot be cancelled: 409."""
    async with desk(clock, tmp_path, BatchFigures(in_flight=2)) as at:
        at.house.upstream.scripts += [Script([b"{}"]), *(Script([b"{}"], head_seconds=400.0) for _ in range(9))]
        batch_id = await at.begin(b"\n".join(map(chat, range(5))), CHAT)
        await until(lambda: at.house.logged("step") or at.house.logged("complete"))
        busy = await at.until(batch_id, "in_progress")
        assert (await at.house.ask("DELETE", f"/v1/files/{busy['input_file_id']}")).status == 409
        answer = await at.house.ask("POST", f"/v1/batches/{batch_id}/cancel")
        assert (answer.status, answer.json["status"]) == (200, "cancelling")
        over = await at.until(batch_id, "cancelled")
        told = await at.results(over) | await at.results(over, "error_file_id")
        assert set(told) == {f"r{number}" for number in range(5)}
        assert over["cancelled_at"] >= over["cancelling_at"]
        assert (await at.house.ask("POST", f"/v1/batches/{batch_id}/cancel")).error["code"] == "conflict"
        assert (await at.house.ask("DELETE", f"/v1/files/{over['input_file_id']}")).status == 200
        assert at.house.runtime.desk.open_tickets == 0


async def test_batches_are_listed_newest_first_in_pages(clock: MockClock, tmp_path: Path) -> None:
    """`after` and `limit`, as the SDK asks."""
    async with desk(clock, tmp_path) as at:
        made = [await at.begin(line(number)) for number in range(3)]
        page = (await at.house.ask("GET", "/v1/batches?limit=2")).json
        assert ([one["id"] for one in page["data"]], page["has_more"]) == (made[:0:-1], True)
        assert (page["first_id"], page["last_id"]) == (made[2], made[1])
        rest = (await at.house.ask("GET", f"/v1/batches?limit=2&after={page['last_id']}")).json
        assert ([one["id"] for one in rest["data"]], rest["has_more"]) == (made[:1], False)
        for wrong in ("limit=0", "limit=101", "limit=x", "after=batch_none"):
            assert (await at.house.ask("GET", f"/v1/batches?{wrong}")).status == 400
        for batch_id in made:
            await at.until(batch_id, "completed")


WRONG_BATCHES: list[tuple[dict[str, object], int, str | None]] = [
    ({"input_file_id": "file-none"}, 404, None),
    ({"input_file_id": "../../etc/passwd"}, 404, None),
    ({"input_file_id": 5}, 400, "input_file_id"),
    ({"endpoint": "/v1/rerank"}, 400, "endpoint"),
    ({"completion_window": "soon"}, 400, "completion_window"),
    ({"completion_window": "31d"}, 400, "completion_window"),
    ({"metadata": {"a": 1}}, 400, "metadata"),
    ({"metadata": {str(number): "" for number in range(17)}}, 400, "metadata"),
    ({"metadata": {"a": "x" * 513}}, 400, "metadata"),
    ({"gridsched": {"window": "at night"}}, 400, "gridsched.window"),
    ({"gridsched": {"class": "urgent"}}, 400, "gridsched.class"),
    ({"gridsched": {"what": 1}}, 400, "gridsched"),
    ({"what": 1}, 400, None),
    ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, 400, "output_expires_after"),
]


async def test_H1_a_batch_that_cannot_be_is_refused(clock: MockClock, tmp_path: Path) -> None:
    """A 4xx that names the member; nothing is begun."""
    async with desk(clock, tmp_path) as at:
        file_id = (await at.hand_in(line(1))).json["id"]
        good = {"input_file_id": file_id, "endpoint": EMBEDDINGS, "completion_window": "24h"}
        for wrong, status, param in WRONG_BATCHES:
            answer = await at.house.ask("POST", "/v1/batches", good | wrong)
            assert (answer.status, answer.error["param"]) == (status, param), (wrong, answer.body)
        for body in (b"", b"[]", b"{", b'{"endpoint": "a", "endpoint": "b"}', b" " * 70_000):
            assert (await at.house.ask("POST", "/v1/batches", body)).status in {400, 413}
        assert at.store.batches() == ()


async def test_a_drain_holds_a_batch_and_the_next_server_ends_it(clock: MockClock, tmp_path: Path) -> None:
    """A line that runs ends and is recorded, what waited is not tried, and all of it is once in the files."""
    async with desk(clock, tmp_path, BatchFigures(in_flight=3)) as at:
        at.house.upstream.scripts += [Script([b"{}"], head_seconds=5.0) for _ in range(3)]
        batch_id = await at.begin(b"\n".join(map(chat, range(10))), CHAT)
        await until(lambda: at.house.upstream.asked)
        at.house.runtime.begin_drain()
        held = await at.look(batch_id)
        assert held["gridsched"]["waiting_for"] == "a restart of the server, which takes no new work"
    running = [path for path in (tmp_path / "files").iterdir() if path.suffix == ".output"]
    recorded = sum(path.read_bytes().count(b"\n") for path in running)
    assert 0 < recorded < 10
    async with desk(clock, tmp_path) as at:
        done = await at.until(batch_id, "completed")
        assert set(await at.results(done)) == {f"r{number}" for number in range(10)}
        assert len(at.house.upstream.asked) == 10 - recorded


async def test_a_batch_whose_file_is_gone_from_the_disk_fails_with_the_reason(clock: MockClock, tmp_path: Path) -> None:
    """A person deleted it between the upload and the batch."""
    async with desk(clock, tmp_path, BatchFigures(window=window_of("23:00-23:01"))) as at:
        file_id = str((await at.hand_in(lines(3))).json["id"])
        (tmp_path / "files" / file_id).unlink()
        asked = {"input_file_id": file_id, "endpoint": EMBEDDINGS, "completion_window": "24h"}
        made = (await at.house.ask("POST", "/v1/batches", asked)).json
        failed = await at.until(str(made["id"]), "failed")
        assert failed["errors"]["data"][0]["code"] == "input_file_missing"
        assert file_id in failed["errors"]["data"][0]["message"]
        missing = await at.house.ask("GET", f"/v1/files/{file_id}/content")
        assert (missing.status, "no longer on the server's disk" in str(missing.error["message"])) == (404, True)


async def test_what_has_been_kept_for_long_enough_is_forgotten(clock: MockClock, tmp_path: Path) -> None:
    """A batch with its three files, and a file that no batch used; what is younger stays."""
    wall = SetClock()
    async with desk(clock, tmp_path, BatchFigures(keep_seconds=7200.0, tidy_seconds=60.0), wall) as at:
        done = await at.until(await at.begin(lines(2)), "completed")
        await at.hand_in(b"x")
        wall.ahead += 5000
        young = await at.until(await at.begin(lines(2)), "completed")
        short = str(
            (await at.hand_in(b"y", **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"})).json[
                "id"
            ]
        )
        wall.ahead += 5000
        await trio.sleep(130)
        assert [batch.id for batch in at.store.batches()] == [young["id"]]
        kept = {young["input_file_id"], young["output_file_id"]}
        assert {file.id for file in at.store.files()} == kept
        assert {path.name for path in (tmp_path / "files").iterdir()} == kept
        assert done["id"] != young["id"]
        assert short not in kept


@pytest.mark.parametrize("disk", [tmpfs, limit])
async def test_a_full_disk_refuses_an_upload_and_holds_a_batch_until_there_is_room(
    clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture, disk: Disk
) -> None:
    """507 with a sentence and nothing left behind; the batch says why it stands, loses no answer and doubles none."""
    with disk(tmp_path) as (place, fill, empty):
        async with desk(clock, place, BatchFigures(in_flight=2)) as at:
            at.house.upstream.scripts += [Script([b"{}"], head_seconds=float(number)) for number in range(9)]
            batch_id = await at.begin(b"\n".join(map(chat, range(9))), CHAT)
            await until(lambda: at.house.logged("complete"))
            fill()
            await until(lambda: "stands still" in caplog.text)
            held = await at.look(batch_id)
            assert held["gridsched"]["state"] == "paused"
            assert held["gridsched"]["waiting_for"].startswith("room on the server's disk")
            refused = await at.hand_in(b"x" * 100_000)
            assert (refused.status, refused.error["code"]) == (507, "insufficient_storage")
            made = {"input_file_id": held["input_file_id"], "endpoint": CHAT, "completion_window": "24h"}
            answer = await at.house.ask(
                "POST", "/v1/batches", made | {"metadata": {str(n): "x" * 500 for n in range(16)}}
            )
            assert answer.status in {503, 507}
            empty()
            done = await at.until(batch_id, "completed")
            assert set(await at.results(done)) == {f"r{number}" for number in range(9)}
            assert done["gridsched"]["waiting_for"] is None
            assert not [path for path in (place / "files").iterdir() if path.name.endswith(".part")]
            assert len(at.store.batches()) == 1


# --- whose it is ------------------------------------------------------------------------------------------------------


async def test_H6_a_key_sees_its_own_files_and_batches_and_admin_all(clock: MockClock, tmp_path: Path) -> None:
    """Another's is a 404, to be read, deleted, used and cancelled alike; and is not in the list."""
    ann, bob, root = shown("ann"), shown("bob"), {"Authorization": f"Bearer {ADMIN_WORD}"}
    async with desk(clock, tmp_path) as at:
        at.house.authority.keep((key("ann"), key("bob")))
        assert (await at.hand_in(lines(1))).status == 401
        made = await at.begin(lines(2), who=ann)
        batch = (await at.house.ask("GET", f"/v1/batches/{made}", headers=ann)).json
        file_id = batch["input_file_id"]
        paths = (f"/v1/files/{file_id}", f"/v1/files/{file_id}/content", f"/v1/batches/{made}")
        for path in paths:
            assert [(await at.house.ask("GET", path, headers=who)).status for who in (ann, bob, root)] == [
                200,
                404,
                200,
            ]
        asked = {"input_file_id": file_id, "endpoint": EMBEDDINGS, "completion_window": "24h"}
        assert (await at.house.ask("POST", "/v1/batches", asked, bob)).status == 404
        assert (await at.house.ask("POST", f"/v1/batches/{made}/cancel", headers=bob)).status == 404
        assert (await at.house.ask("DELETE", f"/v1/files/{file_id}", headers=bob)).status == 404
        for kind in ("files", "batches"):
            seen = [
                len((await at.house.ask("GET", f"/v1/{kind}", headers=who)).json["data"]) for who in (ann, bob, root)
            ]
            assert (seen[0] > 0, seen[1], seen[2]) == (True, 0, seen[0])
        await until(lambda: at.store.by_status()[Status.COMPLETED])


@pytest.mark.parametrize(("scopes", "status"), [((), 401), ((Scope.READ,), 403), ((Scope.INFERENCE,), 200)])
async def test_H6_a_batch_goes_on_by_what_its_key_may_now(
    clock: MockClock, tmp_path: Path, scopes: tuple[Scope, ...], status: int
) -> None:
    """The rest of the lines of a key that was revoked, or made anew with other scopes, are refused one by one."""
    root = {"Authorization": f"Bearer {ADMIN_WORD}"}
    async with desk(clock, tmp_path) as at:
        at.house.authority.keep((key("ann"), key("bob")))
        made = await at.begin(b"\n".join(chat(number, max_tokens=20) for number in range(12)), CHAT, shown("ann"))
        await at.house.until_logged("complete")
        at.house.authority.keep((*([key("ann", *scopes)] if scopes else []), key("bob")))
        await until(lambda: at.store.by_status()[Status.COMPLETED])
        batch = (await at.house.ask("GET", f"/v1/batches/{made}", headers=root)).json
        counts, served = batch["request_counts"], len(at.house.logged("complete"))
        assert counts == {"total": 12, "completed": served, "failed": 12 - served}
        if status == 200:
            assert served == 12
            return
        told = await at.house.ask("GET", f"/v1/files/{batch['error_file_id']}/content", headers=root)
        answers = [json.loads(text)["response"]["status_code"] for text in told.body.splitlines()]
        assert answers == [status] * (12 - served)


async def test_S1_a_batch_has_no_higher_class_than_its_key_and_keeps_its_bounds(
    clock: MockClock, tmp_path: Path
) -> None:
    """One request of the key at a time, none above background, only its models; a full key is waited for."""
    bounded = key("ann", highest_class=JobClass.BACKGROUND, concurrency=1, models=("sim-chat-4b",))
    async with desk(clock, tmp_path) as at:
        at.house.authority.keep((bounded,))
        at.house.upstream.scripts += [Script([b"{}"], head_seconds=3.0) for _ in range(5)]
        file = b"\n".join([*map(chat, range(5)), chat(5, model="sim-chat-12b"), chat(6, x_class="interactive")])
        made = await at.begin(file, CHAT, shown("ann"), gridsched={"class": "interactive"})
        await until(lambda: at.store.by_status()[Status.COMPLETED])
        batch = (await at.house.ask("GET", f"/v1/batches/{made}", headers=shown("ann"))).json
        assert (batch["gridsched"]["class"], batch["request_counts"]["completed"]) == ("background", 6)
        assert {entry["class"] for entry in at.house.logged("enqueue")} == {"background"}


async def test_the_lines_of_a_key_that_was_revoked_are_refused(clock: MockClock, tmp_path: Path) -> None:
    """What runs may finish; the rest is answered 401, and says so. Keys that cannot be read are waited for."""
    async with desk(clock, tmp_path, BatchFigures(in_flight=1)) as at:
        at.house.authority.keep((key("ann"),))
        at.house.upstream.scripts += [Script([b"{}"], head_seconds=20.0)]
        made = await at.begin(b"\n".join(map(chat, range(3))), CHAT, shown("ann"))
        await until(lambda: at.house.upstream.asked)
        at.house.authority.keep(None)
        await trio.sleep(60)
        assert at.store.by_status()[Status.IN_PROGRESS] == 1
        at.house.authority.keep(())
        await until(lambda: at.store.by_status()[Status.COMPLETED])
        record = at.store.batch(made)
        assert record is not None
        assert (record.completed, record.failed) == (1, 2)
        told = (tmp_path / "files" / str(record.error_file_id)).read_bytes().splitlines()
        assert {json.loads(each)["response"]["body"]["error"]["code"] for each in told} == {"invalid_api_key"}


# --- wherever a server was killed -------------------------------------------------------------------------------------


def answered(number: int, batch_id: str = "batch_1") -> bytes:
    """An answer that an earlier server wrote down."""
    return answer_line(batch_id, number, f"r{number}", 200, "req", b"{}")


KILLED: list[tuple[str, dict[str, object], dict[str, bytes], str, int]] = [
    ("while it was validated", {"status": Status.VALIDATING}, {"batch_1.errors": b""}, "completed", 4),
    ("among its lines", {}, {"batch_1.output": answered(1) + answered(4) + b'{"id":"bat'}, "completed", 2),
    (
        "before its last change",
        {"ending": Status.COMPLETED},
        {"batch_1.output": b"".join(map(answered, range(1, 5)))},
        "completed",
        0,
    ),
    (
        "between its two renames",
        {"ending": Status.COMPLETED, "status": Status.FINALIZING, "completed": 4},
        {"file-out": b"".join(map(answered, range(1, 5))), "batch_1.errors": b""},
        "completed",
        0,
    ),
    (
        "after its two renames",
        {"ending": Status.EXPIRED, "status": Status.FINALIZING, "completed": 4},
        {"file-out": b"".join(map(answered, range(1, 5)))},
        "expired",
        0,
    ),
    ("when it was being cancelled", {"status": Status.CANCELLING}, {"batch_1.output": answered(2)}, "cancelled", 0),
    (
        "when its end was being written",
        {"ending": Status.CANCELLED, "status": Status.CANCELLING},
        {"batch_1.output": answered(2), "batch_1.errors": undone_line("batch_1", 3, "r3", "batch_cancelled", "x")},
        "cancelled",
        0,
    ),
    (
        "when it was cancelled before a line ran",
        {"ending": Status.CANCELLED, "status": Status.CANCELLING, "times": {}, "total": 0},
        {"batch_1.errors": undone_line("batch_1", 3, "r3", "batch_cancelled", "x") + b'{"id":"bat'},
        "cancelled",
        0,
    ),
]


@pytest.mark.parametrize(("_when", "changes", "files", "status", "runs"), KILLED, ids=[case[0] for case in KILLED])
async def test_a_batch_is_taken_up_wherever_a_server_was_killed(
    clock: MockClock,
    tmp_path: Path,
    _when: str,
    changes: dict[str, object],
    files: dict[str, bytes],
    status: str,
    runs: int,
) -> None:
    """Each of its four lines is in one of its files, once, and no line runs that has an answer."""
    record = BatchRecord("batch_1", "", EMBEDDINGS, "file-in", "24h", 86400.0, "batch", int(NIGHT), total=4)
    started = {"status": Status.IN_PROGRESS, "times": {"in_progress": int(NIGHT)}, "results": ("file-out", "file-err")}
    data = b"\n".join(map(line, range(1, 5)))
    with closing(BatchStore(tmp_path, print)) as store:
        taken = msgspec.structs.replace(record, **{**started, **changes})
        await store.change([FileRecord("file-in", "", "in", "batch", len(data), int(NIGHT)), taken])
    for name, content in {"file-in": data, **files}.items():
        (tmp_path / "files" / name).write_bytes(content)
    async with desk(clock, tmp_path) as at:
        over = await at.until("batch_1", status)
        assert len(at.house.upstream.asked) == runs
        found = await at.results(over)
        failed = await at.results(over, "error_file_id")
        assert sorted([*found, *failed]) == ["r1", "r2", "r3", "r4"]
        counts = over["request_counts"]
        assert (counts["total"], counts["completed"], counts["failed"]) == (4, len(found), len(failed))
        assert {path.name for path in (tmp_path / "files").iterdir()} == {
            each for each in ("file-in", over["output_file_id"], over["error_file_id"]) if each
        }


async def test_a_batch_whose_file_is_gone_when_it_is_taken_up_fails_and_keeps_its_answers(
    clock: MockClock, tmp_path: Path
) -> None:
    """What has been answered is in the output."""
    record = BatchRecord(
        "batch_1", "", EMBEDDINGS, "file-in", "24h", 86400.0, "batch", int(NIGHT), Status.IN_PROGRESS, total=4
    )
    record = msgspec.structs.replace(record, times={"in_progress": int(NIGHT)})
    with closing(BatchStore(tmp_path, print)) as store:
        await store.change([FileRecord("file-in", "", "in", "batch", 9, int(NIGHT)), record])
    (tmp_path / "files" / "batch_1.output").write_bytes(answered(1))
    async with desk(clock, tmp_path) as at:
        failed = await at.until("batch_1", "failed")
        assert failed["errors"]["data"][0]["code"] == "input_file_missing"
        assert set(await at.results(failed)) == {"r1"}
        assert failed["request_counts"] == {"total": 4, "completed": 1, "failed": 0}
