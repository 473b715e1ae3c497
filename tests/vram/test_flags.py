"""llama-server's command line, as far as it moves memory."""

import pytest

from gridsched.vram.flags import FlagError, LaunchFlags, parse_flags
from gridsched.vram.placement import home, place
from gridsched.vram.words import spelled
from tests.vram.models import real


def test_nothing_said_is_the_engines_defaults() -> None:
    """No flags: trained context, automatic slots, everything offloaded."""
    assert parse_flags(()) == LaunchFlags()
    assert (LaunchFlags().batch, LaunchFlags().ubatch, LaunchFlags().gpu_layers) == (2048, 512, None)


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ("-c 8192", "ctx_size", 8192),
        ("--ctx-size 0", "ctx_size", 0),
        ("--ctx-size=8192", "ctx_size", 8192),
        ("-np 3", "parallel", 3),
        ("-np -1", "parallel", None),
        ("-b 256", "batch", 256),
        ("--ubatch-size 128", "ubatch", 128),
        ("--n-gpu-layers 12", "gpu_layers", 12),
        ("-ngl all", "gpu_layers", None),
        ("-fa on", "flash_attn", "on"),
        ("--flash-attn 0", "flash_attn", "off"),
        ("-ctk q8_0", "cache_type_k", "q8_0"),
        ("--cache-type-v iq4_nl", "cache_type_v", "iq4_nl"),
        ("-kvu", "kv_unified", True),
        ("--no-kv-unified", "kv_unified", False),
        ("-nkvo", "kv_offload", False),
        ("--swa-full", "swa_full", True),
        ("--no-op-offload", "op_offload", False),
        ("-nr", "repack", False),
        ("--embeddings", "embeddings", True),
        ("--rerank", "reranking", True),
        ("--pooling last", "pooling", "last"),
        ("-sm none", "split_mode", "none"),
        ("-ts 3,1", "tensor_split", (3.0, 1.0)),
        ("--tensor-split 3/1", "tensor_split", (3.0, 1.0)),
        ("-mg 1", "main_gpu", 1),
        ("-dev none", "device_names", ("none",)),
        ("--mmproj a.gguf", "mmproj", "a.gguf"),
        ("--no-mmproj-offload", "mmproj_offload", False),
        ("-mmdev none", "mmproj_offload", False),
        ("--no-host", "host_buffer", False),
        ("--mlock", "load_mode", "mlock"),
        ("--no-mmap", "load_mode", "none"),
        ("-lm none --mmap", "load_mode", "mmap"),
        ("--load_mode dio", "load_mode", "dio"),
        ("--spec-type draft-mtp,ngram-mod", "spec_types", ("draft-mtp", "ngram-mod")),
    ],
)
def test_spellings_are_llama_servers(words: str, field: str, value: object) -> None:
    """Short, long and `--x=y`."""
    assert getattr(parse_flags(tuple(words.split())), field) == value


def test_E25_the_last_repeat_wins_in_either_form() -> None:
    """As the engine does it."""
    assert parse_flags(("-c", "4096", "--ctx-size=16384", "-c", "8192")).ctx_size == 8192
    assert parse_flags(("-nkvo", "--kv-offload")).kv_offload


def test_flags_that_move_no_memory_pass() -> None:
    """Sampling, templates, values that look like numbers: nothing of it is read or refused."""
    flags = ("--temp", "0.7", "--jinja", "--seed", "-1", "--chat-template", "x", "-c", "512", "--some-new-flag", "7")
    assert parse_flags(flags) == LaunchFlags(ctx_size=512)


def test_E20_an_unknown_cache_type_is_refused_with_the_known_ones() -> None:
    """q7_9 does not exist."""
    with pytest.raises(FlagError, match=r"--cache-type-k: 'q7_9' is not one of f32, f16, bf16, q8_0"):
        parse_flags(("--cache-type-k", "q7_9"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-c", "-c: needs a value"),
        ("-c many", "-c: 'many' is not a whole number of 0 or more"),
        ("-c -5", "-c: '-5' is not a whole number"),
        ("-c 99999999999", "is not a whole number of 0 to 2147483647"),
        ("-np 0", "-np: '0' is not a whole number of 1 or more"),
        ("-ngl most", "-ngl: 'most' is not a whole number of 0 or more or 'all'"),
        ("-fa maybe", "-fa: 'maybe' is not one of on, off, auto"),
        ("-ts 0,0", "has no positive proportion"),
        ("-ts a,b", "is not a list of proportions"),
        ("-ts -1,2", "or a negative one"),
        ("-ts nan", "has no positive proportion"),
        ("-sm sideways", "is not one of none, layer, row, tensor"),
        ("-ncmoe x", "-ncmoe: 'x' is not a whole number"),
        ("-ot exps", "'exps' is not <tensor name pattern>=<buffer type>"),
        ("-ot (=CPU", "is no regular expression to the engine: a group is not closed at position 1"),
        ("-ot exps=Elsewhere", "'Elsewhere' is no buffer type"),
        ("-ot exps=CUDA_Host", "'CUDA_Host' is no buffer type such as CPU or CUDA0"),
        ("-ot a{1,2}=CPU", "'a{1' is not <tensor name pattern>=<buffer type>"),
        ("-ts " + ",".join("1" * 16), "16 proportions are more than the engine takes (15)"),
        ("-fa off -ctv q8_0", "--cache-type-v: q8_0 needs flash attention"),
    ],
)
def test_bad_values_are_refused_by_flag(words: str, message: str) -> None:
    """The error begins with the flag as it was written."""
    with pytest.raises(FlagError) as caught:
        parse_flags(tuple(words.split()))
    assert message in str(caught.value)


def test_overrides_keep_their_order() -> None:
    """The first that matches wins, so that their order is their meaning; the engine appends every repeat."""
    overrides = parse_flags(("-ot", r"blk\.1\.=CUDA1,exps=CPU", "-ncmoe", "12", "--cpu-moe", "-ot", "a=CPU")).overrides
    assert [override.device for override in overrides] == [1, None, None, None, None]
    assert overrides[3].pattern.search("blk.7.ffn_gate_up_exps.weight")
    assert not overrides[3].pattern.search("blk.7.ffn_up_shexp.weight")


@pytest.mark.parametrize("count", [1, 2, 9, 10, 11, 19, 20, 45, 99, 100, 101, 110, 999, 1000, 1203])
def test_the_first_layers_are_those_below_the_count(count: int) -> None:
    """One pattern for them all, however many: experts with -ncmoe, dense tensors with -ncffn."""
    (experts,) = parse_flags(("-ncmoe", str(count))).overrides
    held = [index for index in range(1300) if experts.pattern.search(f"blk.{index}.ffn_up_exps.weight")]
    assert held == list(range(count))
    (dense,) = parse_flags(("--n-cpu-ffn", str(count))).overrides
    assert dense.pattern.search(f"blk.{count - 1}.ffn_gate.weight")
    assert not dense.pattern.search(f"blk.{count}.ffn_gate.weight")


def test_no_layers_are_no_override() -> None:
    """-ncmoe 0 does nothing, and does not count as an override."""
    assert parse_flags(("-ncmoe", "0")).overrides == ()


def test_metadata_that_is_overridden_is_said() -> None:
    """The tokenizer's moves no memory; the rest is planned as the file has it, and a note says so."""
    words = ("--override-kv", "tokenizer.ggml.add_bos_token=bool:false,llama.block_count=int:2")
    assert parse_flags(words).uncounted == ("what --override-kv makes of llama.block_count is not counted",)


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        ("-hf a/b", "name it as the model's path"),
        ("--hf-repo=a/b", "name it as the model's path"),
        ("-mu http://x", "name it as the model's path"),
        ("--model_url http://x", "name it as the model's path"),
        ("--gpt-oss-20b-default", "name it as the model's path"),
        ("-hfd a/b", "--model-draft"),
        ("--mmproj-url http://x", "the model's mmproj"),
        ("--rpc h:1", "memory of other machines"),
        ("--models-max 2", "gridsched itself loads models"),
        ("--kv-unified-per-slot 4096", "ctx_per_slot"),
        ("--mmproj-device CUDA1", "on the first device of a launch"),
        ("-fit on", "the engine's own fitting"),
        ("--fit maybe", "the engine's own fitting"),
    ],
)
def test_what_the_engine_would_decide_itself_is_refused(words: str, instead: str) -> None:
    """Models that it would fetch, machines that it would use, launches that it would change; with what to do."""
    with pytest.raises(FlagError) as caught:
        parse_flags(tuple(words.split()))
    assert instead in caught.value.message
    assert caught.value.flag == words.split(maxsplit=1)[0].partition("=")[0]


def test_pictures_that_are_not_planned_as_told_are_said() -> None:
    """Their sizes are the projector's."""
    words = ("--image-max-tokens", "1024", "--mtmd-batch-max-tokens=512")
    assert len(parse_flags(words).uncounted) == 2


def test_the_engines_own_fitting_may_be_switched_off_again() -> None:
    """That is what gridsched says itself; its targets then mean nothing."""
    assert parse_flags(("-fit", "off", "--fit-target", "1024", "-fitc", "4096")) == LaunchFlags()


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ("-md small.gguf", "model", "small.gguf"),
        ("--model-draft=small.gguf", "model", "small.gguf"),
        ("--spec-draft-model small.gguf", "model", "small.gguf"),
        ("-cd 8192", "ctx_size", 8192),
        ("-ngld 99 --spec-draft-ngl 7", "gpu_layers", 7),
        ("--n-gpu-layers-draft all", "gpu_layers", None),
        ("-ctkd q8_0", "cache_type_k", "q8_0"),
        ("--spec-draft-type-v q4_0", "cache_type_v", "q4_0"),
        ("-devd CUDA1,CUDA0", "device_names", ("CUDA1", "CUDA0")),
    ],
)
def test_E17_what_drafts_has_flags_of_its_own(words: str, field: str, value: object) -> None:
    """Model, context, placement and cache of the second model, in every spelling; the first model's stay."""
    flags = parse_flags(("-c", "512", *words.split()))
    assert getattr(flags.draft, field) == value
    assert (flags.ctx_size, flags.gpu_layers, flags.cache_type_k, flags.overrides) == (512, None, "f16", ())


def test_a_draft_models_overrides_are_its_own() -> None:
    """-otd, -cmoed and -ncmoed in their order, beside -ot."""
    flags = parse_flags(("-otd", "attn=CUDA0", "-ot", "ffn=CPU", "-ncmoed", "1", "-cmoed"))
    assert flags.draft is not None
    assert [override.pattern.text[:5] for override in flags.draft.overrides] == ["attn", r"blk\.", r"\.ffn"]
    assert len(flags.overrides) == 1


def test_nothing_said_of_drafting_is_no_draft() -> None:
    """Without any of its flags there is none; the depth has the engine's own default."""
    assert (parse_flags(("-c", "512")).draft, LaunchFlags().draft_max) == (None, 3)
    assert parse_flags(("--draft-max", "16", "--spec-draft-n-max", "5")).draft_max == 5


def test_every_repeat_of_a_list_counts() -> None:
    """Adapters, control vectors and ways of drafting: the engine appends, in both forms of a repeat."""
    flags = parse_flags(
        ("--lora", "a.gguf,b.gguf", "--lora-scaled=c.gguf:0.5", "--control-vector-scaled", "v.gguf:2", "--lora", "d")
    )
    assert flags.loras == ("a.gguf", "b.gguf", "c.gguf", "d")
    assert flags.control_vectors == ("v.gguf",)
    assert parse_flags(("--spec-type", "draft-mtp", "--spec-type", "ngram-mod")).spec_types == (
        "draft-mtp",
        "ngram-mod",
    )


def test_host_caches_are_read() -> None:
    """The prompt cache's cap and the saved states of a slot; nothing said is not the same as the default."""
    flags = parse_flags(("-cram", "0", "--swa-checkpoints", "2"))
    assert (flags.cache_ram_mib, flags.ctx_checkpoints) == (0, 2)
    assert (LaunchFlags().cache_ram_mib, LaunchFlags().ctx_checkpoints) == (None, None)
    assert parse_flags(("--cache-ram", "-1")).cache_ram_mib == -1


def test_E23_automatic_layers_are_fixed_to_all() -> None:
    """The footprint must be known beforehand: the number is ours, and said. A negative one is all to the engine."""
    for word in ("auto", "-1", "-7"):
        flags = parse_flags(("-ngl", word))
        assert flags.gpu_layers is None
        assert "planned as all layers" in flags.uncounted[0]
    assert parse_flags(("-ngl", "all")).uncounted == ()


@pytest.mark.parametrize(
    ("word", "output", "first_block", "offloaded"),
    [("0", None, None, 0), ("1", 0, None, 1), ("31", 0, None, 31), ("32", 0, None, 32)]
    + [(word, 0, 0, 33) for word in ("33", "99", "all", "auto", "-1")],
)
def test_E23_layers_are_counted_from_the_output(
    word: str, output: int | None, first_block: int | None, offloaded: int
) -> None:
    """The last n of 32 blocks and the output layer: 1 is the output alone, 32 leaves block 0 on the host."""
    placement = place(real("Llama-3.1-8B-Q8_0"), parse_flags(("-ngl", word)), 1)
    assert (placement.output, placement.layers[0]) == (output, first_block)
    assert sum(device is not None for device in placement.layers) == offloaded
    token_table = next(w for w in real("Llama-3.1-8B-Q8_0").weights if w.name == "token_embd.weight")
    assert home(placement, token_table) is None


def test_automatic_slots_share_one_cache_whatever_else_is_said() -> None:
    """Without -np, and with a negative one, the engine has four slots over one cache: -no-kvu is overruled."""
    assert parse_flags(("-no-kvu",)).unified
    assert parse_flags(("-np", "-3", "-no-kvu")).unified
    assert not parse_flags(("-np", "4")).unified
    assert parse_flags(("-np", "4", "-kvu")).unified


def test_a_switch_takes_no_value() -> None:
    """`--swa-full=on` is nothing that the engine knows."""
    with pytest.raises(FlagError, match="--swa-full: takes no value"):
        parse_flags(("--swa-full=on",))


def test_the_engine_gets_two_words_for_one_with_a_sign() -> None:
    """It does not know `--x=y`; a short flag, or a value, keeps its sign."""
    assert spelled(("--ctx-size=8192", "-ot", "a=CPU", "--override-tensor=b=CPU")) == (
        *("--ctx-size", "8192", "-ot", "a=CPU", "--override-tensor", "b=CPU"),
    )


@pytest.mark.parametrize(
    ("text", "shares"), [("3,1", (3.0, 1.0)), ("3//1,", (3.0, 1.0)), ("1", (1.0,)), (",".join("1" * 15), (1.0,) * 15)]
)
def test_proportions_are_parted_as_the_engine_parts_them(text: str, shares: tuple[float, ...]) -> None:
    """By commas and slashes, several of them together."""
    assert parse_flags(("-ts", text)).tensor_split == shares


def test_reranking_pools_by_rank_unless_told_otherwise_later() -> None:
    """The engine's flag sets both, and the last word on pooling wins."""
    assert parse_flags(("--pooling", "mean", "--reranking")).pooling == "rank"
    assert parse_flags(("--reranking", "--pooling", "mean")).pooling == "mean"


def test_overrides_find_their_buffers_by_the_engines_names() -> None:
    """Which card of the launch Vulkan1 is depends on the launch; what is not in it is refused with what there is."""
    flags = parse_flags(("-ot", "a=Vulkan1,b=CPU", "-otd", "c=Vulkan0"))
    placed = flags.for_devices(("Vulkan1", "Vulkan0"))
    assert [override.device for override in placed.overrides] == [0, None]
    assert placed.draft is not None
    assert placed.draft.overrides[0].device == 1
    with pytest.raises(FlagError, match=r"there is no buffer type 'Vulkan\d' \(there is CPU, CUDA0\)"):
        flags.for_devices(("CUDA0",))


def test_a_launchs_cards_are_not_chosen_by_flags() -> None:
    """--device may say what is so, or none; a draft's may be any of the launch."""
    assert parse_flags(("-dev", "CUDA0,CUDA1")).for_devices(("CUDA0", "CUDA1")).device_names == ("CUDA0", "CUDA1")
    with pytest.raises(FlagError, match=r"--device: CUDA1 is not what this launch runs on \(CUDA0\)"):
        parse_flags(("-dev", "CUDA1")).for_devices(("CUDA0",))
    with pytest.raises(FlagError, match=r"--device-draft: there is no 'CUDA1' \(there is CUDA0\)"):
        parse_flags(("-devd", "CUDA1")).for_devices(("CUDA0",))
