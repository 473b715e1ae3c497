"""One file of the hub, fetched over real sockets: broken off, gone on with, and checked."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from gridsched.library import fetch as fetching
from gridsched.library.fetch import Stopped, fetch
from gridsched.library.hub import Hub, HubError, HubFile, Trouble
from tests.support import hub_host
from tests.support.hub_host import HubHost

REPO, NAME = "someone/tiny-GGUF", "tiny.gguf"
DATA = bytes(range(256)) * 4096  # a MiB


@pytest.fixture
def host() -> Iterator[HubHost]:
    """A hub with one file."""
    from huggingface_hub.utils._http import close_session  # noqa: PLC0415 - as in production

    with hub_host.serving() as world:
        world.repos[REPO] = {NAME: DATA}
        yield world
        close_session()


class Case:
    """One file that is to be fetched, as the hub lists it."""

    def __init__(self, host: HubHost, folder: Path, token: str = "") -> None:
        self.hub = Hub({**host.environ, "HF_TOKEN": token})
        repo = self.hub.repo(REPO)
        self.file = next(file for file in repo.files if file.path == NAME)
        self.address = self.hub.address(repo, NAME)
        self.partial = folder / "deep" / f"{NAME}.incomplete"
        self.stop = Event()
        self.told: list[int] = []

    def run(self) -> bytes:
        """Fetch it: what is on the disk then."""
        fetch(self.hub, self.address, self.file, self.partial, self.told.append, self.stop, pause_seconds=0.001)
        return self.partial.read_bytes()

    def fails(self) -> HubError:
        """What it fails with."""
        with pytest.raises(HubError) as caught:
            self.run()
        return caught.value


def test_a_file_comes_whole_and_right(host: HubHost, tmp_path: Path) -> None:
    """By a redirect to another host, in one answer, and how far it has come is told."""
    case = Case(host, tmp_path)
    assert case.run() == DATA
    assert host.ranges == [f"bytes=0-{len(DATA) - 1}"]
    assert case.told[-1] == len(DATA)
    assert case.told == sorted(case.told)


def test_a_token_goes_to_the_hub_and_not_to_whom_it_sends(host: HubHost, tmp_path: Path) -> None:
    """Another port is another host."""
    host.gated.add(REPO)
    assert Case(host, tmp_path, host.token).run() == DATA
    heard = {path.split("/")[1]: headers.get("authorization") for _, path, headers in host.asked}
    assert heard == {"api": f"Bearer {host.token}", "someone": f"Bearer {host.token}", "cdn": None}


def test_what_has_come_is_not_asked_for_again(host: HubHost, tmp_path: Path) -> None:
    """Whether the server broke off, or this process was killed: only the rest is fetched."""
    case = Case(host, tmp_path)
    case.partial.parent.mkdir()
    case.partial.write_bytes(DATA[:1000])
    assert case.run() == DATA
    assert host.ranges == [f"bytes=1000-{len(DATA) - 1}"]
    assert case.run() == DATA  # and one that is whole is only checked
    assert len(host.ranges) == 1


def test_an_answer_that_breaks_off_is_gone_on_with_by_itself(host: HubHost, tmp_path: Path) -> None:
    """Each time it brings some, it is asked again."""
    host.faults[NAME] = {"break": len(DATA) // 8}
    case = Case(host, tmp_path)
    assert case.run() == DATA
    assert [int(each.removeprefix("bytes=").split("-")[0]) for each in host.ranges] == [
        number * (len(DATA) // 8) for number in range(8)
    ]


def test_a_host_that_brings_nothing_is_given_up_and_what_came_is_kept(host: HubHost, tmp_path: Path) -> None:
    """After some tries, with a sentence; the next download goes on from there."""
    case = Case(host, tmp_path)
    case.partial.parent.mkdir()
    case.partial.write_bytes(DATA[:1000])
    host.faults[NAME] = {"status": 503}
    error = case.fails()
    assert error.trouble is Trouble.UNREACHABLE
    assert len(host.ranges) == fetching.MOST_TRIES
    assert case.partial.read_bytes() == DATA[:1000]
    host.faults.clear()
    assert case.run() == DATA


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ({"wrong": 1}, "another checksum"),
        ({"wrong": 1, "plain": 1}, "another checksum"),
        ({"lie": 9}, f"has {len(DATA)} bytes where it is kept, and {len(DATA) + 9} as"),
        ({"lie": -9}, f"has {len(DATA)} bytes where it is kept, and {len(DATA) - 9} as"),
        ({"status": 404}, "no such"),
        ({"status": 403}, "not for this server"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_right_is_refused_at_once(
    host: HubHost, tmp_path: Path, faults: dict[str, int], said: str
) -> None:
    """Other bytes, another size than is listed, a file that is gone or locked; nothing of it is taken for good."""
    host.faults[NAME] = faults
    case = Case(host, tmp_path)
    error = case.fails()
    assert said in str(error)
    assert len([path for path in host.paths() if path.startswith("/cdn")]) == 1
    assert not case.partial.exists()


def test_a_host_without_ranges_gives_it_from_the_beginning(host: HubHost, tmp_path: Path) -> None:
    """What had come is replaced, not doubled."""
    host.faults[NAME] = {"whole": 1}
    case = Case(host, tmp_path)
    case.partial.parent.mkdir()
    case.partial.write_bytes(DATA[:1000])
    assert case.run() == DATA


def test_a_small_file_is_checked_by_gits_own_checksum(host: HubHost, tmp_path: Path) -> None:
    """One that is no large file has no other; without any it is not taken."""
    host.faults[NAME] = {"plain": 1}
    case = Case(host, tmp_path)
    assert case.file.sha256 == ""
    assert case.run() == DATA
    case.file = HubFile(NAME, len(DATA), "", "")
    assert "no checksum" in str(case.fails())


def test_a_file_is_asked_for_in_windows(host: HubHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub gives no file of any size in one answer, and its addresses expire."""
    monkeypatch.setattr(fetching, "WINDOW_BYTES", len(DATA) // 2)
    assert Case(host, tmp_path).run() == DATA
    assert host.ranges == [f"bytes=0-{len(DATA) // 2 - 1}", f"bytes={len(DATA) // 2}-{len(DATA) - 1}"]


def test_a_download_that_is_stopped_keeps_what_came(host: HubHost, tmp_path: Path) -> None:
    """In the middle of an answer; another of the same file waits until the first has let go."""
    host.hold.set()
    case = Case(host, tmp_path)
    half = Event()

    def told(size_bytes: int) -> None:
        if size_bytes >= len(DATA) // 2:
            half.set()

    ended: list[type[Exception]] = []

    def work() -> None:
        try:
            fetch(case.hub, case.address, case.file, case.partial, told, case.stop)
        except Stopped as stopped:
            ended.append(type(stopped))

    thread = threading.Thread(target=work)
    thread.start()
    assert half.wait(10)
    case.stop.set()
    waiting = Case(host, tmp_path)
    waiting.stop.set()
    with pytest.raises(Stopped):
        waiting.run()
    host.hold.clear()
    thread.join(10)
    assert ended == [Stopped]
    assert len(DATA) // 2 <= case.partial.stat().st_size
    waiting.stop.clear()
    assert waiting.run() == DATA


def test_a_link_in_the_partial_files_place_is_not_followed(host: HubHost, tmp_path: Path) -> None:
    """It might lead to a file of somebody's."""
    case = Case(host, tmp_path)
    case.partial.parent.mkdir()
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"theirs")
    case.partial.symlink_to(theirs)
    with pytest.raises(OSError, match="symbolic links"):
        case.run()
    assert theirs.read_bytes() == b"theirs"
    assert os.path.islink(case.partial)  # noqa: PTH114 - as the code sees it
