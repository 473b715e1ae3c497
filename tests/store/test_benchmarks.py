"""Results of benchmarks on disk: what outlives the process, and what is believed of the file."""

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec

from gridsched.store.benchmarks import Benchmark, BenchmarkStore, Level
from tests.store.test_stores import Said

RESULT = Benchmark(
    model="m",
    path="/m.gguf",
    fingerprint="f",
    engine_build="b1",
    devices=("gpu0",),
    identities=("cuda:GPU-0",),
    option_key="k",
    ctx_per_slot=4096,
    parallel=8,
    cache_types=("f16", "f16"),
    levels=(Level(streams=1, tokens_per_s=50.0, total_tokens_per_s=50.0, first_token_s=0.1),),
    recommended_slots=1,
    inputs_per_s=None,
    read_bytes=1 << 30,
    at=1.0,
)
OTHER = msgspec.structs.replace(RESULT, identities=("cuda:GPU-1",), devices=("gpu1",))


async def test_results_outlive_the_process_one_for_files_and_devices(tmp_path: Path) -> None:
    """A newer one of the same replaces it, the newest is last."""
    newer = msgspec.structs.replace(RESULT, at=2.0)
    with closing(BenchmarkStore(tmp_path / "b", Said())) as store:
        for each in (RESULT, OTHER, newer):
            await store.keep(each)
    with closing(BenchmarkStore(tmp_path / "b", Said())) as store:
        assert store.all() == (OTHER, newer)


async def test_rows_that_make_no_sense_are_left_out_and_said(tmp_path: Path) -> None:
    """No JSON, another key, figures that no machine has: the others stay."""
    with closing(BenchmarkStore(tmp_path / "b", Said())) as store:
        await store.keep(RESULT)
    bad = msgspec.structs.replace(OTHER, recommended_slots=0)
    with closing(sqlite3.connect(tmp_path / "b")) as file, file:
        for key, body in (
            ("x", "{"),
            ("y", msgspec.json.encode(OTHER).decode()),
            (bad.key, msgspec.json.encode(bad).decode()),
        ):
            file.execute("INSERT INTO benchmark (key, body) VALUES (?, ?)", (key, body))
    said = Said()
    with closing(BenchmarkStore(tmp_path / "b", said)) as store:
        assert store.all() == (RESULT,)
    assert said == [f"3 results of benchmarks in {tmp_path / 'b'} make no sense and are left out"]


async def test_a_disk_that_refuses_is_said_once(tmp_path: Path) -> None:
    """What could not be written is known until the end."""
    said = Said()
    with closing(BenchmarkStore(tmp_path / "b", said)) as store:
        with closing(sqlite3.connect(tmp_path / "b")) as file, file:
            file.execute("DROP TABLE benchmark")
        await store.keep(RESULT)
        await store.keep(OTHER)
        assert store.all() == (RESULT, OTHER)
    assert len(said) == 1
