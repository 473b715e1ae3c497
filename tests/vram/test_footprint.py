"""Bytes by component: the published cases of estimates gone wrong, each with its right figure."""

import pytest

from gridsched.core.ids import DeviceName
from gridsched.vram.flags import parse_flags
from gridsched.vram.footprint import footprint
from gridsched.vram.geometry import Geometry
from gridsched.vram.header import scan
from gridsched.vram.overhead import HOST_OVERHEAD_BYTES
from tests.support.gguf_header import Value, build_header, tensor_bytes
from tests.vram.models import CARD, MIB, estimate, kv_mib, model, real, siglip

HOST = DeviceName("host")


def gpt_oss(blocks: int) -> Geometry:
    """Every second layer slides over 128 tokens."""
    return model(
        "gpt-oss",
        block_count=blocks,
        embedding_length=2880,
        attention__head_count=64,
        attention__head_count_kv=8,
        attention__key_length=64,
        attention__value_length=64,
        attention__sliding_window=128,
        context_length=131072,
    )


def test_E1_a_hybrids_cache_is_on_its_full_attention_layers_only() -> None:
    """10 of 40 layers keep a cache, 30 a state; 20 KiB a token."""
    geometry = model(
        "qwen35moe",
        block_count=40,
        full_attention_interval=4,
        embedding_length=2048,
        attention__head_count=16,
        attention__head_count_kv=2,
        attention__key_length=256,
        attention__value_length=256,
        ssm__inner_size=4096,
        ssm__state_size=128,
        ssm__conv_kernel=4,
        ssm__group_count=16,
    )
    long = estimate(geometry, "-c", "262144", "-np", "1")
    assert long.devices[0].kv_bytes == 5120 * MIB
    assert long.devices[0].recurrent_bytes == 30 * 4 * (3 * (4096 + 2 * 16 * 128) + 128 * 4096)
    assert (long.layers.full, long.layers.recurrent, long.layers.none) == (10, 30, 0)
    assert kv_mib(geometry, "-c", "256", "-np", "1") == 5  # 1.25 MiB for each 64 tokens, in steps of 256


def test_E3_a_list_of_kv_heads_is_read_layer_by_layer() -> None:
    """Six layers of sixteen keep a cache; 0 would be the dangerous answer."""
    heads = [0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0]
    geometry = model(
        "lfm2",
        block_count=16,
        embedding_length=2048,
        attention__head_count=32,
        attention__head_count_kv=heads,
        shortconv__l_cache=3,
    )
    part = estimate(geometry, "-c", "32768", "-np", "1").devices[0]
    assert part.kv_bytes == 384 * MIB
    assert part.recurrent_bytes == 10 * 4 * 2 * 2048


def test_E4_a_window_of_period_two_is_charged_as_a_window() -> None:
    """Half of the layers at full context, half at 768 cells; all of them with --swa-full."""
    part = estimate(gpt_oss(24), "-c", "131072", "-np", "1", "-ub", "512")
    assert part.devices[0].kv_bytes == (3072 + 18) * MIB
    assert (part.layers.full, part.layers.window) == (12, 12)
    assert kv_mib(gpt_oss(24), "-c", "131072", "-np", "1", "--swa-full") == 6144


def test_E7_an_explicit_key_length_beats_embedding_over_heads() -> None:
    """128 where the division says 64; without the keys the division stands."""

    def mib(**lengths: Value) -> float:
        keys: dict[str, Value] = {"block_count": 48, "embedding_length": 2048, "attention__head_count": 32}
        geometry = model("qwen3moe", (), **keys, attention__head_count_kv=4, **lengths)
        return kv_mib(geometry, "-c", "32768", "-np", "1")

    assert mib() == 1536
    assert mib(attention__key_length=128, attention__value_length=128) == 3072


def test_E9_mla_caches_one_compressed_head_and_no_v() -> None:
    """30.4 KiB a token with the newer conversion, 270 with the older one of the same model."""
    newer, older = real("DeepSeek-V2-Lite-Q4_K_M"), real("DeepSeek-Coder-V2-Lite-nonMLA-Q5_K_M")
    assert kv_mib(newer, "-c", "8192", "-np", "1") == 27 * 576 * 2 * 8192 / MIB
    assert kv_mib(older, "-c", "8192", "-np", "1") == 270 * 8192 / 1024


@pytest.mark.parametrize("mode", ["--reranking", "--embedding"])
def test_E10_an_encoder_has_no_cache(mode: str) -> None:
    """Weights and compute only, however many slots and tokens."""
    geometry = model(
        "bert",
        [("token_embd.weight", [1024, 1000], "F16"), ("blk.0.attn_q.weight", [1024, 1024], "F16")],
        block_count=24,
        embedding_length=1024,
        feed_forward_length=4096,
        attention__head_count=16,
        context_length=8192,
    )
    part = estimate(geometry, "-c", "8192", "-np", "4", mode).devices[0]
    assert (part.kv_bytes, part.recurrent_bytes) == (0, 0)
    assert part.weights_bytes == 2 * MIB
    assert 0 < part.compute_bytes < 32 * MIB


def test_E12_a_window_model_at_full_context_fits_a_40_gb_card() -> None:
    """10 full layers and 52 window ones: 10.6 GiB of cache, not 62."""
    geometry = model(
        "gemma3",
        block_count=62,
        embedding_length=5376,
        attention__head_count=32,
        attention__head_count_kv=16,
        attention__key_length=128,
        attention__value_length=128,
        attention__sliding_window=1024,
    )
    assert kv_mib(geometry, "-c", "131072", "-np", "1") == 10240 + 624
    whole = estimate(real("Gemma-3-27B-QAT-Q4_0"), "-c", "131072", "-np", "1")
    assert whole.total_bytes < 40 * 10**9


def test_E19_slots_share_the_context_and_0_is_the_trained_length() -> None:
    """The pool costs the same for one slot and for two; none given and 0 mean what the model was trained on."""
    geometry = model(
        "qwen3",
        block_count=40,
        embedding_length=5120,
        attention__head_count=40,
        attention__head_count_kv=8,
        attention__key_length=128,
        attention__value_length=128,
        context_length=40960,
    )
    one, two = (estimate(geometry, "--ctx-size", "32768", "--parallel", slots) for slots in "12")
    assert one.devices[0].kv_bytes == two.devices[0].kv_bytes == 5120 * MIB
    assert (one.ctx_per_slot, two.ctx_per_slot) == (32768, 16384)
    for trained in (estimate(geometry, "--ctx-size", "0", "-np", "1"), estimate(geometry, "-np", "1")):
        assert (trained.ctx_size, trained.devices[0].kv_bytes) == (40960, 6400 * MIB)
    assert estimate(geometry, "-c", "81920", "-np", "1").notes == (
        "81920 tokens a slot are more than the 40960 that the model was trained on",
    )


def test_E20_no_flash_attention_costs_clearly_more() -> None:
    """The scores of a whole micro-batch against the whole context are written out."""
    geometry = real("Llama-3.1-8B-Q4_K_M")
    on, off = (estimate(geometry, "-c", "131072", "-np", "1", "-fa", word).devices[0] for word in ("on", "off"))
    assert off.compute_bytes > on.compute_bytes + 32 * 131072 * 512 * 4 - 128 * MIB
    assert on.kv_bytes == off.kv_bytes


def test_E22_all_layers_are_charged_while_the_context_is_below_the_window() -> None:
    """73,728 bytes a token, in a cache of at least 256 cells."""
    assert kv_mib(gpt_oss(36), "-c", "128", "-np", "1") == 73_728 * 256 / MIB


LAYER = tensor_bytes([4096, 4096], "F16")
TABLE = tensor_bytes([4096, 32000], "F16")


def blocks_32() -> Geometry:
    """32 blocks of one tensor each, a token table and an output table."""
    return model(
        "llama",
        [
            ("token_embd.weight", [4096, 32000], "F16"),
            *((f"blk.{index}.attn_q.weight", [4096, 4096], "F16") for index in range(32)),
            ("output.weight", [4096, 32000], "F16"),
        ],
        block_count=32,
        embedding_length=4096,
        attention__head_count=32,
        attention__head_count_kv=8,
    )


@pytest.mark.parametrize(
    ("layers", "output", "blocks"),
    [
        *(("0", 0, 0), ("1", 1, 0), ("31", 1, 30), ("32", 1, 31), ("33", 1, 32)),
        *(("99", 1, 32), ("all", 1, 32), ("auto", 1, 32), ("-1", 1, 32)),
    ],
)
def test_E23_the_last_layers_go_to_the_card_the_output_first(layers: str, output: int, blocks: int) -> None:
    """1 is the output alone, 32 leaves block 0 on the host; the cache follows its layer; the table stays."""
    ours = estimate(blocks_32(), "-ngl", layers, "-c", "4096", "-np", "1")
    card, host = ours.devices[0], ours.host
    assert card.weights_bytes == output * TABLE + blocks * LAYER
    assert host.weights_bytes == TABLE + (1 - output) * TABLE + (32 - blocks) * LAYER
    assert card.kv_bytes == blocks * 16 * MIB
    assert host.kv_bytes == (32 - blocks) * 16 * MIB
    assert bool(ours.notes) == (layers in ("auto", "-1"))


def tied(architecture: str, *extra: str) -> Geometry:
    """One block, a token table of 544 MiB, and other tables by name."""
    tables = [(name, [2048, 262144], "Q8_0") for name in ("token_embd.weight", *extra)]
    keys = {"block_count": 1, "embedding_length": 2048, "attention__head_count": 16}
    return model(architecture, [*tables, ("blk.0.attn_q.weight", [2048, 2048], "Q8_0")], **keys)


def test_E28_a_tied_table_is_on_the_card_once_more_unless_the_model_is_an_encoder() -> None:
    """Host: the table, always. Card: an output of its own, a copy of the table, or neither."""
    block, table = tensor_bytes([2048, 2048], "Q8_0"), 544 * MIB
    own, copied, encoder = tied("llama", "output.weight"), tied("llama"), tied("nomic-bert")
    assert [estimate(it).devices[0].weights_bytes for it in (own, copied, encoder)] == [
        *(block + table, block + table, block)
    ]
    assert [estimate(it).host.weights_bytes for it in (own, copied, encoder)] == [table] * 3
    assert own.file_bytes == 2 * table + block
    assert copied.file_bytes == table + block
    assert estimate(copied, "-ngl", "0").host.weights_bytes == table + block
    per_layer = tied("gemma4", "per_layer_token_embd.weight")
    assert estimate(per_layer).devices[0].weights_bytes == block + table
    assert estimate(per_layer).host.weights_bytes == 2 * table


def test_no_parallel_means_four_slots_over_one_cache() -> None:
    """The engine's own default costs a window model and a hybrid more than one slot does."""
    window, hybrid = real("Gemma-4-12B-Q4_K_M"), real("Qwen3.5-27B-Q4_K_M")
    quantized = ("-c", "8192", "-ctk", "q8_0", "-ctv", "q8_0")
    assert round(kv_mib(window, *quantized)) == 833
    assert round(kv_mib(window, *quantized, "-np", "1")) == 323
    ours = estimate(hybrid, "-c", "8192")
    assert (ours.parallel, ours.ctx_per_slot) == (4, 8192)
    assert round(ours.devices[0].recurrent_bytes / MIB / 4, 2) == 149.62


def test_a_context_is_rounded_up_for_each_slot() -> None:
    """-c 10000 -np 3 allocates 10,752 cells."""
    ours = estimate(real("Qwen3-8B-Q4_K_M"), "-c", "10000", "-np", "3")
    assert (ours.ctx_size, ours.ctx_per_slot) == (10752, 3584)


def test_a_decoder_that_embeds_pays_for_logits_of_every_token() -> None:
    """The vocabulary counts, times the micro-batch; an encoder's does not."""
    decoder = real("Qwen3-Embedding-0.6B-Q8_0")
    wide = ("-c", "8192", "-np", "1", "-ub", "8192", "-b", "8192", "--embedding")
    assert estimate(decoder, *wide).devices[0].compute_bytes > 4990 * MIB
    assert estimate(real("bge-base-en-v1.5-Q8_0"), *wide).devices[0].compute_bytes < 512 * MIB


def test_without_a_gpu_everything_is_in_host_memory_once() -> None:
    """The mapped file, a second copy of what the processor lays out anew, the whole cache, compute, the process."""
    geometry = real("Llama-3.2-1B-Q4_K_M")
    flags = ("-c", "8192", "-np", "2")
    ours = footprint(geometry, parse_flags(flags), (HOST,), on_host=True, overhead_bytes=HOST_OVERHEAD_BYTES)
    (part,) = ours.devices
    assert part.device == HOST
    kept = geometry.file_bytes - 9 * MIB  # the last tensor is laid out anew: nothing behind it holds the mapping
    assert part.weights_bytes - kept == 445.5 * MIB  # as the engine reports its repacked buffer
    assert ours.mapped_bytes == kept
    assert part.kv_bytes == 256 * MIB
    assert 72.02 * MIB <= part.compute_bytes <= 80 * MIB  # the engine's own figure, from above
    assert part.overhead_bytes == 128 * MIB
    assert ours.host.total_bytes == 0
    plain = footprint(geometry, parse_flags((*flags, "--no-repack")), (HOST,), on_host=True)
    assert plain.devices[0].weights_bytes == geometry.file_bytes
    tied = real("Gemma-4-E2B-Q4_K_M")
    once = footprint(tied, parse_flags(("--no-repack",)), (HOST,), on_host=True).devices[0].weights_bytes
    assert 0 <= once - tied.file_bytes < 4096  # no second copy of a mapped table, though the loader asks for one


def test_a_projector_goes_to_the_first_card_or_to_the_host() -> None:
    """Weights, what it computes in (much more without flash attention), and its picture in host memory."""
    geometry, picture = real("Gemma-3-4B-Q4_K_M"), 3 * 4 * 896 * 896

    def mmproj(*words: str) -> tuple[int, int, int]:
        projector = siglip(2 * MIB)
        ours = footprint(geometry, parse_flags(words), (CARD, DeviceName("gpu1")), projector=projector)
        return ours.devices[0].mmproj_bytes, ours.devices[1].mmproj_bytes, ours.host.mmproj_bytes

    assert mmproj() == ((2 + 121.25) * MIB, 0, picture)
    assert mmproj("-fa", "off") == ((2 + 1132) * MIB, 0, picture)
    assert mmproj("--no-mmproj-offload") == (0, 0, (2 + 121.25) * MIB + picture)


@pytest.mark.parametrize(
    ("kind", "keys", "patches"),
    [
        ("gemma3", {"image_size": 448}, 32 * 32),
        ("qwen2vl_merger", {}, 4096 * 4),
        ("gemma4v", {"projector.scale_factor": 3}, 1120 * 9),
        ("anything", {"image_max_pixels": 14 * 14 * 5000}, 5000),
    ],
)
def test_a_projector_is_charged_for_the_largest_picture_it_takes(kind: str, keys: dict[str, int], patches: int) -> None:
    """A picture larger than those before enlarges its buffer, long after the load."""
    metadata: dict[str, Value] = {"general.architecture": "clip", "clip.vision.projector_type": kind}
    sizes = {"image_size": 896, "patch_size": 14, "embedding_length": 1152, "feed_forward_length": 4304} | keys
    metadata |= {f"clip.vision.{key}": value for key, value in sizes.items()} | {"clip.vision.attention.head_count": 16}
    projector = Geometry.from_header(scan(build_header(metadata, ())))
    ours = footprint(real("Gemma-3-4B-Q4_K_M"), parse_flags(()), (CARD,), projector=projector)
    assert ours.devices[0].mmproj_bytes == 4 * patches * (4304 + 3 * 1152)


def test_a_projector_that_does_not_tell_its_sizes_is_charged_a_margin_and_noted() -> None:
    """Early files have no keys at all."""
    projector = Geometry.from_header(scan(build_header({"general.architecture": "clip"}, ())))
    ours = footprint(real("Gemma-3-4B-Q4_K_M"), parse_flags(()), (CARD,), projector=projector)
    assert ours.devices[0].mmproj_bytes == 512 * MIB
    assert "the projector does not tell its sizes: 512 MiB are assumed for what it computes in" in ours.notes


def test_overhead_is_charged_on_every_device() -> None:
    """Once for each: every card has a context of its own."""
    flags = parse_flags(("-c", "4096", "-np", "1", "-ts", "1,1"))
    cards = (DeviceName("a"), DeviceName("b"))
    ours = footprint(real("Qwen3-8B-Q4_K_M"), flags, cards, overhead_bytes=7 * MIB)
    assert [part.overhead_bytes for part in ours.devices] == [7 * MIB, 7 * MIB]
    assert ours.total_bytes == sum(part.total_bytes for part in ours.devices)


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (("-sm", "tensor"), "--split-mode tensor is estimated as a split by layers"),
        (("--mmproj", "p.gguf"), "the memory of the --mmproj file is not counted"),
        (("-md", "small.gguf"), "the memory of the --model-draft file is not counted"),
        (("--lora", "style.gguf"), "the memory of the --lora files is not counted"),
    ],
)
def test_what_is_not_in_the_estimate_is_said(words: tuple[str, ...], note: str) -> None:
    """A note for each thing that takes memory and is not counted."""
    assert note in estimate(real("Qwen3-8B-Q4_K_M"), "-c", "4096", *words).notes


def test_control_vectors_lie_with_their_layers() -> None:
    """One vector for each layer but the first, however many are added up; some of them on the host."""
    model = real("Qwen3-8B-Q4_K_M")
    words = ("-c", "4096", "-np", "1", "-ngl", "30")
    plain = estimate(model, *words)
    with_vectors = estimate(model, *words, "--control-vector", "a.gguf,b.gguf")
    vector = 4 * model.embedding_length
    assert with_vectors.devices[0].weights_bytes - plain.devices[0].weights_bytes == 29 * vector
    assert with_vectors.host.weights_bytes - plain.host.weights_bytes == 6 * vector


def test_weights_that_are_not_mapped_cannot_be_dropped() -> None:
    """--mlock and --no-mmap hold them; only a mapped file may be read again."""
    model = real("Qwen3-8B-Q4_K_M")
    for words, mapped in (((), True), (("--mmap",), True), (("--no-mmap",), False), (("--mlock",), False)):
        assert bool(estimate(model, "-c", "4096", "-ngl", "10", *words).mapped_bytes) is mapped


def test_on_the_host_a_file_that_is_read_is_there_once() -> None:
    """A mapped one has a second copy of what the processor wants laid out anew; so has --no-host beside a card."""
    model = real("Llama-3.1-8B-Q4_K_M")
    alone = {"on_host": True, "overhead_bytes": 0}
    mapped = footprint(model, parse_flags(("-c", "4096")), (HOST,), **alone)
    read = footprint(model, parse_flags(("-c", "4096", "--no-mmap")), (HOST,), **alone)
    twice, last = sum(weight.repacked_bytes for weight in model.weights), model.weights[-1].repacked_bytes
    assert mapped.devices[0].weights_bytes - read.devices[0].weights_bytes == twice - last > 0
    assert last  # the file stays mapped as far as something behind it is used
    beside = estimate(model, "-c", "4096", "-ngl", "0")
    bypassed = estimate(model, "-c", "4096", "-ngl", "0", "--no-host")
    assert bypassed.host.weights_bytes - beside.host.weights_bytes == twice


def test_an_adapter_lies_with_the_tensors_that_it_adapts() -> None:
    """Its pairs follow their layers, here one to each card and one to the host."""
    base = blocks_32()
    pair = [("lora_a", [4096, 16]), ("lora_b", [16, 4096])]
    tensors = [(f"blk.{index}.attn_q.weight.{side}", shape, "F16") for index in (0, 1, 31) for side, shape in pair]
    weights = model("llama", tensors, block_count=32, embedding_length=4096, attention__head_count=32).weights
    adapter = Geometry("llama", weights=weights)
    words = ("-c", "4096", "-np", "1", "-ngl", "32", "-ts", "1,1")
    cards = (CARD, DeviceName("gpu1"))
    without = footprint(base, parse_flags(words), cards, overhead_bytes=0)
    ours = footprint(base, parse_flags((*words, "--lora", "a.gguf")), cards, overhead_bytes=0, adapters=(adapter,))
    size = 2 * tensor_bytes([4096, 16], "F16")
    added = [
        after.weights_bytes - before.weights_bytes for before, after in zip(without.devices, ours.devices, strict=True)
    ]
    assert added == [size, size]
    assert ours.host.weights_bytes - without.host.weights_bytes == size
    assert "the memory of the --lora files is not counted" not in ours.notes


def test_E24_the_hosts_part_is_shown_with_what_may_be_given_back_and_what_may_grow() -> None:
    """Experts on the host are mapped from the file: shown, reclaimable. Saved prompts come beside, up to their cap."""
    geometry = real("Qwen3-30B-A3B-Q4_K_M")
    ours = estimate(geometry, "-c", "8192", "-np", "1", "--cpu-moe")
    assert 15 * 1024 * MIB < ours.host.weights_bytes < 19 * 1024 * MIB
    assert ours.mapped_bytes == ours.host.weights_bytes
    assert ours.growth_bytes == 512 * MIB  # what gridsched lets the prompt cache become
    assert estimate(geometry, "-c", "8192", "-np", "1", "-cram", "8192").growth_bytes == 8192 * MIB
    assert estimate(geometry, "-c", "8192", "-np", "1", "-cram", "0").growth_bytes == 0


def test_saved_states_of_windows_and_recurrent_layers_may_grow() -> None:
    """Each holds a slot's states, or its part of the window layers' caches; a plain model saves none."""
    hybrid = real("Qwen3.5-9B-Q4_K_M")
    saved = estimate(hybrid, "-c", "8192", "-np", "2", "-cram", "0", "--ctx-checkpoints", "3").growth_bytes
    assert saved == 3 * 2 * 24 * hybrid.state_bytes
    window = estimate(real("Gemma-3-4B-Q4_K_M"), "-c", "8192", "-np", "1", "-cram", "0", "--ctx-checkpoints", "1")
    assert window.growth_bytes == 29 * 4096 * 1536


@pytest.mark.parametrize(
    ("name", "words", "part"),
    [
        ("Gemma-3n-E2B-Q4_K_M", (), "of per-layer embeddings stay in host memory"),
        (
            "Llama-3.2-1B-Q4_K_M",
            (),
            "the token table of 205 MiB is held twice: in host memory, and as the output layer",
        ),
        (
            "Gemma-3-4B-Q4_K_M",
            (),
            "without --parallel there are 4 slots over one cache, and each window layer keeps 4608",
        ),
        ("Qwen3-8B-Q4_K_M", ("-ctk", "q8_0"), "a quantized cache reserves one layer's K and V in f16 beside it"),
    ],
)
def test_a_note_explains_what_surprises(name: str, words: tuple[str, ...], part: str) -> None:
    """What differs from the file's size, or from what a flag seems to promise."""
    assert any(part in note for note in estimate(real(name), "-c", "8192", *words).notes)
    plain = estimate(real("Llama-3.1-8B-Q4_K_M"), "-c", "8192", "-np", "1")
    assert plain.notes == ()
    alone = footprint(real("Llama-3.1-8B-Q4_K_M"), parse_flags(("-c", "8192", "-np", "1")), (HOST,), on_host=True)
    assert ["MiB of the weights are held twice" in note for note in alone.notes] == [True]


@pytest.mark.parametrize(("words", "on_host"), [((), True), (("-ngl", "0"), False)])
def test_a_table_that_is_there_once_is_not_said_to_be_there_twice(words: tuple[str, ...], on_host: bool) -> None:
    """Where no layer is on a card the token table serves as the output layer where it lies."""
    name = HOST if on_host else DeviceName("gpu0")
    found = footprint(real("Gemma-3n-E2B-Q4_K_M"), parse_flags(words), (name,), on_host=on_host)
    assert not any("token table" in note or "per-layer" in note for note in found.notes)


def test_no_note_speaks_of_a_cache_that_is_not_there() -> None:
    """Mamba has a state for each slot, an encoder has neither; no cache is kept in another type."""
    states = estimate(real("Mamba2-Codestral-7B-Q4_K_M"), "-c", "8192", "-ctk", "q8_0").notes
    assert states == ("without --parallel there are 4 slots, each with a state of its own",)
    assert estimate(real("nomic-embed-text-v1.5-F16")).notes == ("without --parallel there are 4 slots",)


@pytest.mark.parametrize(
    ("length", "value", "heads", "on"),
    [(128, 128, 32, True), (32, 32, 32, False), (160, 160, 32, False), (192, 128, 32, False), (256, 256, 8, True)],
)
def test_auto_flash_attention_depends_on_the_length_of_a_head(length: int, value: int, heads: int, on: bool) -> None:
    """CUDA has kernels for some lengths only; on the host there is always one."""
    sizes = {
        "block_count": 2,
        "embedding_length": 4096,
        "attention__head_count": heads,
        "attention__head_count_kv": heads,
    }
    geometry = model("llama", (), **sizes, attention__key_length=length, attention__value_length=value)
    assert estimate(geometry, "-c", "4096").flash_attn is on
    assert estimate(geometry, "-c", "4096", "-ngl", "0").flash_attn
    assert estimate(geometry, "-c", "4096", "-ctv", "q8_0").flash_attn


def test_E24_only_what_lies_in_the_file_may_be_given_back() -> None:
    """Not a second copy that is laid out anew, nor an adapter: both are memory of the process."""
    geometry = real("Qwen3-30B-A3B-Q4_K_M")
    plain = estimate(geometry, "-c", "8192", "-np", "1", "--cpu-moe")
    copied = estimate(geometry, "-c", "8192", "-np", "1", "--cpu-moe", "--no-host")
    assert copied.host.weights_bytes > plain.host.weights_bytes == plain.mapped_bytes == copied.mapped_bytes
    more = copied.host_need_bytes - plain.host_need_bytes
    assert more == copied.host.total_bytes - plain.host.total_bytes
