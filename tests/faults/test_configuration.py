"""Section J under a server that runs: a configuration that changes, in whatever way, and signals. Real processes."""

import json
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.faults.bench import Bench, Served, serve

pytestmark = pytest.mark.slow

TOKENS = 60
Save = Callable[[Path, str], None]


@pytest.fixture(scope="module")
def bench(benches: list[Bench], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A gateway with one model that streams, and one that takes a while to load."""
    running = serve(tmp_path_factory.mktemp("configuration"), {"streams": Served(), "loads": Served()})
    benches.append(running)
    yield running
    assert running.gateway.stop() == 0


def path_of(bench: Bench) -> Path:
    """The configuration."""
    return bench.folder / "gridsched.yaml"


def with_window(bench: Bench, seconds: int) -> str:
    """The configuration with another figure, which no model cares about."""
    said = json.loads(path_of(bench).read_text(encoding="utf-8"))
    said["scheduler"] = {"hot_window": f"{seconds}s"}
    return json.dumps(said)


def reloads(bench: Bench, what: str = "applied") -> list[Any]:
    """What the decision log says of reloads."""
    return [line[what] for line in bench.events("config") if what in line]


def error(bench: Bench) -> object:
    """Why the file is not what runs."""
    return bench.ask("/health").json["config_error"]


def in_place(path: Path, text: str) -> None:
    """As an editor that empties the file and writes it."""
    path.write_text(text, encoding="utf-8")


def renamed(path: Path, text: str) -> None:
    """As an editor that writes another file and moves it there: each time the file is another."""
    other = path.with_name("new")
    other.write_text(text, encoding="utf-8")
    other.replace(path)


def made_again(path: Path, text: str) -> None:
    """As an editor that deletes the file first."""
    path.unlink()
    path.write_text(text, encoding="utf-8")


def relinked(path: Path, text: str) -> None:
    """A link that is set to another file."""
    target = path.with_name(f"target-{len(list(path.parent.glob('target-*')))}.yaml")
    target.write_text(text, encoding="utf-8")
    link = path.with_name("link")
    link.symlink_to(target.name)
    link.replace(path)


def swapped(path: Path, text: str) -> None:
    """As Kubernetes does: the file is a link through a folder that is one, and only that is set anew."""
    folder = path.with_name(f"..{len(list(path.parent.glob('..*')))}")
    folder.mkdir()
    (folder / path.name).write_text(text, encoding="utf-8")
    link = path.with_name("link")
    link.symlink_to(folder.name)
    link.replace(path.with_name("..data"))
    if not path.is_symlink() or path.readlink() != Path("..data") / path.name:
        link.symlink_to(Path("..data") / path.name)
        link.replace(path)


@pytest.mark.parametrize(("save", "times"), [(in_place, 1), (renamed, 3), (made_again, 2), (relinked, 2), (swapped, 2)])
def test_J10_every_way_to_replace_the_file_is_noticed_each_time(bench: Bench, save: Save, times: int) -> None:
    """J10: several times in a row, because a watch on the old file sees the first alone."""
    for number in range(times):
        before = len(reloads(bench))
        save(path_of(bench), with_window(bench, 100 + before))
        bench.until(lambda before=before: len(reloads(bench)) > before, f"save {number} is noticed")
        assert reloads(bench)[-1] == ["scheduler.hot_window"]


def test_J8_twenty_replacements_in_a_second_during_a_load_and_a_stream(bench: Bench) -> None:
    """J8: one reload at a time, the last content wins, nothing is started twice, the stream is whole."""
    bench.tell("streams", tokens=TOKENS, segment_pause_seconds=0.03)
    bench.tell("loads", start_delay_seconds=1.0)
    assert bench.chat("streams", max_tokens=1).status == 200
    started, began = bench.starts("streams"), len(reloads(bench))
    with ThreadPoolExecutor(1) as pool, bench.streamed("streams", max_tokens=TOKENS) as lines:
        next(lines)
        waits = pool.submit(bench.chat, "loads")
        bench.until(lambda: bench.is_in("loads", "starting"), "it loads")
        for number in range(20):
            (renamed, in_place)[number % 2](path_of(bench), with_window(bench, 1000 + number))
            Event().wait(0.04)
        left = list(lines)
        assert waits.result().status == 200
    assert left[-1] == b"data: [DONE]"
    assert (bench.starts("streams"), bench.starts("loads")) == (started, 1)
    assert len(bench.gateway.children()) == 2
    bench.until(lambda: "→ 1019s" in bench.gateway.log.read_text(encoding="utf-8"), "the last content wins")
    assert error(bench) is None
    assert len(reloads(bench)) - began <= 5
    bench.tell("streams")
    bench.tell("loads")


def test_J7_J11_a_bad_file_is_refused_whole_by_signal_too_and_the_server_lives(bench: Bench) -> None:
    """J7, J11: the key is named with its line, what ran runs on; the good file is taken again, by the same signal."""
    good = path_of(bench).read_text(encoding="utf-8")
    before = len(reloads(bench, "refused"))
    in_place(path_of(bench), '{"ctx_size": 1,\n "scheduler": {"hot_windw": "1s", "hot_window": "7s"}}')
    bench.until(lambda: len(reloads(bench, "refused")) > before, "it is refused")
    said = str(error(bench))
    assert bench.status()["config_error"] == said
    assert "gridsched.yaml:1:2: ctx_size: unknown key here; `ctx_size` belongs in models.NAME" in said
    assert "gridsched.yaml:2:16: scheduler.hot_windw: unknown key; did you mean hot_window?" in said
    bench.gateway.process.send_signal(signal.SIGHUP)
    bench.until(lambda: len(reloads(bench, "refused")) > before + 1, "it is refused again")
    assert bench.chat("streams").status == 200
    in_place(path_of(bench), good)
    bench.gateway.process.send_signal(signal.SIGHUP)
    bench.until(lambda: error(bench) is None, "the good one is taken")
    assert bench.gateway.process.poll() is None


def test_J10_a_file_that_is_deleted_leaves_what_ran_and_is_told(bench: Bench) -> None:
    """Until it is there again."""
    good = path_of(bench).read_text(encoding="utf-8")
    path_of(bench).unlink()
    bench.until(lambda: "No such file" in str(error(bench)), "it is told")
    assert bench.chat("streams").status == 200
    in_place(path_of(bench), good)
    bench.until(lambda: error(bench) is None, "it is there again")


def test_J8_figures_hold_from_the_next_request_on(bench: Bench) -> None:
    """J8: of the front, of the devices and of pages that may ask; no process is touched."""
    good = path_of(bench).read_text(encoding="utf-8")
    assert bench.chat("streams").status == 200
    pid, before = bench.pid("streams"), bench.status()["devices"][0]["headroom_bytes"]
    page = {"Origin": "http://page.test", "Sec-Fetch-Site": "cross-site"}
    assert bench.ask("/v1/models", headers=page).status == 403
    said = json.loads(good)
    said["server"] = {"max_body": "1KiB", "cors_origins": ["http://page.test"]}
    said["devices"] = {"headroom": "11%"}
    in_place(path_of(bench), json.dumps(said))
    bench.until(lambda: bench.status()["devices"][0]["headroom_bytes"] > before, "more is kept free")
    assert bench.ask("/v1/models", headers=page).status == 200
    assert bench.chat("streams", user="x" * 2000).status == 413
    assert (bench.chat("streams").status, bench.pid("streams")) == (200, pid)
    in_place(path_of(bench), good)
    bench.until(lambda: bench.chat("streams", user="x" * 2000).status == 200, "it is as before")


def test_J11_a_hang_up_reloads_where_it_was_ignored_at_the_start_too(benches: list[Bench], tmp_path: Path) -> None:
    """J11: as under `nohup`; a changed launch is loaded anew, once."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        bench = serve(tmp_path, {"m": Served()})
    finally:
        signal.signal(signal.SIGHUP, before)
    benches.append(bench)
    assert bench.chat("m").status == 200
    said = json.loads(path_of(bench).read_text(encoding="utf-8"))
    said["models"]["m"]["ctx_size"] = 4096
    in_place(path_of(bench), json.dumps(said))
    bench.gateway.process.send_signal(signal.SIGHUP)
    bench.until(lambda: bench.starts("m") == 2 and bench.is_in("m", "ready"), "it is loaded anew")
    assert bench.instances("m")[0]["ctx_size"] == 4096
    assert bench.gateway.stop() == 0


def test_F11_a_new_file_is_served_without_a_restart_and_one_that_is_gone_is_not(
    benches: list[Bench], tmp_path: Path
) -> None:
    """Half of it is no damaged model for ever."""
    folder = tmp_path / "library"
    folder.mkdir()
    bench = serve(tmp_path, {"m": Served()}, settings={"library": {"dirs": [str(folder)]}})
    benches.append(bench)
    whole = (tmp_path / "m.gguf").read_bytes()
    path = folder / "new.gguf"
    path.write_bytes(whole[:100])
    path.write_bytes(whole)
    bench.until(lambda: bench.ask("/v1/models/new").status == 200, "it is listed")
    assert bench.chat("new").status == 200
    path.unlink()
    bench.until(lambda: bench.ask("/v1/models/new").status == 404, "it is gone")
    bench.until(lambda: not bench.pids("new"), "its process too")
    assert bench.gateway.stop() == 0


def series(bench: Bench) -> dict[str, float]:
    """What the metrics page says, by name and labels, but for what depends on the moment."""
    lines = bench.ask("/metrics").body.decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith(("#", "process_"))]
    assert len({name for name, _ in pairs}) == len(pairs)
    return {name: float(value) for name, value in pairs}


def test_M7_ten_reloads_leave_every_count_and_a_model_that_goes_takes_its_series_along(bench: Bench) -> None:
    """M7: nothing is there twice; what is counted of others goes on, and who comes back begins at 0. A file that is
    refused is told, too."""
    whole = path_of(bench).read_text(encoding="utf-8")
    assert [bench.chat(model, max_tokens=1).status for model in ("streams", "loads")] == [200, 200]
    before = series(bench)
    for number in range(10):
        seen = len(reloads(bench))
        in_place(path_of(bench), with_window(bench, 700 + number))
        bench.gateway.process.send_signal(signal.SIGHUP)
        bench.until(lambda seen=seen: len(reloads(bench)) > seen, f"reload {number}")
    after = series(bench)
    assert {name for name in after if "_total" in name} == {name for name in before if "_total" in name}
    assert all(after[name] >= count for name, count in before.items() if "_total" in name)
    without = json.loads(path_of(bench).read_text(encoding="utf-8"))
    del without["models"]["loads"]
    in_place(path_of(bench), json.dumps(without))
    bench.until(lambda: not any('model="loads"' in name for name in series(bench)), "its series are gone")
    of_streams = {name: count for name, count in after.items() if 'model="streams"' in name and "_total" in name}
    assert {name: series(bench)[name] for name in of_streams} == of_streams
    in_place(path_of(bench), "models: [")
    bench.until(lambda: series(bench)["gridsched_config_valid"] == 0, "the file is refused")
    in_place(path_of(bench), whole)
    bench.until(lambda: series(bench)["gridsched_config_valid"] == 1, "the file is good again")
    back = {name: count for name, count in series(bench).items() if 'model="loads"' in name and "_total" in name}
    assert back
    assert set(back.values()) == {0}
