"""Downloads by the verbs, over HTTP on both sides: asked for at a server, fetched from a hub."""

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic

import pytest
import trio
from trio.testing import MockClock

from gridsched.control import downloads
from gridsched.control.authority import NOBODY, Authority
from gridsched.control.consent import consequences, hashed
from gridsched.control.downloads import Download, Downloads, State
from gridsched.control.services import Services
from gridsched.control.use import checked
from gridsched.control.verb import Asker, Call, Consequences
from gridsched.control.verbs import BY_NAME
from gridsched.library.hub import Hub
from gridsched.library.shelf import Shelf
from tests.support import hub_host
from tests.support.front import ADMIN_WORD, Answer, House, serving
from tests.support.hub_host import COMMIT, HubHost

REPO = "someone/tiny-GGUF"
FILE, EYES = "tiny-Q4_K_M.gguf", "mmproj-F16.gguf"
DATA = bytes(range(256)) * 4096
TOKEN = {"Authorization": f"Bearer {ADMIN_WORD}"}
ID = f"{REPO}/{FILE}"


@pytest.fixture
def host() -> Iterator[HubHost]:
    """A hub with one model, and its projector."""
    from huggingface_hub.utils._http import close_session  # noqa: PLC0415 - as in production

    with hub_host.serving() as world:
        world.repos[REPO] = {FILE: DATA, EYES: b"eyes", "README.md": b"#"}
        yield world
        close_session()


@dataclass
class Case:
    """A server, and what it downloads."""

    house: House
    downloads: Downloads

    async def ask(self, method: str, path: str, **body: object) -> Answer:
        """As an operator."""
        return await self.house.ask(method, path, body or None, TOKEN)

    async def download(self, **wanted: object) -> Download:
        """Have it downloaded, to its end."""
        known = len(self.downloads.all())
        answer = await self.ask("POST", "/api/downloads", **{"repo": REPO, **wanted})
        assert answer.status == 202, answer.body
        await self.until(lambda: len(self.downloads.all()) > known)
        return await self.ended(self.downloads.all()[0])

    async def until(self, there: Callable[[], bool]) -> None:
        """Wait for downloads to begin, or be joined; not for ever."""
        waited = monotonic()
        while not there():
            assert monotonic() - waited < 30
            with trio.move_on_after(1):
                await self.downloads.changed.wait()

    async def ended(self, download: Download) -> Download:
        """Wait for the end of one."""
        while download.is_under_way:
            await download.changed.wait()
        return download


def _has(found: Downloads, number: int) -> bool:
    return len(found.all()) >= number


@asynccontextmanager
async def running(clock: MockClock, host: HubHost, folder: Path, **more: int) -> AsyncIterator[Case]:
    """A server with a folder for downloads."""
    reserve = more.get("reserve_bytes", 0)
    found = Downloads(Hub(host.environ), Shelf(folder), pause_seconds=0.001, reserve_bytes=reserve)
    async with serving(clock, hub=found) as house:
        yield Case(house, found)


async def test_a_model_is_downloaded_with_its_projector(
    autojump_clock: MockClock, host: HubHost, tmp_path: Path
) -> None:
    """By its quantization, in any case; listed with what it was, and a second time there is nothing to fetch."""
    async with running(autojump_clock, host, tmp_path / "models") as case:
        download = await case.download(quant="q4_k_m")
        assert (download.state, download.problem) == (State.DONE, None)
        assert (tmp_path / "models" / ID).read_bytes() == DATA
        assert (tmp_path / "models" / REPO / EYES).read_bytes() == b"eyes"
        (told,) = (await case.ask("GET", "/api/downloads")).json["downloads"]
        assert told["state"] == "done"
        assert (told["id"], told["repo"], told["commit"], told["files"]) == (ID, REPO, COMMIT, [EYES, FILE])
        assert told["done_bytes"] == told["size_bytes"] == len(DATA) + 4
        fetched = len(host.ranges)
        assert (await case.download(file=FILE)).state is State.DONE
        assert len(host.ranges) == fetched


async def test_two_downloads_of_the_same_are_one(autojump_clock: MockClock, host: HubHost, tmp_path: Path) -> None:
    """Both end with it; another model waits only for its own files."""
    host.hold.set()
    async with running(autojump_clock, host, tmp_path) as case:
        for said in ({}, {"file": FILE}, {"file": FILE}):  # the same words are one operation, others another
            assert (await case.ask("POST", "/api/downloads", repo=REPO, **said)).status == 202
        await case.until(lambda: any(len(each.operations) == 2 for each in case.downloads.all()))
        (download,) = case.downloads.all()
        assert case.downloads.running(download.operations[1]) is download
        host.hold.clear()
        await case.ended(download)
        assert download.state is State.DONE
        assert len(host.ranges) == 2


async def test_so_many_run_at_once_and_no_more(
    autojump_clock: MockClock, host: HubHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one begins when one has ended."""
    monkeypatch.setattr(downloads, "MOST_AT_ONCE", 1)
    host.repos["a/other"] = {FILE: DATA}
    host.hold.set()
    async with running(autojump_clock, host, tmp_path) as case:
        for number, name in enumerate((REPO, "a/other"), start=1):
            assert (await case.ask("POST", "/api/downloads", repo=name)).status == 202
            await case.until(partial(_has, case.downloads, number))
        first, second = case.downloads.all()
        while first.state is State.QUEUED:
            await first.changed.wait()
        assert (first.state, second.state) == (State.RUNNING, State.QUEUED)
        host.hold.clear()
        assert (await case.ended(first)).state is State.DONE
        assert (await case.ended(second)).state is State.DONE


@pytest.mark.parametrize("remove", [False, True])
async def test_a_download_that_is_cancelled_says_what_becomes_of_what_came(
    autojump_clock: MockClock, host: HubHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remove: bool
) -> None:
    """Kept unless it is to be removed; the next download goes on from there. Every operation of it ends."""
    monkeypatch.setattr(downloads, "TELL_SECONDS", 0.0)
    host.hold.set()
    async with running(autojump_clock, host, tmp_path) as case:
        operation = (await case.ask("POST", "/api/downloads", repo=REPO, projector=False)).json["id"]
        await case.until(partial(_has, case.downloads, 1))
        (download,) = case.downloads.all()
        while download.done_bytes < len(DATA) // 2:
            await download.changed.wait()
        answer = await case.ask("DELETE", f"/api/downloads/{operation}?remove={str(remove).lower()}")
        assert answer.status == 200, answer.body
        host.hold.clear()
        assert case.downloads.all()[0].state is State.CANCELLED
        told = answer.json
        assert told["id"] == ID
        assert ("removed" if remove else "kept") in told["text"]
        assert (told["removed_bytes"] if remove else told["kept_bytes"]) >= len(DATA) // 2
        assert (await case.download(projector=False)).state is State.DONE
        assert host.ranges[-1].startswith("bytes=0-") is remove


async def test_what_an_earlier_run_left_is_listed_and_can_be_removed(
    autojump_clock: MockClock, host: HubHost, tmp_path: Path
) -> None:
    """A server that was killed in the middle; and nothing that is not there is cancelled."""
    async with running(autojump_clock, host, tmp_path) as case:
        order = await case.downloads.order(REPO, None, FILE, None, projector=False)
        left = case.downloads.shelf.partial(REPO, order.files[0])
        left.parent.mkdir(parents=True)
        left.write_bytes(DATA[:1000])
        (told,) = (await case.ask("GET", "/api/downloads")).json["downloads"]
        assert (told["id"], told["state"], told["done_bytes"]) == (ID, "broken_off", 1000)
        kept = (await case.ask("DELETE", f"/api/downloads/{ID}")).json
        assert (kept["kept_bytes"], kept["removed_bytes"]) == (1000, 0)
        gone = (await case.ask("DELETE", f"/api/downloads/{ID}?remove=true")).json
        assert (gone["kept_bytes"], gone["removed_bytes"]) == (0, 1000)
        left.parent.mkdir(parents=True)
        left.touch()  # killed before the first byte
        assert (await case.ask("DELETE", f"/api/downloads/{ID}?remove=true")).status == 200
        assert (await case.ask("DELETE", f"/api/downloads/{ID}")).status == 404


async def test_the_list_comes_in_pages(autojump_clock: MockClock, host: HubHost, tmp_path: Path) -> None:
    """Each goes on where the other ended."""
    host.repos[REPO] |= {"tiny-Q8_0.gguf": b"eight", "tiny-F16.gguf": b"sixteen"}
    async with running(autojump_clock, host, tmp_path) as case:
        for quant in ("Q4_K_M", "Q8_0", "F16"):
            await case.download(quant=quant)
        first = (await case.ask("GET", "/api/downloads?limit=2")).json
        rest = (await case.ask("GET", f"/api/downloads?limit=2&cursor={first['next_cursor']}")).json
        ids = [each["id"].rpartition("/")[2] for each in (*first["downloads"], *rest["downloads"])]
        assert sorted(ids) == sorted([FILE, "tiny-F16.gguf", "tiny-Q8_0.gguf"])
        assert (first["total"], len(first["downloads"]), rest["next_cursor"]) == (3, 2, None)  # type: ignore[arg-type]


async def test_a_disk_without_room_is_said_before_a_byte_is_fetched(
    autojump_clock: MockClock, host: HubHost, tmp_path: Path
) -> None:
    """507 with the figures; what others still need counts as taken."""
    free = shutil.disk_usage(tmp_path).free
    async with running(autojump_clock, host, tmp_path, reserve_bytes=2 * free) as case:
        problem = (await case.download()).problem
        assert problem is not None
        assert (problem.status, problem.code) == (507, "insufficient_storage")
        assert problem.detail["required_bytes"] == len(DATA) + 4
        assert problem.detail["available_bytes"] == 0
        assert problem.detail["reserve_bytes"] == 2 * free
        assert host.ranges == []


@pytest.mark.parametrize(
    ("wanted", "status", "code", "said"),
    [
        ({"repo": "someone/none"}, 403, "hub_forbidden", "no such repository"),
        ({"repo": "nonsense"}, 400, "invalid_request", "PUBLISHER/NAME"),
        ({"quant": "Q5_0"}, 404, "not_found", "it has Q4_K_M"),
        ({"revision": "v9"}, 404, "not_found", "revision"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
async def test_what_cannot_be_downloaded_is_refused(
    autojump_clock: MockClock,
    host: HubHost,
    tmp_path: Path,
    wanted: dict[str, object],
    status: int,
    code: str,
    said: str,
) -> None:
    """By its operation, in the words of the trouble."""
    async with running(autojump_clock, host, tmp_path) as case:
        plan = {"repo": REPO, **wanted}
        query = "&".join(f"{key}={value}" for key, value in plan.items() if key == "revision")
        if "quant" not in wanted:
            answer = await case.ask("GET", f"/api/hub/repos/{plan['repo']}?{query}")
            assert (answer.status, answer.error["code"]) == (status, code)
            assert said in answer.error["message"]
        with pytest.raises(downloads.RequestError) as caught:
            await case.downloads.order(
                str(plan["repo"]), wanted.get("revision"), None, wanted.get("quant"), projector=True
            )
        assert caught.value.problem.code == code
        assert said in caught.value.problem.message


async def test_a_hub_that_is_gone_is_a_503(autojump_clock: MockClock, host: HubHost, tmp_path: Path) -> None:
    """With what to do; a hub that asks for patience says for how long."""
    async with running(autojump_clock, host, tmp_path) as case:
        host.busy, host.retry_after = 429, "30"
        answer = await case.ask("GET", "/api/hub/search?q=tiny")
        assert (answer.status, answer.error["code"]) == (503, "hub_unavailable")
        assert answer.headers["retry-after"] == "30"
        host.busy = 0
        found = (await case.ask("GET", "/api/hub/search?q=tiny&limit=5")).json
        assert [each["id"] for each in found["repos"]] == [REPO]
        assert (await case.ask("GET", "/api/hub/search?limit=1000")).status == 400


async def test_a_repository_is_shown_before_it_is_downloaded(
    autojump_clock: MockClock, host: HubHost, tmp_path: Path
) -> None:
    """Its models with their sizes and quantizations, projectors apart."""
    async with running(autojump_clock, host, tmp_path) as case:
        told = (await case.ask("GET", f"/api/hub/repos/{REPO}")).json
        assert told["commit"] == COMMIT
        (model,) = told["models"]
        assert (model["quantization"], model["size_bytes"]) == ("Q4_K_M", len(DATA))
        assert told["projectors"] == [{"path": EYES, "size_bytes": 4}]


async def test_downloads_need_an_administrator(autojump_clock: MockClock, host: HubHost, tmp_path: Path) -> None:
    """Looking does not."""
    async with running(autojump_clock, host, tmp_path) as case:
        assert (await case.house.ask("GET", f"/api/hub/repos/{REPO}")).status == 200
        assert (await case.house.ask("POST", "/api/downloads", {"repo": REPO})).status == 403
        assert (await case.house.ask("DELETE", f"/api/downloads/{ID}")).status == 403
        assert (await case.house.ask("DELETE", "/api/models/chat")).status == 403


async def test_a_download_that_fills_the_disk_is_asked_about(
    autojump_clock: MockClock, host: HubHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan says what comes and what is left; it harms where the disk gets tight."""
    async with running(autojump_clock, host, tmp_path) as case:
        plan = await planned(case, "download_model", repo=REPO)
        assert f"{ID} is downloaded into {tmp_path / REPO}: 2 file(s)" in plan.text
        assert plan.details["need_bytes"] == len(DATA) + 4
        assert plan.essence == hashed(f"{ID}@{COMMIT}")
        monkeypatch.setattr(downloads, "TIGHT_BYTES", 1 << 60)
        monkeypatch.setattr(downloads, "TIGHT_SHARE", 1.0)
        assert (await planned(case, "download_model", repo=REPO)).harms
        monkeypatch.setattr(downloads, "TIGHT_BYTES", 0)
        assert not (await planned(case, "download_model", repo=REPO)).harms


async def planned(case: Case, name: str, **arguments: object) -> Consequences:
    """What a verb says that it would do."""
    verb = BY_NAME[name]
    services = Services(case.house.runtime, Authority(), hub=case.downloads)
    return await consequences(services, verb, checked(verb, arguments), Call(Asker(NOBODY)))
