"""llama-server's command line, as far as it moves memory."""

import pytest

from gridsched.vram.flags import FlagError, LaunchFlags, parse_flags


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
        ("-c 99999999999", "is not a whole number"),
        ("-np 0", "-np: '0' is not a whole number of 1 or more or '-1'"),
        ("-ngl most", "-ngl: 'most' is not a whole number of 0 or more or 'all'"),
        ("-fa maybe", "-fa: 'maybe' is not one of on, off, auto"),
        ("-ts 0,0", "has no positive proportion"),
        ("-ts a,b", "is not a list of proportions"),
        ("-ts -1,2", "or a negative one"),
        ("-ts nan", "has no positive proportion"),
        ("-sm sideways", "is not one of none, layer, row, tensor"),
        ("-ncmoe x", "-ncmoe: 'x' is not a whole number"),
        ("-ot exps", "'exps' is not <tensor name pattern>=<buffer type>"),
        ("-ot (=CPU", "is no regular expression"),
        ("-ot exps=Elsewhere", "'Elsewhere' is no buffer type"),
        ("-fa off -ctv q8_0", "--cache-type-v: q8_0 needs flash attention"),
    ],
)
def test_bad_values_are_refused_by_flag(words: str, message: str) -> None:
    """The error begins with the flag as it was written."""
    with pytest.raises(FlagError) as caught:
        parse_flags(tuple(words.split()))
    assert message in str(caught.value)


def test_overrides_keep_their_order() -> None:
    """The first that matches wins, so that their order is their meaning."""
    overrides = parse_flags(("-ot", r"blk\.1\.=CUDA1,exps=CPU", "-ncmoe", "2", "--cpu-moe")).overrides
    assert [override.device for override in overrides] == [1, None, None, None, None]
    assert overrides[2].pattern.search("blk.0.ffn_up_exps.weight")
    assert not overrides[2].pattern.search("blk.1.ffn_up_exps.weight")
    assert overrides[4].pattern.search("blk.7.ffn_gate_up_exps.weight")
    assert not overrides[4].pattern.search("blk.7.ffn_up_shexp.weight")


def test_memory_that_is_not_counted_is_said() -> None:
    """A file that only the engine would fetch is a note, not a silence."""
    assert parse_flags(("-mmu", "http://x", "--override-kv=a=int:1")).uncounted == (
        "the memory that -mmu takes is not counted",
        "the memory that --override-kv takes is not counted",
    )


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
    assert [override.pattern.pattern[:5] for override in flags.draft.overrides] == ["attn", r"blk\.", r"\.ffn"]
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
    """The footprint must be known beforehand: the number is ours, and said."""
    for word in ("auto", "-1"):
        flags = parse_flags(("-ngl", word))
        assert flags.gpu_layers is None
        assert "planned as all layers" in flags.uncounted[0]
