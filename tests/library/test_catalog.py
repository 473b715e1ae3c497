"""The catalog: what can be asked for, launched and refused, over header-only files."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from gridsched.core.ids import DeviceName, ModelName
from gridsched.core.job import JobClass, Medium, Quality
from gridsched.core.model import DeviceSpec, LaunchOption, Variant
from gridsched.library.catalog import ModelCatalog
from gridsched.library.planning import Defaults
from gridsched.ports import (
    Backend,
    Capability,
    Catalog,
    CatalogFamily,
    CatalogModel,
    DeviceInfo,
    FamilyEntry,
    LargestFit,
    Measurement,
    ModelEntry,
    VirtualEntry,
)
from tests.library.catalogs import CARDS, GIB, HOST, MIB, catalog
from tests.library.models import (
    ADAPTER,
    BASE,
    CHAT,
    EMBEDDER,
    PROJECTOR,
    PROJECTOR_TENSORS,
    RERANKER,
    TENSORS,
    write_model,
    write_split,
)
from tests.support.gguf_header import Value


def test_it_is_a_catalog(chat: Path) -> None:
    """The port's shape, with a model's facts from its header and its file."""
    made: Catalog = catalog(ModelEntry("m", chat, aliases=("gpt-4o",), default_class=JobClass.BACKGROUND, pinned=True))
    (model,) = made.models()
    assert (model.name, model.path, model.architecture, model.ctx_train) == ("m", chat, "llama", 16384)
    assert model.size_bytes == chat.stat().st_size
    assert model.created == 1_767_225_600
    assert model.aliases == ("gpt-4o", "chat", "chat.gguf")
    assert model.default_class is JobClass.BACKGROUND
    assert model.unavailable is None
    assert model.spec is not None
    assert model.spec.pinned
    assert made.resolve("GPT-4O") == made.resolve("chat.gguf") == made.resolve("auto") == model
    assert made.resolve("gpt-5") is None
    assert made.closest("gpt-4") == ("m",)


def test_two_names_over_one_file_are_two_models(chat: Path) -> None:
    """P1: each its own ladder and its own process; the file's words mean the first."""
    made = catalog(ModelEntry("one", chat), ModelEntry("two", chat, parallel=1, ctx_size=4096))
    assert [model.name for model in made.models()] == ["one", "two"]
    first, second = (model.spec for model in made.models())
    assert first is not None
    assert second is not None
    assert {(option.ctx_size, option.parallel) for option in second.options} == {(4096, 1)}
    assert first.options != second.options
    assert (found := made.resolve("chat.gguf")) is not None
    assert found.name == "one"


@pytest.mark.parametrize(
    ("metadata", "flags", "expected"),
    [
        (CHAT, (), {Capability.CHAT, Capability.COMPLETION}),
        (BASE, (), {Capability.CHAT, Capability.COMPLETION}),
        (EMBEDDER, (), {Capability.EMBEDDING}),
        (RERANKER, (), {Capability.RERANK}),
        ({**CHAT, "llama.pooling_type": 3}, (), {Capability.EMBEDDING}),
        (CHAT, ("--embeddings",), {Capability.EMBEDDING}),
        (EMBEDDER, ("--reranking",), {Capability.RERANK}),
        (RERANKER, ("--embeddings",), {Capability.EMBEDDING}),
    ],
)
def test_capabilities_come_from_the_header_unless_flags_decide(
    tmp_path: Path, metadata: Mapping[str, Value], flags: tuple[str, ...], expected: set[Capability]
) -> None:
    """What a file is made for, or what the person starts the engine for."""
    (model,) = catalog(ModelEntry("m", write_model(tmp_path / "m.gguf", metadata), flags=flags)).models()
    assert model.unavailable is None
    assert model.capabilities == expected


def test_configured_capabilities_win(chat: Path) -> None:
    """The person knows better than the header; the engine is launched for it."""
    made = catalog(ModelEntry("m", chat, capabilities=frozenset({Capability.EMBEDDING})))
    (model,) = made.models()
    assert model.capabilities == {Capability.EMBEDDING}
    assert model.spec is not None
    assert made.launch(model.name, model.spec.options[0]).capabilities == {Capability.EMBEDDING}


def test_a_projector_adds_vision_is_launched_and_is_counted(tmp_path: Path) -> None:
    """Its path goes to the engine, its memory into the estimate, its file into the key of measurements."""
    plain = catalog(ModelEntry("m", write_model(tmp_path / "a" / "m.gguf"))).models()[0]
    path = write_model(tmp_path / "b" / "m.gguf")
    projector = write_model(tmp_path / "b" / "mmproj.gguf", PROJECTOR, PROJECTOR_TENSORS)
    made = catalog(ModelEntry("m", path))
    (model,) = made.models()
    assert Capability.VISION in model.capabilities
    assert model.spec is not None
    assert plain.spec is not None
    option = model.spec.options[0]
    assert option.footprint[0].mmproj_bytes > 0
    assert option.key != plain.spec.options[0].key
    assert made.launch(model.name, option).mmproj == projector


def test_E17_a_draft_model_and_an_adapter_are_counted(tmp_path: Path) -> None:
    """Their memory goes into the estimate, their files into the key; without the flags neither does."""
    path, small = write_model(tmp_path / "m.gguf"), write_model(tmp_path / "s.gguf")
    lora = write_model(tmp_path / "l.gguf", {"general.architecture": "llama", "general.type": "adapter"}, ADAPTER)

    def option(*flags: str) -> LaunchOption:
        spec = catalog(ModelEntry("m", path, flags=flags)).models()[0].spec
        assert spec is not None
        return spec.options[0]

    plain = option().footprint[0]
    drafted = option("-md", str(small)).footprint[0]
    assert (plain.draft_bytes, drafted.weights_bytes) == (0, plain.weights_bytes)
    assert drafted.draft_bytes > small.stat().st_size // 2
    assert option("--lora", str(lora)).footprint[0].weights_bytes > plain.weights_bytes
    before = option("-md", str(small)).key
    write_model(small, age_seconds=60)
    assert option("-md", str(small)).key != before


def test_a_launch_carries_everything_the_engine_needs(chat: Path) -> None:
    """Path, option, flags and environment as configured; an unknown name is a KeyError."""
    made = catalog(ModelEntry("m", chat, flags=("-fa", "on"), env={"A": "1"}))
    spec = made.models()[0].spec
    assert spec is not None
    launch = made.launch(ModelName("m"), spec.options[0])
    assert (launch.model, launch.path, launch.option) == ("m", chat, spec.options[0])
    assert (launch.flags, launch.env, launch.mmproj) == (("-fa", "on"), {"A": "1"}, None)
    with pytest.raises(KeyError):
        made.launch(ModelName("none"), spec.options[0])


def test_E14_a_split_set_is_charged_whole(tmp_path: Path) -> None:
    """Planned as the sum of its parts, launched by its first (F2)."""
    parts = write_split(tmp_path / "split", "m", 3)
    whole = write_model(tmp_path / "whole.gguf")
    made = catalog(ModelEntry("split", parts[2]), ModelEntry("whole", whole))
    split, single = (model.spec for model in made.models())
    assert split is not None
    assert single is not None
    assert split.options[0].footprint == single.options[0].footprint
    assert made.launch(ModelName("split"), split.options[0]).path == parts[0]


def test_E27_only_the_file_that_is_named_counts(tmp_path: Path) -> None:
    """Other quantisations beside it, in files and in a split set, are other models."""
    named = write_model(tmp_path / "m-Q4_K_M.gguf")
    (alone,) = catalog(ModelEntry("m", named)).models()
    write_model(tmp_path / "m-Q8_0.gguf")
    write_model(tmp_path / "m-F16.gguf", tensors=[(name, shape, "F16") for name, shape, _ in TENSORS])
    write_split(tmp_path, "m-Q4_K_M", 3)
    (model,) = catalog(ModelEntry("m", named)).models()
    assert model.spec == alone.spec
    assert model.size_bytes == named.stat().st_size


def test_measurements_are_used_under_their_own_key_only(chat: Path) -> None:
    """L2: what was measured replaces the estimate and the guessed load time; a record of another shape does not."""
    spec = catalog(ModelEntry("m", chat)).models()[0].spec
    assert spec is not None
    first, second = spec.options[:2]
    kept = {
        first.key: Measurement((150 * MIB,), 7.5),
        second.key: Measurement((1, 2), None),
        "another": Measurement((9,), 99.0),
    }
    again = catalog(ModelEntry("m", chat), measurements=kept).models()[0].spec
    assert again is not None
    assert again.options[0].measured_bytes == (150 * MIB,)
    assert again.options[1].measured_bytes == ()
    assert again.load_seconds == 7.5
    assert spec.load_seconds == 1.0 + chat.stat().st_size / 1e9


def test_the_key_changes_with_file_flags_devices_environment_and_engine(tmp_path: Path, chat: Path) -> None:
    """L2: a measurement is never used for another launch than it was made of."""

    def key(entry: ModelEntry, device: DeviceInfo = HOST, engine_build: str = "b1") -> str:
        spec = catalog(entry, devices=(device,), engine_build=engine_build).models()[0].spec
        assert spec is not None
        return spec.options[0].key

    same = ModelEntry("m", chat)
    other_card = DeviceInfo(CARDS[0].spec, "card", Backend.CUDA, 0, "GPU-other")
    keys = [
        key(same),
        key(same, engine_build="b2"),
        key(same, CARDS[0]),
        key(same, other_card),
        key(ModelEntry("m", chat, flags=("--no-warmup",))),
        key(ModelEntry("m", chat, env={"A": "1"})),
        key(ModelEntry("m", write_model(tmp_path / "n.gguf", age_seconds=9))),
    ]
    assert len(set(keys)) == len(keys)
    assert key(ModelEntry("another name", chat)) == keys[0]


def test_settings_and_defaults_shape_the_ladder(chat: Path) -> None:
    """Slots, contexts, idle time and reserved slots: the model's own, else the default."""
    defaults = Defaults(ctx_target=4096, ctx_floor=2048, parallel=3, idle_ttl_seconds=60.0)
    made = catalog(
        ModelEntry("plain", chat),
        ModelEntry("own", chat, ctx_per_slot=1024, parallel=2, idle_ttl_seconds=math.inf, reserved_slots=1),
        defaults=defaults,
    )
    plain, own = (model.spec for model in made.models())
    assert plain is not None
    assert own is not None
    assert (plain.options[0].ctx_size, plain.options[0].parallel) == (3 * 4096, 3)
    assert plain.idle_ttl_seconds == 60.0
    assert (own.options[0].ctx_size, own.options[0].parallel) == (2048, 2)
    assert own.idle_ttl_seconds is None
    assert own.reserved_slots == 1


def test_a_model_may_be_kept_to_one_device(chat: Path) -> None:
    """By name, UUID or address; without it each card and all of them together are offered."""
    made = catalog(
        ModelEntry("free", chat),
        ModelEntry("pinned", chat, device="gpu1"),
        ModelEntry("by-uuid", chat, device="gpu-1"),
        ModelEntry("by-address", chat, device="0000:1a:00.0"),
        ModelEntry("by-bus", chat, device="1a:00.0"),
        devices=CARDS,
    )
    free, *kept = (model.spec for model in made.models())
    assert free is not None
    assert {option.devices for option in free.options} == {("gpu0",), ("gpu1",), ("gpu0", "gpu1")}
    for spec in kept:
        assert spec is not None
        assert {option.devices for option in spec.options} == {("gpu1",)}


def test_what_cannot_be_planned_is_listed_with_its_reason(tmp_path: Path, chat: Path) -> None:
    """F11 and bad settings: the name stays known, the sentence says what to look at, the rest goes on."""
    gone = tmp_path / "gone.gguf"
    hollow = write_model(tmp_path / "hollow.gguf", {"general.architecture": "llama"})
    made = catalog(
        ModelEntry("gone", gone, capabilities=frozenset({Capability.CHAT})),
        ModelEntry("hollow", hollow),
        ModelEntry("flags", chat, flags=("--ctx-size", "many")),
        ModelEntry("device", chat, device="gpu7"),
        ModelEntry("good", chat),
    )
    reasons = {model.name: model.unavailable for model in made.models()}
    assert reasons[ModelName("gone")] == f"{gone}: the file is not there"
    assert (reasons[ModelName("hollow")] or "").startswith(f"{hollow}: llama.block_count")
    assert (reasons[ModelName("flags")] or "").startswith("flags: --ctx-size")
    assert reasons[ModelName("device")] == "device: there is no 'gpu7' here (there is host)"
    assert reasons[ModelName("good")] is None
    for model in made.models():
        assert (model.spec is None) == (model.unavailable is not None)
    assert (found := made.resolve("gone")) is not None
    assert (found.created, found.size_bytes, found.architecture) == (0, 0, "")
    assert (default := made.resolve("default")) is not None
    assert default.name == "good"
    with pytest.raises(KeyError):
        made.launch(ModelName("gone"), made.models()[-1].spec.options[0])  # type: ignore[union-attr] # "good" has one
    assert fit(made, "gone", {DeviceName("host"): GIB}) == LargestFit(0, 0)


def test_reasons_and_notes_are_one_printable_line(tmp_path: Path) -> None:
    """Whatever a path or a header's own words hold: they go to a terminal, and into JSON (F9)."""
    bad = tmp_path / "ne\nw \udcff.gguf"
    odd = write_model(tmp_path / "odd.gguf", {"general.architecture": "ll\nama"})
    (gone, hollow) = catalog(ModelEntry("gone", bad), ModelEntry("odd", odd)).models()
    assert (gone.unavailable or "").endswith("ne\\nw \\udcff.gguf: the file is not there")
    assert (hollow.unavailable or "").endswith("ll\\nama.block_count: is missing from the header")


def test_the_default_is_the_configured_model_else_the_first_that_chats(tmp_path: Path) -> None:
    """One with a chat template before one without; never an embedder; a default that is nobody is said."""
    embedder = ModelEntry("a-embed", write_model(tmp_path / "e.gguf", EMBEDDER))
    base = ModelEntry("b-base", write_model(tmp_path / "b.gguf", BASE))
    chats = ModelEntry("c-chat", write_model(tmp_path / "c.gguf", CHAT), aliases=("gpt",))

    def default(made: ModelCatalog) -> str | None:
        found = made.resolve("local-model")
        return found.name if found else None

    assert default(catalog(embedder, base, chats)) == "c-chat"
    assert default(catalog(embedder, base)) == "b-base"
    assert default(catalog(embedder)) is None
    assert default(catalog(embedder, base, chats, default_model="A-EMBED")) == "a-embed"
    wrong = catalog(base, chats, default_model="c-chart")
    assert default(wrong) == "c-chat"
    assert wrong.problems == ("library.default_model: there is no model 'c-chart' (c-chat)",)


def test_R7_pins_that_cannot_all_fit_are_a_problem_of_the_configuration(chat: Path) -> None:
    """With the arithmetic; as many as fit are none, and so is one whose file is gone."""
    host = DeviceInfo(DeviceSpec(DeviceName("host"), 400 * MIB, 100 * MIB), "host memory", Backend.CPU)

    def problems(*pins: str) -> tuple[str, ...]:
        entries = [ModelEntry(name, chat, ctx_size=512, parallel=1, pinned=True) for name in pins]
        gone = ModelEntry("gone", chat.with_name("gone.gguf"), pinned=True)
        return catalog(*entries, gone, devices=(host,)).problems

    assert problems("a", "b") == ()
    (sentence,) = problems("a", "b", "c")
    assert sentence.startswith("the pinned models do not fit together: a 1")
    assert sentence.endswith(" MiB at the least, 300 MiB to plan with; unpin one, or give it less context")


def fit(made: ModelCatalog, name: str, usable_bytes: Mapping[DeviceName, int]) -> LargestFit:
    """What a catalog finds, asked by somebody who has nothing else to do."""
    return trio.run(made.largest_fit, ModelName(name), usable_bytes)


async def test_S7_a_search_for_what_would_fit_holds_up_nobody_and_serves_a_crowd(chat: Path) -> None:
    """Others go on while it lasts; all who ask the same have one answer, also where the first to ask has left."""
    made = catalog(ModelEntry("m", chat, ctx_per_slot=4096, parallel=2))
    found: list[LargestFit | str] = []

    async def ask() -> None:
        found.append(await made.largest_fit(ModelName("m"), {DeviceName("host"): GIB // 4}))

    async def other() -> None:
        await trio.lowlevel.checkpoint()
        found.append("somebody else")

    async with trio.open_nursery() as leaving:
        leaving.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        leaving.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ask)
        nursery.start_soon(other)
    assert found[0] == "somebody else"
    assert len(found) == 21
    assert all(one is found[1] for one in found[1:])


def test_the_largest_fit_grows_with_the_memory(chat: Path) -> None:
    """L7: more bytes carry more context and more slots; too few carry nothing."""
    made = catalog(ModelEntry("m", chat, ctx_per_slot=4096, parallel=2))
    host = DeviceName("host")
    assert fit(made, "m", {host: 1 << 20}) == LargestFit(0, 0)
    some, all_of_it = fit(made, "m", {host: GIB // 4}), fit(made, "m", {host: 4 * GIB})
    assert 0 < some.ctx_size <= all_of_it.ctx_size == 2 * 16384
    assert 2 <= some.parallel <= all_of_it.parallel
    with pytest.raises(KeyError):
        fit(made, "none", {})


def told(made: ModelCatalog, name: str, mib: int) -> tuple[str, ...]:
    """What is suggested for a model with so much host memory."""
    return fit(made, name, {DeviceName("host"): mib * MIB}).suggestions


def test_L7_suggestions_name_the_setting_and_are_true(chat: Path) -> None:
    """Each, followed in the configuration, makes the catalog offer a launch that fits."""
    asked = ModelEntry("m", chat, ctx_size=65536, parallel=4, cache_types=("f16", "f16"))
    room_mib = 210
    assert told(catalog(replace(asked, ctx_size=512)), "m", room_mib) == ()
    less, mixed = told(catalog(asked), "m", room_mib)
    assert less.startswith("Set models.m.ctx_size to at most ")
    pool = int(less.rpartition(" ")[2])
    # With two layers, q8_0 for both saves what the copy of one in f16 takes.
    assert mixed == "Set models.m.cache_type to q8_0/q4_0"
    for followed in (
        replace(asked, ctx_size=pool),
        replace(asked, cache_types=("q8_0", "q4_0")),
    ):
        (model,) = catalog(followed).models()
        assert model.spec is not None
        assert min(sum(need for _, need in option.need_bytes) for option in model.spec.options) <= room_mib * MIB


async def test_L7_L2_advice_leaves_room_for_what_estimates_were_short_of(chat: Path) -> None:
    """A launch that took 30 MiB more than was estimated and does not fit is not said to fit; what is suggested instead
    has that room, whether it was measured before the start or since."""
    asked = ModelEntry("m", chat, ctx_size=65536, parallel=1, cache_types=("f16", "f16"))
    made = catalog(asked)
    spec = made.models()[0].spec
    assert spec is not None
    (option,) = spec.options
    host, estimate = option.footprint[0].device, option.footprint[0].total_bytes
    room = {host: estimate + 20 * MIB}
    assert (await made.largest_fit(ModelName("m"), room)).suggestions == ()
    kept = {option.key: Measurement((estimate + 30 * MIB,))}
    restarted = catalog(asked, measurements=kept)
    made.learn(kept)
    for each in (made, restarted):
        found = await each.largest_fit(ModelName("m"), room)
        assert found.ctx_size < 65536
        less = catalog(replace(asked, ctx_size=found.ctx_size)).models()[0].spec
        assert less is not None
        assert less.options[0].footprint[0].total_bytes + 30 * MIB <= room[host]
        assert f"Set models.m.ctx_size to at most {found.ctx_size}" in found.suggestions


def test_L7_R10_a_smaller_model_of_the_family_is_suggested_where_it_fits(tmp_path: Path, chat: Path) -> None:
    """Those behind it alone, and none that is as much too big."""
    tensors = (("token_embd.weight", (256, 500_000), "Q8_0"), ("output.weight", (256, 500_000), "Q8_0"))
    big, other = (ModelEntry(name, write_model(tmp_path / f"{name}.gguf", CHAT, tensors)) for name in ("big", "other"))
    sizes = ((Quality.PREFERRED, "big"), (Quality.BALANCED, "other"), (Quality.COMPACT, "small"))
    made = catalog(big, other, ModelEntry("small", chat), families=(FamilyEntry("f", sizes),))
    assert told(made, "big", 200) == ("Ask for small, a smaller model of the family f",)
    assert told(made, "small", 100) == ()
    assert told(made, "big", 4000) == ()


@pytest.mark.parametrize(
    ("build", "devices", "offered"),
    [
        ("11434 (abc)", CARDS, True),
        ("0.3.1-dev (build 11500, commit abc)", CARDS, True),
        ("0.3.0-dev (build 10791, commit abc)", CARDS, False),
        ("1 (abc)", CARDS, False),
        ("", CARDS, False),
        ("1 (abc)", (HOST,), True),
        ("11434 (abc)", tuple(replace(card, backend=Backend.VULKAN) for card in CARDS), False),
    ],
)
def test_q8_0_with_q4_0_is_for_engines_that_compute_with_it(
    tmp_path: Path, build: str, devices: tuple[DeviceInfo, ...], offered: bool
) -> None:
    """Elsewhere attention over such a cache would fall to the CPU, without a word."""
    facts = {**CHAT, "llama.block_count": 8, "llama.attention.key_length": 256, "llama.attention.value_length": 256}
    deep = write_model(tmp_path / "deep.gguf", {**facts, "llama.attention.head_count_kv": 4})
    (model,) = catalog(ModelEntry("m", deep), devices=devices, engine_build=build).models()
    assert model.spec is not None
    assert (("q8_0", "q4_0") in {option.cache_types for option in model.spec.options}) is offered


def test_a_default_cache_type_is_for_models_that_can_do_with_it(tmp_path: Path, chat: Path) -> None:
    """A model's own is taken at its word: what the engine would refuse is said."""
    odd = write_model(tmp_path / "odd.gguf", {**CHAT, "llama.attention.key_length": 80})
    q8 = ("q8_0", "q8_0")
    made = catalog(
        ModelEntry("can", chat), ModelEntry("cannot", odd), ModelEntry("own", odd, cache_types=q8),
        defaults=Defaults(cache_types=q8),
    )  # fmt: skip
    can, cannot, own = made.models()
    assert can.spec is not None
    assert cannot.spec is not None
    assert {option.cache_types for option in can.spec.options} == {q8}
    assert {option.cache_types for option in cannot.spec.options} == {("f16", "f16")}
    assert own.spec is None
    assert "q8_0 packs 32 values at a time" in (own.unavailable or "")


def test_L2_state_from_disk_cannot_hurt(chat: Path) -> None:
    """A small part of the estimate, or figures of other devices, are not believed; more than can be planned is taken as
    all that can be planned, so that the model is tried again (L6a)."""

    def first(measurements: Mapping[str, Measurement]) -> LaunchOption:
        spec = catalog(ModelEntry("m", chat), measurements=measurements).models()[0].spec
        assert spec is not None
        return spec.options[0]

    def need(*kept: int) -> int:
        ((_, need_bytes),) = first({first({}).key: Measurement(kept)}).need_bytes
        return need_bytes

    estimate = need()
    assert need(estimate // 2) == estimate // 2
    assert need(estimate * 2) == estimate * 2
    assert need(1) == need(0) == need(estimate, 0) == need(estimate // 5) == estimate
    assert need(99 * GIB) == 7 * GIB


def test_models_from_folders_are_served_under_their_origin(tmp_path: Path) -> None:
    """Without a configuration: found, named, planned; a bad file beside them is listed with its reason."""
    write_model(tmp_path / "pub" / "repo" / "m-Q4.gguf")
    write_model(tmp_path / "pub" / "repo" / "m-Q8.gguf")
    (tmp_path / "broken.gguf").write_bytes(b"nonsense" * 9)
    made = catalog(folders=[tmp_path])
    assert [model.name for model in made.models()] == ["broken", "pub/repo/m-Q4", "pub/repo/m-Q8"]
    assert "not a GGUF file" in (made.models()[0].unavailable or "")
    assert (found := made.resolve("M-q8.gguf")) is not None
    assert found.name == "pub/repo/m-Q8"
    assert made.resolve("pub/repo") is None
    assert (default := made.resolve("current")) is not None
    assert default.name == "pub/repo/m-Q4"


# --- R10 --------------------------------------------------------------------------------------------------------

GEMMA = FamilyEntry("Gemma", ((Quality.PREFERRED, "big"), (Quality.BALANCED, "gone"), (Quality.COMPACT, "small")))


def test_R10_a_family_is_found_like_a_model(chat: Path, tmp_path: Path) -> None:
    """By its name in any case, as the default, before what a file is called, and among the names that are close."""
    seeing = frozenset((Capability.CHAT, Capability.VISION))
    entries = (ModelEntry("big", chat), ModelEntry("small", chat, capabilities=seeing))
    write_model(tmp_path / "m" / "gemma.gguf")
    made = catalog(*entries, folders=[tmp_path / "m"], families=[GEMMA], default_model="Gemma")
    family = made.resolve("GEMMA")
    assert isinstance(family, CatalogFamily)
    assert made.resolve("auto") is family
    assert (made.families(), made.problems, made.faults) == ((family,), (), ())
    assert catalog(*entries, families=[GEMMA]).closest("gema") == ("Gemma",)
    assert family.best is made.resolve("big")
    assert family.spec.variants == (
        Variant(ModelName("big"), Quality.PREFERRED),
        Variant(ModelName("small"), Quality.COMPACT, frozenset((Medium.IMAGE,))),
    )


def test_R10_the_scheduler_is_told_only_of_variants_that_can_be_served(chat: Path, tmp_path: Path) -> None:
    """The best of the rest speaks for the family; without any, none does."""
    missing = ModelEntry("big", tmp_path / "none.gguf")
    family = catalog(missing, ModelEntry("small", chat), families=[GEMMA]).families()[0]
    assert isinstance(family.best, CatalogModel)
    assert (family.best.name, len(family.spec.variants)) == ("small", 1)
    assert catalog(missing, ModelEntry("x", chat), families=[GEMMA]).families()[0].best is None


def test_R10_a_variant_whose_file_does_not_chat_is_a_fault_of_the_configuration(chat: Path, tmp_path: Path) -> None:
    """An embedder cannot be in a family."""
    embedder = write_model(tmp_path / "e.gguf", EMBEDDER)
    made = catalog(ModelEntry("big", chat), ModelEntry("small", embedder), families=[GEMMA])
    (fault,) = made.faults
    assert fault[0] == ("families", "Gemma", "compact")
    assert fault[1] == "small does not chat, and a family is for chats and completions; it serves embedding"


def test_a_name_over_another_model_is_found_and_served_by_its_base(chat: Path, tmp_path: Path) -> None:
    """The base by an alias, a file's name, or a family's; whatever it was found by, the base is what serves."""
    folder = tmp_path / "org" / "repo"
    indexed = write_model(folder / "Found.gguf")
    virtuals = [
        VirtualEntry("v", "GPT-4o", ("w",)),
        VirtualEntry("of-file", "org/repo/found"),
        VirtualEntry("any", "Gemma"),
    ]
    big = ModelEntry("big", chat, aliases=("gpt-4o",))
    made = catalog(big, folders=[tmp_path], families=[GEMMA], virtuals=virtuals, default_model="v")
    assert made.faults == made.problems == ()
    assert made.resolve("V") is made.resolve("w") is made.resolve("auto") is made.resolve("big")
    found = made.resolve("of-file")
    assert isinstance(found, CatalogModel)
    assert found.path == indexed
    assert made.resolve("any") is made.families()[0]
    assert [each.name for each in made.virtuals()] == ["v", "of-file", "any"]
    named = made.virtual("W")
    assert named is not None
    assert (named.name, named.entry, named.base) == ("v", virtuals[0], made.resolve("big"))
    assert made.virtual("big") is made.virtual("nobody") is None
    assert made.closest("of-fil") == ("of-file",)


def test_a_base_that_is_not_there_is_a_fault_with_the_closest(chat: Path) -> None:
    """With its key, for the line in the file; it is nobody's name then."""
    virtuals = [VirtualEntry("v", "bigg"), VirtualEntry("u", "nothing-of-the-kind"), VirtualEntry("w", "v")]
    made = catalog(ModelEntry("big", chat), virtuals=virtuals)
    assert made.faults == (
        (("models", "v", "base"), "there is no model or family bigg; did you mean big?"),
        (("models", "u", "base"), "there is no model or family nothing-of-the-kind"),
        (("models", "w", "base"), "there is no model or family v"),
    )
    assert made.virtuals() == ()
    assert made.resolve("v") is made.virtual("v") is None


def test_words_for_the_system_over_an_embedder_are_a_fault(tmp_path: Path) -> None:
    """It would not hear them; a class or an idle time are its to have."""
    embedder = write_model(tmp_path / "e.gguf", EMBEDDER)
    virtuals = [VirtualEntry("v", "e", system_prompt="Be kind."), VirtualEntry("w", "e", idle_ttl_seconds=5.0)]
    made = catalog(ModelEntry("e", embedder), virtuals=virtuals)
    assert made.faults == ((("models", "v", "system_prompt"), "e does not chat, and would not hear it"),)


def test_a_file_whose_name_is_taken_by_a_name_over_another_is_said(chat: Path, tmp_path: Path) -> None:
    """Two models with one id would be one that nobody can ask for."""
    other = write_model(tmp_path / "y" / "v.gguf")
    made = catalog(ModelEntry("big", chat), folders=[tmp_path / "y"], virtuals=[VirtualEntry("v", "big")])
    assert [model.name for model in made.models()] == ["big"]
    assert f"{other} is not served: v is configured as something else." in made.notes


FAMILY = ((Quality.PREFERRED, "big"),)


@pytest.mark.parametrize("file_name", ["v.gguf", "V.gguf"])
def test_C15_what_a_person_named_goes_before_what_a_file_is_called(chat: Path, tmp_path: Path, file_name: str) -> None:
    """A family's name, and an alias, mean what they were given to, also where another file is called so."""
    other = write_model(tmp_path / "y" / file_name)
    named = [
        catalog(ModelEntry("big", chat, aliases=("v",)), folders=[tmp_path / "y"]),
        catalog(ModelEntry("big", chat), folders=[tmp_path / "y"], families=[FamilyEntry("v", FAMILY)]),
        catalog(
            ModelEntry("big", chat),
            folders=[tmp_path / "y"],
            virtuals=[VirtualEntry("reviewer", "big", aliases=("v",))],
        ),
    ]
    for made in named:
        assert [model.name for model in made.models()] == ["big"]
        for word in ("v", "V"):
            found = made.resolve(word)
            assert found is not None
            assert found.name in ("big", "v")
        assert made.resolve("v.gguf") is None
        assert f"{other} is not served: {other.stem} is configured as something else." in made.notes


def test_thoughts_are_handed_out_as_configured(chat: Path, tmp_path: Path) -> None:
    """By the model's own word, else the default's; a flag goes before both, and who does not chat has no thoughts."""
    embedder = write_model(tmp_path / "e.gguf", EMBEDDER)
    made = catalog(
        ModelEntry("own", chat, reasoning_format="deepseek", flags=("-fa", "on")),
        ModelEntry("default", chat),
        ModelEntry("auto", chat, reasoning_format="auto"),
        ModelEntry("flag", chat, reasoning_format="none", flags=("--reasoning-format=auto",)),
        ModelEntry("embedder", embedder),
        defaults=Defaults(reasoning_format="none"),
    )

    def flags(name: str) -> tuple[str, ...]:
        model = made.resolve(name)
        assert isinstance(model, CatalogModel)
        assert model.spec is not None
        return made.launch(model.name, model.spec.options[0]).flags

    assert flags("own") == ("-fa", "on", "--reasoning-format", "deepseek")
    assert flags("default") == ("--reasoning-format", "none")
    assert flags("flag") == ("--reasoning-format=auto",)
    assert flags("embedder") == ()
    named = next(model for model in made.models() if model.name == "auto")
    assert named.spec is not None
    assert made.launch(named.name, named.spec.options[0]).flags == ()
