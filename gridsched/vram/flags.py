"""Reads llama-server's command line for what moves memory.

Owns the spellings (short, long, `--x=y`; the last repeat wins, except for tensor overrides, of which the first match
wins), their values and their refusal. Flags that move no memory pass through untouched; flags that move memory and are
not counted become notes. Reads no environment: the engine's children get none of its `LLAMA_ARG_*` variables.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from gridsched.vram.quants import CACHE_TYPES

DEFAULT_BATCH = 2048
DEFAULT_UBATCH = 512
DEFAULT_DRAFT_MAX = 3
AUTO_PARALLEL = 4  # what llama-server makes of no `-np`: four slots over one unified cache
EXPERT_TENSORS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"  # llama.cpp's own pattern for --cpu-moe
MAX_COUNT = 2**31 - 1


class FlagError(Exception):
    """A flag that llama-server would refuse, or that cannot be planned."""

    def __init__(self, flag: str, message: str) -> None:
        super().__init__(f"{flag}: {message}")
        self.flag = flag
        self.message = message


@dataclass(frozen=True, slots=True)
class TensorOverride:
    """Tensors whose names match go to a device (counted from 0), or to the host where `device` is None."""

    pattern: re.Pattern[str]
    device: int | None


@dataclass(frozen=True, slots=True)
class DraftFlags:
    """What the command line says about the model or block that drafts; it has its own placement and cache.

    `model` is the draft model's file as written, None where the model drafts for itself. `ctx_size` None is the model's
    own context. `gpu_layers` and `device_names` are as in `LaunchFlags`.
    """

    model: str | None = None
    ctx_size: int | None = None
    gpu_layers: int | None = None
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    device_names: tuple[str, ...] = ()
    overrides: tuple[TensorOverride, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchFlags:
    """What the command line says about memory; None means that it does not say.

    `ctx_size` 0 is the trained length. `gpu_layers` None is all. `device_names` empty means every device, `("none",)`
    the host alone. `draft` is None where no flag speaks of drafting's model; `draft_max` is how many tokens are drafted
    at once. `loras` and `control_vectors` are files as written. `cache_ram_mib` caps the prompt cache on the host (-1:
    no cap), `ctx_checkpoints` counts the saved states of a slot. `uncounted` are sentences about flags whose memory is
    not in the estimate.
    """

    ctx_size: int | None = None
    parallel: int | None = None
    batch: int = DEFAULT_BATCH
    ubatch: int = DEFAULT_UBATCH
    gpu_layers: int | None = None
    flash_attn: str = "auto"
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    kv_unified: bool | None = None
    kv_offload: bool = True
    swa_full: bool = False
    op_offload: bool = True
    embeddings: bool = False
    reranking: bool = False
    pooling: str | None = None
    split_mode: str = "layer"
    tensor_split: tuple[float, ...] = ()
    main_gpu: int = 0
    device_names: tuple[str, ...] = ()
    overrides: tuple[TensorOverride, ...] = ()
    repack: bool = True
    mmproj: str | None = None
    mmproj_offload: bool = True
    spec_types: tuple[str, ...] = ()
    draft: DraftFlags | None = None
    draft_max: int = DEFAULT_DRAFT_MAX
    loras: tuple[str, ...] = ()
    control_vectors: tuple[str, ...] = ()
    cache_ram_mib: int | None = None
    ctx_checkpoints: int | None = None
    uncounted: tuple[str, ...] = ()

    @property
    def one_output_per_token(self) -> bool:
        """Embedding and reranking servers make an output for every token of a batch."""
        return self.embeddings or self.reranking


_Value: TypeAlias = str | int | tuple[float, ...] | tuple[str, ...] | None
_Reader: TypeAlias = Callable[[str, str], _Value]


def _count(least: int, also: dict[str, int | None] | None = None) -> _Reader:
    words = also or {}

    def read(flag: str, text: str) -> int | None:
        if text in words:
            return words[text]
        if not re.fullmatch(r"[+-]?\d{1,12}", text) or not least <= int(text) <= MAX_COUNT:
            alternatives = "".join(f" or {word!r}" for word in words)
            raise FlagError(flag, f"{text!r} is not a whole number of {least} or more{alternatives}")
        return int(text)

    return read


def _one_of(*words: str) -> _Reader:
    def read(flag: str, text: str) -> str:
        if text not in words:
            raise FlagError(flag, f"{text!r} is not one of {', '.join(words)}")
        return text

    return read


def _flash_attn(flag: str, text: str) -> str:
    words = {"on": "on", "off": "off", "auto": "auto", "1": "on", "0": "off", "-1": "auto"}
    words |= {"true": "on", "false": "off", "enabled": "on", "disabled": "off"}
    if text not in words:
        raise FlagError(flag, f"{text!r} is not one of on, off, auto")
    return words[text]


def _shares(flag: str, text: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(part) for part in re.split(r"[,/]", text))
    except ValueError:
        raise FlagError(flag, f"{text!r} is not a list of proportions such as 3,1") from None
    if not all(0 <= share < float("inf") for share in shares) or not sum(shares):
        raise FlagError(flag, f"{text!r} has no positive proportion, or a negative one")
    return shares


def _text(flag: str, text: str) -> str:  # noqa: ARG001 - every reader is called with the flag it reads for
    return text


def _names(flag: str, text: str) -> tuple[str, ...]:  # noqa: ARG001 - the same
    return tuple(part.strip() for part in text.split(",") if part.strip())


_LAYERS = _count(0, {"all": None, "auto": None, "-1": None, "-2": None})
_CACHE_TYPE = _one_of(*CACHE_TYPES)

_VALUES: tuple[tuple[str, str, _Reader], ...] = (
    ("-c --ctx-size", "ctx_size", _count(0)),
    ("-np --parallel", "parallel", _count(1, {"-1": None})),
    ("-b --batch-size", "batch", _count(1)),
    ("-ub --ubatch-size", "ubatch", _count(1)),
    ("-ngl --gpu-layers --n-gpu-layers", "gpu_layers", _LAYERS),
    ("-fa --flash-attn", "flash_attn", _flash_attn),
    ("-ctk --cache-type-k", "cache_type_k", _CACHE_TYPE),
    ("-ctv --cache-type-v", "cache_type_v", _CACHE_TYPE),
    ("-sm --split-mode", "split_mode", _one_of("none", "layer", "row", "tensor")),
    ("-ts --tensor-split", "tensor_split", _shares),
    ("-mg --main-gpu", "main_gpu", _count(0)),
    ("-dev --device", "device_names", _names),
    ("-mm --mmproj", "mmproj", _text),
    ("--pooling", "pooling", _one_of("none", "mean", "cls", "last", "rank")),
    ("--spec-draft-n-max --draft --draft-n --draft-max", "draft_max", _count(0)),
    ("-cram --cache-ram", "cache_ram_mib", _count(-1)),
    ("-ctxcp --ctx-checkpoints --swa-checkpoints", "ctx_checkpoints", _count(0)),
)
_DRAFT_VALUES: tuple[tuple[str, str, _Reader], ...] = (
    ("-md --model-draft --spec-draft-model", "model", _text),
    ("-cd --ctx-size-draft --spec-draft-ctx-size", "ctx_size", _count(0)),
    ("-ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl", "gpu_layers", _LAYERS),
    ("-ctkd --cache-type-k-draft --spec-draft-type-k", "cache_type_k", _CACHE_TYPE),
    ("-ctvd --cache-type-v-draft --spec-draft-type-v", "cache_type_v", _CACHE_TYPE),
    ("-devd --device-draft --spec-draft-device", "device_names", _names),
)
# Flags of which every repeat counts: the engine appends.
_LISTS = {
    "--lora": "loras",
    "--lora-scaled": "loras",
    "--control-vector": "control_vectors",
    "--control-vector-scaled": "control_vectors",
    "--spec-type": "spec_types",
}
_SWITCHES: tuple[tuple[str, str, bool], ...] = (
    ("-kvu --kv-unified", "kv_unified", True),
    ("-no-kvu --no-kv-unified", "kv_unified", False),
    ("-kvo --kv-offload", "kv_offload", True),
    ("-nkvo --no-kv-offload", "kv_offload", False),
    ("--swa-full", "swa_full", True),
    ("--op-offload", "op_offload", True),
    ("--no-op-offload", "op_offload", False),
    ("--repack", "repack", True),
    ("-nr --no-repack", "repack", False),
    ("--embedding --embeddings", "embeddings", True),
    ("--rerank --reranking", "reranking", True),
    ("--mmproj-offload", "mmproj_offload", True),
    ("--no-mmproj-offload", "mmproj_offload", False),
)
# Where each spelling of an override puts its patterns, and how it is to be read.
_OVERRIDES = {
    spelling: (ours, kind)
    for ours, kind, spellings in (
        (True, "tensor", "-ot --override-tensor"),
        (True, "experts", "-cmoe --cpu-moe"),
        (True, "some experts", "-ncmoe --n-cpu-moe"),
        (False, "tensor", "-otd --override-tensor-draft --spec-draft-override-tensor"),
        (False, "experts", "-cmoed --cpu-moe-draft --spec-draft-cpu-moe"),
        (False, "some experts", "-ncmoed --n-cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe"),
    )
    for spelling in spellings.split()
}
_UNCOUNTED = frozenset(
    (
        *("--override-kv", "--rpc", "-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf"),
        *("-mmu", "--mmproj-url", "-mv", "--model-vocoder"),
    )
)
_BY_SPELLING = {
    name: (ours, target, reader)
    for ours, table in ((True, _VALUES), (False, _DRAFT_VALUES))
    for spellings, target, reader in table
    for name in spellings.split()
}
_SWITCH_BY_SPELLING = {name: (target, value) for spellings, target, value in _SWITCHES for name in spellings.split()}


def parse_flags(flags: tuple[str, ...]) -> LaunchFlags:
    """What these words of a llama-server command line mean for memory. Raises FlagError."""
    main: dict[str, object] = {}
    draft: dict[str, object] = {}
    overrides: dict[bool, list[TensorOverride]] = {True: [], False: []}
    lists: dict[str, tuple[str, ...]] = {}
    uncounted: list[str] = []
    words = _Words(flags)
    for flag in words:
        if flag in _BY_SPELLING:
            ours, target, reader = _BY_SPELLING[flag]
            text = words.value(flag)
            (main if ours else draft)[target] = reader(flag, text)
            if target == "gpu_layers" and text in ("auto", "-1", "-2"):
                uncounted.append(f"{flag} {text} is planned as all layers")
        elif flag in _SWITCH_BY_SPELLING:
            target, switch = _SWITCH_BY_SPELLING[flag]
            main[target] = switch
        elif flag in _LISTS:
            lists[_LISTS[flag]] = lists.get(_LISTS[flag], ()) + _listed(flag, words.value(flag))
        elif flag in _OVERRIDES:
            ours, kind = _OVERRIDES[flag]
            overrides[ours] += _read_override(flag, kind, words)
        elif flag in _UNCOUNTED:
            uncounted.append(f"the memory that {flag} takes is not counted")
    if overrides[False]:
        draft["overrides"] = tuple(overrides[False])
    if draft:
        main["draft"] = replace(DraftFlags(), **draft)  # type: ignore[arg-type]  # as below
    result = replace(LaunchFlags(), **main, **lists, overrides=tuple(overrides[True]), uncounted=tuple(uncounted))  # type: ignore[arg-type]  # the tables pair each field with a reader of its type
    _check_together(result)
    return result


def _listed(flag: str, text: str) -> tuple[str, ...]:
    """The entries of a list: words, or files of which some are followed by their scale."""
    entries = _names(flag, text)
    return tuple(entry.rpartition(":")[0] or entry for entry in entries) if flag.endswith("-scaled") else entries


class _Words:
    """The command line as flags and their values. `--x=y` counts as two words."""

    def __init__(self, flags: tuple[str, ...]) -> None:
        self._words = flags
        self._next = 0
        self._inline: str | None = None

    def __iter__(self) -> Iterator[str]:
        while self._next < len(self._words):
            word = self._words[self._next]
            self._next += 1
            name, sign, text = word.partition("=")
            self._inline = text if sign and name.startswith("--") else None
            yield name if self._inline is not None else word

    def value(self, flag: str) -> str:
        """The value of the flag that was given last."""
        if self._inline is not None:
            return self._inline
        if self._next >= len(self._words):
            raise FlagError(flag, "needs a value")
        self._next += 1
        return self._words[self._next - 1]


def _read_override(flag: str, kind: str, words: _Words) -> list[TensorOverride]:
    if kind == "experts":
        return [TensorOverride(re.compile(EXPERT_TENSORS), None)]
    text = words.value(flag)
    if kind == "some experts":
        if not re.fullmatch(r"\d{1,4}", text):
            raise FlagError(flag, f"{text!r} is not a whole number of 0 or more")
        return [TensorOverride(re.compile(rf"blk\.{index}{EXPERT_TENSORS}"), None) for index in range(int(text))]
    return [_read_tensor_override(flag, part) for part in text.split(",")]


def _read_tensor_override(flag: str, text: str) -> TensorOverride:
    pattern, sign, buffer = text.rpartition("=")
    if not sign or not pattern or not buffer:
        raise FlagError(flag, f"{text!r} is not <tensor name pattern>=<buffer type>")
    try:
        compiled = re.compile(pattern)
    except re.error as problem:
        raise FlagError(flag, f"{pattern!r} is no regular expression: {problem}") from None
    index = re.fullmatch(r"[A-Za-z]+(\d+)", buffer)
    if index is None and not buffer.startswith("CPU") and not buffer.endswith("_Host"):
        raise FlagError(flag, f"{buffer!r} is no buffer type such as CPU or CUDA0")
    return TensorOverride(compiled, int(index.group(1)) if index else None)


def _check_together(flags: LaunchFlags) -> None:
    """Combinations that llama-server refuses whatever the model is."""
    if flags.flash_attn == "off" and CACHE_TYPES[flags.cache_type_v].is_quantized:
        raise FlagError("--cache-type-v", f"{flags.cache_type_v} needs flash attention, which --flash-attn turns off")
