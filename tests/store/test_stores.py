"""What both stores promise, and what the one on disk survives."""

import resource
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import trio

from gridsched.core.ids import DeviceName
from gridsched.core.model import DeviceFootprint
from gridsched.ports import Account, LaunchFacts, Measurement, Store
from gridsched.store import MeasurementStore, MemoryStore
from gridsched.store.measurements import MAX_KEPT
from gridsched.store.pruning import Known


class Said(list[str]):
    """What a store said to a person."""

    def __call__(self, sentence: str) -> None:
        """Take a sentence down."""
        self.append(sentence)


@contextmanager
def disk_store(
    path: Path, *, owned: bool = True, now: Callable[[], float] = lambda: NOW
) -> Iterator[tuple[MeasurementStore, Said]]:
    """A store on disk, closed at the end, and what it says."""
    said = Said()
    with closing(MeasurementStore(path, said, owned=owned, now=now)) as store:
        yield store, said


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the store's file is."""
    return tmp_path / "store.sqlite3"


def contents(path: Path) -> bytes:
    """What a file has."""
    return path.read_bytes()


def overwrite(path: Path, data: bytes) -> None:
    """Give a file other bytes."""
    path.write_bytes(data)


async def keep_some(store: Store) -> None:
    """Two options: one measured and timed, one measured twice."""
    await store.keep_measurement("a", (10, 20))
    await store.keep_load_time("a", 1.5)
    await store.keep_measurement("b", (1,))
    await store.keep_measurement("b", (2,))


SOME = {"a": Measurement((10, 20), 1.5), "b": Measurement((2,))}


async def test_both_stores_say_what_was_kept(path: Path) -> None:
    """A measurement and a load time of one option do not replace each other; a second measurement does the first."""
    memory: Store = MemoryStore()
    await keep_some(memory)
    assert memory.measurements() == SOME
    with disk_store(path) as (store, said):
        assert store.measurements() == {}
        await keep_some(store)
        assert store.measurements() == SOME
    assert said == []


async def test_L2_what_was_kept_is_there_after_a_restart(path: Path) -> None:
    """What one run measured, the next run plans with."""
    with disk_store(path) as (store, _):
        await keep_some(store)
    with disk_store(path) as (store, said):
        assert store.measurements() == SOME
    assert said == []


async def test_L6a_a_discarded_measurement_is_none_after_a_restart_and_its_load_time_stays(path: Path) -> None:
    """What ran out of memory is planned by its estimate again."""
    with disk_store(path) as (store, _):
        await keep_some(store)
        await store.keep_measurement("a", ())
    with disk_store(path) as (store, _):
        assert store.measurements() == {**SOME, "a": Measurement((), 1.5)}


async def test_what_was_given_out_does_not_change(path: Path) -> None:
    """Measurements that were handed out are a snapshot."""
    memory = MemoryStore({"a": Measurement((1,))})
    with disk_store(path) as (store, _):
        before = (memory.measurements(), store.measurements())
        await memory.keep_measurement("a", (2,))
        await store.keep_measurement("a", (2,))
    assert before == ({"a": Measurement((1,))}, {})


async def test_many_tasks_keep_at_once(path: Path) -> None:
    """One write at a time, and none is lost."""
    with disk_store(path) as (store, said):
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(store.keep_measurement, f"k{number}", (number,))
                nursery.start_soon(store.keep_load_time, f"k{number}", float(number))
    with disk_store(path) as (store, _):
        assert store.measurements() == {f"k{n}": Measurement((n,), float(n)) for n in range(20)}
    assert said == []


@pytest.mark.parametrize("damage", [b"no database at all" * 400, b""], ids=["foreign", "cut"])
async def test_a_damaged_file_is_set_aside_and_a_new_one_begun(path: Path, damage: bytes) -> None:
    """The damaged bytes are still there for a person to see, and the store works."""
    with disk_store(path) as (store, _):
        for number in range(200):
            await store.keep_measurement(f"{number:0200}", (number,))
    whole = contents(path)
    damaged = damage or whole[: len(whole) // 2]
    overwrite(path, damaged)
    with disk_store(path) as (store, said):
        assert store.measurements() == {}
        await keep_some(store)
    assert contents(path.with_name("store.sqlite3.damaged")) == damaged
    assert len(said) == 1
    assert "is damaged" in said[0]
    assert "store.sqlite3.damaged" in said[0]
    with disk_store(path) as (store, said):
        assert store.measurements() == SOME
    assert said == []


async def test_damage_inside_a_page_is_found_on_open(path: Path) -> None:
    """A file whose head is sound and whose body is not is damaged too."""
    with disk_store(path) as (store, _):
        for number in range(200):
            await store.keep_measurement(f"{number:0200}", (number,))
    data = bytearray(contents(path))
    data[3 * 4096 : 3 * 4096 + 64] = b"\xff" * 64
    overwrite(path, bytes(data))
    with disk_store(path) as (store, said):
        assert store.measurements() == {}
    assert [sentence for sentence in said if "is damaged" in sentence] == said != []


@pytest.mark.parametrize(
    "statements",
    [
        ("PRAGMA user_version = 1",),
        ("PRAGMA user_version = -5",),
        ("CREATE TABLE measurement (x)",),
        ("CREATE TABLE measurement (x)", "PRAGMA user_version = 1"),
    ],
)
async def test_a_database_with_other_tables_is_set_aside_too(path: Path, statements: tuple[str, ...]) -> None:
    """It would keep nothing at any start, for ever."""
    with closing(sqlite3.connect(path)) as other, other:
        for statement in statements:
            other.execute(statement)
    with disk_store(path) as (store, said):
        await keep_some(store)
    assert [sentence for sentence in said if "is damaged" in sentence] == said != []
    with disk_store(path) as (store, said):
        assert store.measurements() == SOME
    assert said == []


async def test_a_newer_versions_file_is_left_alone(path: Path) -> None:
    """After a downgrade the newer file is not touched, and the server goes on without."""
    with closing(sqlite3.connect(path)) as newer:
        newer.execute("PRAGMA user_version = 99")
    before = contents(path)
    with disk_store(path) as (store, said):
        await keep_some(store)
        assert store.measurements() == SOME
    assert contents(path) == before
    assert len(said) == 1
    assert "newer version" in said[0]


async def test_a_file_that_cannot_be_opened_is_said_once(tmp_path: Path) -> None:
    """A folder in the file's place, or no folder at all: one sentence, and everything goes on in memory."""
    for hopeless in (tmp_path, tmp_path / "missing" / "store.sqlite3"):
        with disk_store(hopeless) as (store, said):
            await keep_some(store)
            assert store.measurements() == SOME
        assert len(said) == 1
        assert str(hopeless) in said[0]


async def test_a_full_disk_is_said_once_and_tried_again(path: Path) -> None:
    """While no byte can be written the store works from memory; with room again, all of that is on disk."""
    with disk_store(path) as (store, said):
        await store.keep_measurement("before", (1,))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            await store.keep_measurement("during", (2,))
            await store.keep_load_time("during", 2.0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert store.measurements()["during"] == Measurement((2,), 2.0)
        await store.keep_measurement("after", (3,))
    assert len(said) == 1
    assert "forgotten" in said[0]
    with disk_store(path) as (store, _):
        assert store.measurements() == {
            "before": Measurement((1,)),
            "during": Measurement((2,), 2.0),
            "after": Measurement((3,)),
        }


async def test_a_file_that_a_person_has_locked_is_said_once_and_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While somebody else writes to it, nothing waits for long; afterwards all is on disk."""
    monkeypatch.setattr("gridsched.store.database.BUSY_SECONDS", 0.01)
    with disk_store(path) as (store, said):
        await store.keep_measurement("before", (1,))
        with closing(sqlite3.connect(path)) as person:
            person.execute("BEGIN EXCLUSIVE")
            await store.keep_measurement("during", (2,))
            with disk_store(path) as (another, _):
                assert another.measurements() == {"before": Measurement((1,))}
            person.rollback()
        await store.keep_measurement("after", (3,))
    assert len(said) == 1
    assert "locked" in said[0]
    with disk_store(path) as (store, _):
        assert set(store.measurements()) == {"before", "during", "after"}


@pytest.mark.parametrize(
    ("measured_bytes", "load_seconds", "believed"),
    [
        ("[1, -2]", 1.0, Measurement((), 1.0)),
        ('["1"]', 1.0, Measurement((), 1.0)),
        ("[true]", 1.0, Measurement((), 1.0)),
        ("{}", None, Measurement()),
        ("nonsense", -1.0, Measurement()),
        ("[7]", "soon", Measurement((7,))),
        ("[7]", float("inf"), Measurement((7,))),
        ("[7]", 1e300, Measurement((7,))),
        (f"[{10**400}]", 1.0, Measurement((), 1.0)),
    ],
)
async def test_L2_a_row_that_makes_no_sense_is_not_believed(
    path: Path, measured_bytes: str, load_seconds: object, believed: Measurement
) -> None:
    """State read from disk can never violate an invariant at start."""
    with disk_store(path) as (store, _):
        await store.keep_measurement("a", (1,))
    with closing(sqlite3.connect(path)) as meddler, meddler:
        meddler.execute("UPDATE measurement SET measured_bytes = ?, load_seconds = ?", (measured_bytes, load_seconds))
    with disk_store(path) as (store, _):
        assert store.measurements() == {"a": believed}


async def test_only_the_newest_options_are_kept(path: Path) -> None:
    """The file is bounded: an option that was kept again counts as new."""
    with disk_store(path) as (store, _):
        await store.keep_measurement("old", (1,))
        await store.keep_measurement("renewed", (1,))
    with closing(sqlite3.connect(path)) as meddler, meddler:
        meddler.executemany(
            "INSERT INTO measurement VALUES (?, '[5]', NULL, ?)", [(f"k{n}", 3 + n) for n in range(MAX_KEPT - 1)]
        )
    with disk_store(path) as (store, _):
        await store.keep_measurement("renewed", (2,))
    with disk_store(path) as (store, _):
        kept = store.measurements()
    assert len(kept) == MAX_KEPT
    assert "old" not in kept
    assert kept["renewed"] == Measurement((2,))


@pytest.mark.parametrize("turn", [2**62, 2**63 - 1, float("inf"), "soon", b"\xff"])
async def test_L2_a_turn_that_makes_no_sense_costs_no_other_row(path: Path, turn: object) -> None:
    """Not when it is read, and not when the next is kept and the oldest are looked for."""
    with disk_store(path) as (store, _):
        await keep_some(store)
    with closing(sqlite3.connect(path)) as meddler, meddler:
        meddler.execute("UPDATE measurement SET turn = ? WHERE option_key = 'a'", (turn,))
    with disk_store(path) as (store, said):
        await store.keep_measurement("c", (3,))
    with disk_store(path) as (store, _):
        assert store.measurements() == {**SOME, "c": Measurement((3,))}
    assert said == []


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        ("UPDATE measurement SET measured_bytes = {} WHERE option_key = 'b'", {"b": Measurement()}),
        ("UPDATE account SET model = {} WHERE option_key = 'b'", {}),
        ("INSERT INTO measurement VALUES ({}, '[9]', NULL, 9)", {"\udcff": Measurement((9,))}),
    ],
)
async def test_L2_text_that_is_no_utf_8_costs_no_other_row(
    path: Path, change: str, lost: dict[str, Measurement]
) -> None:
    """SQLite keeps any bytes as text."""
    with disk_store(path) as (store, _):
        await keep_some(store)
    with closing(sqlite3.connect(path)) as meddler, meddler:
        meddler.execute(change.format("CAST(x'FF' AS TEXT)"))
    with disk_store(path) as (store, said):
        assert store.measurements() == {**SOME, **lost}
    assert said == []


# --- of what a measurement is -----------------------------------------------------------------------------------


GPU = DeviceName("gpu0")
NOW = 1_800_000_000.0
DAY = 24 * 3600.0


def account(path: Path, fingerprint: str = "f1", build: str = "b1", device: str = "cuda:GPU-1") -> Account:
    """One card's launch of a file."""
    facts = LaunchFacts("m", "llama", str(path), fingerprint, "--ctx-size 8192", build, (device,), ("580.1",))
    return Account(facts, (DeviceFootprint(GPU, 7, 6, 5, 4, overhead_bytes=1),), (DeviceFootprint(GPU, 7, 6, 5, 3),))


def known(path: Path, fingerprint: str = "f1") -> Known:
    """One served file, this engine and one card."""
    return Known({str(path): fingerprint}, "b1", frozenset(("cuda:GPU-1",)))


@pytest.mark.parametrize("name", ["m.gguf", "модель 'q4' 🦙.gguf", "bad\udcff.gguf", "a\nb.gguf"])
async def test_L2_of_what_a_measurement_is_is_there_after_a_restart(path: Path, name: str) -> None:
    """File, flags, engine, card and driver, estimate and buffers, whatever the file is called; a load time changes
    nothing of it, and what ran out of memory is of nothing any more."""
    made = account(path.parent / name)
    with disk_store(path) as (store, _):
        await store.keep_measurement("a", (24,), made)
        await store.keep_load_time("a", 2.0)
        await store.keep_measurement("b", (24,), made)
        await store.keep_measurement("b", ())
    with disk_store(path) as (store, said):
        assert store.measurements() == {"a": Measurement((24,), 2.0, made), "b": Measurement()}
    assert said == []


async def test_L2_an_account_that_makes_no_sense_is_none(path: Path) -> None:
    """The measurement under its key stays: the key says what it is of."""
    nonsense: dict[str, tuple[object, ...]] = {
        "predicted": (
            *("[]", "{}", "nonsense", "[1]", '[{"device": "gpu0", "kv_bytes": -1}]', "[" * 5000),
            f'[{{"device": "gpu0", "kv_bytes": {10**400}}}]',
        ),
        "devices": ('["a", "b"]', "3", None),
        "model": (None,),
    }
    for column, values in nonsense.items():
        for value in values:
            with disk_store(path) as (store, _):
                await store.keep_measurement("a", (24,), account(path))
            with closing(sqlite3.connect(path)) as meddler, meddler:
                meddler.execute(f"UPDATE account SET {column} = ?", (value,))  # noqa: S608 - the test's own words
            with disk_store(path) as (store, _):
                assert store.measurements() == {"a": Measurement((24,))}, (column, value)


VERSION_1 = """
CREATE TABLE measurement (
    option_key TEXT PRIMARY KEY, measured_bytes TEXT NOT NULL, load_seconds REAL, turn INTEGER NOT NULL
);
INSERT INTO measurement VALUES ('a', '[10, 20]', 1.5, 1), ('b', '[2]', NULL, 2);
PRAGMA user_version = 1;
"""


async def test_a_file_of_version_1_is_upgraded_without_loss(path: Path) -> None:
    """What it kept is there and may be kept anew; nothing of it is pruned for want of an account or a date."""
    with closing(sqlite3.connect(path)) as old:
        old.executescript(VERSION_1)
    with disk_store(path) as (store, said):
        assert store.measurements() == SOME
        store.prune(known(path))
        await store.keep_measurement("b", (24,), account(path))
    with disk_store(path) as (store, said):
        assert store.measurements() == {"a": SOME["a"], "b": Measurement((24,), None, account(path))}
    assert said == []


@pytest.mark.parametrize(
    ("of", "days", "why"),
    [
        ({}, 0, None),
        ({}, 364, None),
        ({}, 366, "not loaded for 365 days"),
        ({"fingerprint": "f2"}, 0, "has changed"),
        ({"fingerprint": "f1\nprojector"}, 0, None),
        ({"build": "b2"}, 29, None),
        ({"build": "b2"}, 31, "the engine b2 was not used for 30 days"),
        ({"device": "cuda:GPU-2"}, 29, None),
        ({"device": "cuda:GPU-2"}, 31, "the device cuda:GPU-2 was not there for 30 days"),
    ],
)
async def test_L2_what_is_of_no_more_use_goes_with_a_reason(
    path: Path, of: dict[str, str], days: int, why: str | None
) -> None:
    """A file that changed at once; an engine or card that is away may come back; and nothing is kept for ever."""
    model = path.with_name("m.gguf")
    with disk_store(path, now=lambda: NOW) as (store, _):
        await store.keep_measurement("a", (24,), account(model, **of))
    with disk_store(path, now=lambda: NOW + days * DAY) as (store, said):
        store.prune(known(model))
        assert list(store.measurements()) == ([] if why else ["a"])
    assert [why in sentence for sentence in said] == ([True] if why else [])
    with disk_store(path) as (store, _):
        assert list(store.measurements()) == ([] if why else ["a"])


async def test_L2_files_that_are_gone_are_told_from_a_disk_that_is_not_there(path: Path) -> None:
    """Two launches of a file that was removed, one of a folder that is away, one of a file that others serve."""
    gone, away, other = path.with_name("gone.gguf"), path.parent / "usb" / "m.gguf", path.with_name("other.gguf")
    other.touch()
    with disk_store(path) as (store, said):
        for key, file in (("a", gone), ("b", gone), ("c", away), ("d", other)):
            await store.keep_measurement(key, (24,), account(file))
        store.prune(Known({}, "b1", frozenset(("cuda:GPU-1",))))
        assert list(store.measurements()) == ["c", "d"]
    assert said == [f"2 kept measurements are forgotten: {gone} is gone"]


async def test_only_the_owner_of_the_data_directory_writes(path: Path) -> None:
    """A visitor reads what is there and leaves the file as it is, sound, old, damaged or missing."""
    with disk_store(path) as (store, _):
        await keep_some(store)
    before = contents(path)
    with disk_store(path, owned=False) as (visitor, _):
        assert visitor.measurements() == SOME
        await visitor.keep_measurement("c", (3,))
        visitor.prune(known(path))
        assert visitor.measurements()["c"] == Measurement((3,))
    assert contents(path) == before


@pytest.mark.parametrize("content", [None, b"no database at all" * 400])
def test_a_visitor_leaves_alone_what_is_damaged_or_missing(path: Path, content: bytes | None) -> None:
    """Its owner sets it aside, or begins it."""
    if content is not None:
        overwrite(path, content)
    with disk_store(path, owned=False) as (visitor, said):
        assert visitor.measurements() == {}
    assert [each.name for each in path.parent.iterdir()] == ([path.name] if content is not None else [])
    assert len(said) == (content is not None)


def test_a_visitor_that_may_not_look_says_so(path: Path) -> None:
    """Here by a name that no file system has."""
    with disk_store(path.with_name("x" * 300), owned=False) as (visitor, said):
        assert visitor.measurements() == {}
    assert len(said) == 1
    assert "cannot read" in said[0]


KEEPER = """
import sys, trio
from pathlib import Path
from gridsched.store import MeasurementStore

async def main():
    store = MeasurementStore(Path(sys.argv[1]), print)
    for number in range(200):
        await store.keep_measurement(f"k{number}", (number, number))
        print(number, flush=True)

trio.run(main)
"""


@pytest.mark.slow
def test_what_was_kept_survives_a_kill(path: Path) -> None:
    """Killed in the midst of 200 writes: everything whose keeping had ended is there, whole, and nothing is damaged:
    each write was in the log beside the file (WAL) before its keeping had ended."""
    keeper = subprocess.Popen([sys.executable, "-c", KEEPER, str(path)], stdout=subprocess.PIPE, text=True)
    with keeper:
        assert keeper.stdout is not None
        for line in keeper.stdout:
            if line.strip() == "100":
                break
        keeper.send_signal(signal.SIGKILL)
    with disk_store(path) as (store, said):
        kept = store.measurements()
    assert said == []
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert set(kept) >= {f"k{number}" for number in range(101)}
    assert all(kept[f"k{number}"] == Measurement((number, number)) for number in range(len(kept)))


def test_H6_a_store_is_read_by_nobody_else(path: Path) -> None:
    """Nor what lies beside it: a data directory that a person made may be open to all."""
    with disk_store(path):
        assert {stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()} == {0o600}
