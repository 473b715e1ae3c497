"""The catalog over time: what measurements teach it, and files that change under it."""

import os
from dataclasses import replace
from pathlib import Path

from gridsched.core.ids import ModelName
from gridsched.core.job import Quality
from gridsched.library.catalog import ModelCatalog
from gridsched.library.planning import Defaults
from gridsched.library.sources import read_library, with_problems
from gridsched.ports import (
    Account,
    FamilyEntry,
    Measurement,
    ModelEntry,
)
from tests.library.catalogs import CARDS, HOST, MIB, catalog
from tests.library.models import (
    ADAPTER,
    CHAT,
    write_model,
    write_split,
)

# --- what measurements teach (L2) -------------------------------------------------------------------------------


def measured_by(made: ModelCatalog, extra_bytes: int, driver: str = "580.1") -> Measurement:
    """A load of the first model's best launch, whose engine told of its buffers: so much lay outside of them."""
    (model,) = made.models()
    assert model.spec is not None
    option = model.spec.options[0]
    facts = made.launch(model.name, option).facts
    assert facts is not None
    told = tuple(replace(part, overhead_bytes=0) for part in option.footprint)
    taken = tuple(part.total_bytes + extra_bytes for part in told)
    return Measurement(taken, None, Account(replace(facts, drivers=(driver,)), option.footprint, told))


def overhead_of(made: ModelCatalog) -> int:
    """What the first model's best launch is charged beside its buffers."""
    spec = made.models()[0].spec
    assert spec is not None
    return spec.options[0].footprint[0].overhead_bytes


def test_L2_one_models_load_tells_the_next_models_overhead_on_the_card(tmp_path: Path) -> None:
    """With the same engine and driver; else what is known of cards of the size is assumed, and said."""
    devices = [replace(CARDS[0], driver="580.1")]
    first = ModelEntry("first", write_model(tmp_path / "first.gguf"))
    second = ModelEntry("second", write_model(tmp_path / "second.gguf"))
    before = catalog(second, devices=devices)
    assert overhead_of(before) == 225 * MIB
    assert any(note.startswith("gpu0: no measurement for card: 225 MiB") for note in before.notes)
    kept = measured_by(catalog(first, devices=devices), 180 * MIB)
    after = catalog(second, devices=devices, measurements={"k": kept})
    assert overhead_of(after) == 202 * MIB
    assert not any("no measurement" in note for note in after.notes)
    other_engine = catalog(second, devices=devices, measurements={"k": kept}, engine_build="b2")
    other_driver = catalog(second, devices=[replace(CARDS[0], driver="590.1")], measurements={"k": kept})
    assert overhead_of(other_engine) == overhead_of(other_driver) == 225 * MIB


def test_L2_the_same_launch_is_planned_with_what_it_took(chat: Path) -> None:
    """To the byte, under its own key; a record that is not believed is said, and the estimate stands."""
    made = catalog(ModelEntry("m", chat), devices=CARDS[:1])
    spec = made.models()[0].spec
    assert spec is not None
    option = spec.options[0]
    for taken, need, notes in ((option.need_bytes[0][1] - 7, None, 0), (1, option.need_bytes[0][1], 1)):
        again = catalog(ModelEntry("m", chat), devices=CARDS[:1], measurements={option.key: Measurement((taken,))})
        planned = again.models()[0].spec
        assert planned is not None
        assert planned.options[0].need_bytes == (("gpu0", need or taken),)
        assert sum("is not believed" in note for note in again.notes) == notes


def test_L2_a_launch_says_what_a_measurement_of_it_is_of(chat: Path) -> None:
    """File, flags and card, in words that can be read."""
    made = catalog(ModelEntry("m", chat, flags=("-ub", "256")), devices=CARDS[:1])
    spec = made.models()[0].spec
    assert spec is not None
    facts = made.launch(ModelName("m"), spec.options[0]).facts
    assert facts is not None
    assert (facts.path, facts.architecture, facts.engine_build) == (str(chat), "llama", "b1")
    assert facts.devices == ("cuda:GPU-0",)
    assert facts.flags.endswith(" -ub 256")
    assert {path: f"{own}\n" for path, own in made.fingerprints().items()} == {facts.path: facts.fingerprint}


async def test_L2_a_running_server_learns_from_a_load_what_other_models_take(tmp_path: Path) -> None:
    """The charge changes for every launch, under the same key and with its own measurement; refusals are worked out
    anew; and what is no news changes nothing."""
    device = replace(CARDS[0], driver="580.1")
    first = ModelEntry("first", write_model(tmp_path / "first.gguf"))
    made = catalog(first, devices=[device], families=[FamilyEntry("f", ((Quality.BALANCED, "first"),))])
    before = made.models()[0].spec
    assert before is not None
    tight = {device.spec.name: 240 * MIB}
    small = await made.largest_fit(ModelName("first"), tight)
    kept = measured_by(made, 180 * MIB)
    assert made.learn({"k": kept})
    after = made.models()[0].spec
    assert after is not None
    assert [option.key for option in after.options] == [option.key for option in before.options]
    assert {option.footprint[0].overhead_bytes for option in after.options} == {202 * MIB}
    assert [option.footprint[0].compute_bytes for option in after.options] == [
        option.footprint[0].compute_bytes for option in before.options
    ]
    assert (await made.largest_fit(ModelName("first"), tight)).parallel > small.parallel
    (family,) = made.families()
    assert family.best is made.models()[0]
    assert not made.learn({"k": kept})
    assert not made.learn({"k": replace(kept, measured_bytes=(kept.measured_bytes[0] + 4 * MIB,))})
    assert not catalog(first).learn({"k": kept})


# --- files that change ------------------------------------------------------------------------------------------


def put(path: Path, data: bytes | None, modified_ns: int = 0) -> None:
    """Other bytes in a file's place, or none."""
    path.unlink()
    if data is not None:
        path.write_bytes(data)
        os.utime(path, ns=(modified_ns, modified_ns))


def there(path: Path) -> tuple[bytes, int]:
    """A file's bytes and time."""
    return path.read_bytes(), path.stat().st_mtime_ns


async def test_L2_a_file_that_was_replaced_is_planned_anew_before_it_is_launched(chat: Path) -> None:
    """Another under the same name has another key and another context, also in its family; what has not changed
    stays, and what is gone is the engine's to tell."""
    made = catalog(ModelEntry("m", chat, aliases=("other",)), families=[FamilyEntry("f", ((Quality.BALANCED, "m"),))])
    name = ModelName("m")
    (before,) = made.models()
    assert await made.renew(name) is None
    assert made.models() == (before,)
    write_model(chat, {**CHAT, "llama.context_length": 8192}, age_seconds=-60)
    sentence = await made.renew(name)
    assert sentence is not None
    assert f"{chat} has changed" in sentence
    (after,) = made.models()
    assert before.spec is not None
    assert after.spec is not None
    assert (before.ctx_train, after.ctx_train) == (16384, 8192)
    assert not {one.key for one in before.spec.options} & {one.key for one in after.spec.options}
    assert after.aliases == before.aliases
    assert made.families()[0].best is after
    assert await made.renew(name) is None
    put(chat, None)
    assert await made.renew(name) is None


async def test_F11_a_file_that_was_spoilt_is_said_and_served_again_when_it_is_back(chat: Path) -> None:
    """Its plan stays meanwhile, and nothing is launched by it."""
    made = catalog(ModelEntry("m", chat))
    before = made.models()
    whole, modified_ns = there(chat)
    put(chat, b"")
    sentence = await made.renew(ModelName("m"))
    assert sentence is not None
    assert "cannot be served" in sentence
    assert "the file is empty" in sentence
    assert made.models() == before
    put(chat, whole, modified_ns)
    assert await made.renew(ModelName("m")) is None


async def test_F11_a_file_that_was_spoilt_at_the_start_is_served_when_it_is_whole(chat: Path) -> None:
    """As if it had been so from the start, in its family too; before that it keeps its reason, and what is served is
    not looked for."""
    whole, modified_ns = there(chat)
    put(chat, b"")
    family = [FamilyEntry("f", ((Quality.BALANCED, "m"),))]
    made, name = catalog(ModelEntry("m", chat), families=family), ModelName("m")
    assert not await made.look_again(name)
    assert "the file is empty" in (made.models()[0].unavailable or "")
    made = catalog(ModelEntry("m", chat), families=family)
    put(chat, whole, modified_ns)
    assert await made.look_again(name)
    assert made.models() == catalog(ModelEntry("m", chat)).models()
    assert made.families()[0].best is made.models()[0]
    put(chat, None)
    assert await made.look_again(name)


async def test_F11_a_launch_that_is_refused_stays_refused_whoever_asks_for_it(chat: Path) -> None:
    """A file that is whole does not mend flags that the engine does not know; another file does neither."""
    library = with_problems(read_library([ModelEntry("m", chat)], []), {"m": "flags: no such flag"})
    made = ModelCatalog(library, [HOST], {}, defaults=Defaults())
    put(chat, there(chat)[0], 1)
    assert not await made.look_again(ModelName("m"))
    assert made.models()[0].spec is None
    assert "no such flag" in (made.models()[0].unavailable or "")


async def test_F11_a_crowd_that_asks_for_what_is_not_there_reads_the_disk_once(chat: Path) -> None:
    """In a second."""
    whole, modified_ns = there(chat)
    put(chat, b"")
    made = catalog(ModelEntry("m", chat))
    assert not await made.look_again(ModelName("m"))
    put(chat, whole, modified_ns)
    assert not await made.look_again(ModelName("m"))


async def test_L2_any_file_of_a_launch_counts(tmp_path: Path) -> None:
    """A later part of a set, an adapter."""
    parts = write_split(tmp_path, "split", 2)
    adapter = write_model(tmp_path / "lora.gguf", {"general.architecture": "llama", "general.type": "adapter"}, ADAPTER)
    made = catalog(ModelEntry("m", parts[0], flags=("--lora", str(adapter))))
    for path in (parts[1], adapter):
        os.utime(path, (1, 1))
        assert str(path) in (await made.renew(ModelName("m")) or "")
        assert await made.renew(ModelName("m")) is None


async def test_a_launch_with_other_slots_is_started_with_them_whatever_the_flags_say(chat: Path) -> None:
    """The last of a kind wins: what was planned is what the engine is told."""
    made = catalog(ModelEntry("m", chat, flags=("-c", "4096", "-np", "2")))
    other = (await made.options(ModelName("m"), 8192, 4))[0]
    assert (other.ctx_size, other.parallel) == (8192, 4)
    assert made.launch(ModelName("m"), other).flags[-4:] == ("--ctx-size", "8192", "--parallel", "4")
    spec = made.models()[0].spec
    assert spec is not None
    assert made.launch(ModelName("m"), spec.options[0]).flags == ("-c", "4096", "-np", "2")


async def test_the_context_that_a_model_has_is_the_same_launch(chat: Path) -> None:
    """Asked for by number, by settings or by flags: under its own key."""
    for entry in (ModelEntry("m", chat, ctx_size=4096), ModelEntry("m", chat, flags=("-c", "4096"))):
        made = catalog(entry)
        spec = made.models()[0].spec
        assert spec is not None
        same = await made.options(ModelName("m"), 4096)
        assert [option.key for option in same] == [option.key for option in spec.options]
        other = await made.options(ModelName("m"), 2048)
        assert not {option.key for option in other} & {option.key for option in same}
