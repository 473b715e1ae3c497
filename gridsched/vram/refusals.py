"""Launches that the engine refuses, or on which it aborts, for this model: told before they are tried.

Owns rules that need the model, or the number of devices; what a flag may say by itself is `flags`' to refuse, and what
drafting needs is `drafting`'s. Each rule is one that llama.cpp checks or asserts when it loads a model or makes its
context (b11434 unless said otherwise), with the reason that a person can act on. What an engine merely ignores or
corrects is no refusal.
"""

from gridsched.vram.context import Context
from gridsched.vram.flags import LaunchFlags
from gridsched.vram.geometry import Geometry
from gridsched.vram.quants import CACHE_TYPES
from gridsched.vram.words import FlagError

MAX_SLOTS = 256  # LLAMA_MAX_SEQ
_GRAPH_PRIMES = (1031, 2053, 4099, 8209, 16411, 32771, 65537)  # sizes that ggml has for its hash tables
_NODES_A_TENSOR = 8  # what llama_context::graph_max_nodes reckons with
_LEAST_NODES = 1024
_ROTATED_MULTIPLE = 64  # a quantized cache's heads are rotated where their length is a multiple of this
_K_EQUALS_V = ("deepseek4",)  # beside those with latent attention
_NO_TENSOR_SPLIT = frozenset(
    (
        *("grok", "mpt", "plamo2", "minicpm3", "gemma3n", "mamba", "mamba2", "jamba", "falcon-h1", "olmo2", "olmoe"),
        *("deepseek2", "deepseek32", "hy-v4", "dots3note", "glm-dsa", "bitnet", "t5", "nemotron_h", "nemotron_h_moe"),
        *("granitehybrid", "minimax-01", "minimax-m2", "minimax-m3", "mistral4", "kimi-linear", "bailingmoe3"),
        *("kimi-k3", "glm5-next", "qwen3tts", "qwen4exp"),
    )
)
"""Architectures whose loader has no `--split-mode tensor` (llama-arch's list)."""


def check_launch(geometry: Geometry, flags: LaunchFlags, context: Context, *, devices: int) -> None:
    """Raise FlagError with the rule, if the engine would not start this launch on so many devices (0: the host)."""
    _check_slots(geometry, flags, context)
    _check_cache_types(geometry, flags, context)
    _check_devices(geometry, flags, devices)
    _check_graph(geometry, flags, context)


def _check_slots(geometry: Geometry, flags: LaunchFlags, context: Context) -> None:
    if context.slots > MAX_SLOTS:
        raise FlagError("--parallel", f"{context.slots} slots are more than the engine has ({MAX_SLOTS})")
    if flags.ctx_size == 0 and not geometry.context_train:
        raise FlagError("--ctx-size", "0 is the trained length, which this model's file does not give")
    pooling = flags.pooling or geometry.pooling
    averages = pooling == "mean" or (pooling == "rank" and geometry.architecture == "modern-bert")
    tokens = min(context.ubatch, context.ctx_size)
    if flags.one_output_per_token and averages and tokens % context.slots:
        more = -(-tokens // context.slots) * context.slots
        raise FlagError(
            "--ubatch-size",
            f"mean pooling needs a micro-batch that the slots divide, and {context.slots} do not divide {tokens}: "
            f"{more} would do (the engine aborts at its start)",
        )


def _check_cache_types(geometry: Geometry, flags: LaunchFlags, context: Context) -> None:
    key, value = CACHE_TYPES[flags.cache_type_k], CACHE_TYPES[flags.cache_type_v]
    if value.is_quantized and not context.flash_attn:
        why = "which --flash-attn turns off" if flags.flash_attn == "off" else "which this architecture does not have"
        raise FlagError("--cache-type-v", f"{flags.cache_type_v} needs flash attention, {why}")
    if (geometry.mla or geometry.architecture in _K_EQUALS_V) and key != value:
        raise FlagError(
            "--cache-type-v",
            f"a model that caches K alone takes one type for both, not {flags.cache_type_k} and {flags.cache_type_v}",
        )
    if flags.flash_attn == "off" or not (key.is_quantized or value.is_quantized):
        return
    for layer in geometry.layers[: geometry.blocks]:
        sides = (("K", "--cache-type-k", key, layer.key_length), ("V", "--cache-type-v", value, layer.value_length))
        for side, flag, kind, length in sides:
            if kind.is_quantized and length % kind.block_values:
                raise FlagError(
                    flag,
                    f"{kind.name.lower()} packs {kind.block_values} values at a time, and this model's heads have "
                    f"{length} values of {side}",
                )


def _check_devices(geometry: Geometry, flags: LaunchFlags, devices: int) -> None:
    if flags.device_names == ("none",):
        devices = 0
    if flags.split_mode == "none" and 0 < devices <= flags.main_gpu:
        there = f"{devices} device{'s' if devices != 1 else ''}"
        raise FlagError("--main-gpu", f"there is no device {flags.main_gpu}: this launch has {there}")
    if flags.split_mode == "row" and devices:
        # Current builds have row splits for no CUDA or Vulkan card ("does not support split buffers").
        raise FlagError("--split-mode", "a split by rows cannot be planned, and most engines refuse it: use layer")
    if flags.split_mode == "tensor":
        _check_tensor_split(geometry, flags, devices)
    if devices and flags.tensor_split and not any(flags.tensor_split[:devices]):
        raise FlagError("--tensor-split", f"none of this launch's {devices} devices has a part of the model")
    draft = flags.draft.overrides if flags.draft is not None else ()
    for override in (*flags.overrides, *draft):
        if override.device is not None and override.device >= devices:
            there = f"CPU and {devices} device{'s' if devices != 1 else ''}" if devices else "CPU alone"
            raise FlagError("--override-tensor", f"there is no buffer type {override.buffer!r} (there is {there})")


def _check_tensor_split(geometry: Geometry, flags: LaunchFlags, devices: int) -> None:
    if not devices:
        raise FlagError("--split-mode", "tensor needs a device")
    if flags.flash_attn == "off":
        raise FlagError("--split-mode", "tensor needs flash attention, which --flash-attn turns off")
    if geometry.architecture in _NO_TENSOR_SPLIT:
        raise FlagError("--split-mode", f"the engine has no tensor split for {geometry.architecture}: use layer")


def _check_graph(geometry: Geometry, flags: LaunchFlags, context: Context) -> None:
    """The scheduler's table has room for the graph's nodes and what they read, up to a prime above 8 a tensor.

    A model of few, fused tensors with many operations on each outgrows it: Phi-4 with a quantized cache and several
    streams needs 2063 places of 2053. The counts are phi3's, as the engine's own graphs have them: 29 nodes a layer
    (34 without flash attention), 2 more (1) for several streams, 6 for each side that is rotated, and 9 for the rest.
    """
    tensors = geometry.tensors
    fused = {"blk.0.attn_qkv.weight", "blk.0.ffn_up.weight"} <= tensors.named.keys()
    fused = fused and "blk.0.ffn_gate.weight" not in tensors.named
    if not fused or geometry.experts.count or geometry.state_bytes or not geometry.has_cache:
        return
    drafting = sum(part.tensors for block, part in tensors.blocks.items() if block >= geometry.blocks)
    weights = len(geometry.weights) - drafting
    layer = geometry.layers[0]
    rotated = sum(
        CACHE_TYPES[kind].is_quantized and length % _ROTATED_MULTIPLE == 0
        for kind, length in ((flags.cache_type_k, layer.key_length), (flags.cache_type_v, layer.value_length))
    )
    streams = context.streams > 1
    each = (29 + 2 * streams if context.flash_attn else 34 + streams) + 6 * rotated
    places = geometry.blocks * each + 9 + weights + 2 * geometry.blocks + 9 + rotated
    wanted = max(_LEAST_NODES, _NODES_A_TENSOR * weights)
    room = next((prime for prime in _GRAPH_PRIMES if prime >= wanted), wanted)
    if places > room:
        raise FlagError(
            "--parallel",
            f"with this cache and {context.streams} streams the engine aborts at its start: its graph needs {places} "
            f"places and has {room}; one slot, --kv-unified or an f16 cache would do",
        )
