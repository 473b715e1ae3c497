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
class LaunchFlags:
    """What the command line says about memory; None means that it does not say.

    `ctx_size` 0 is the trained length. `gpu_layers` None is all. `device_names` empty means every device, `("none",)`
    the host alone. `uncounted` are sentences about flags whose memory is not in the estimate.
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


_VALUES: tuple[tuple[str, str, _Reader], ...] = (
    ("-c --ctx-size", "ctx_size", _count(0)),
    ("-np --parallel", "parallel", _count(1, {"-1": None})),
    ("-b --batch-size", "batch", _count(1)),
    ("-ub --ubatch-size", "ubatch", _count(1)),
    ("-ngl --gpu-layers --n-gpu-layers", "gpu_layers", _count(0, {"all": None, "auto": None, "-1": None, "-2": None})),
    ("-fa --flash-attn", "flash_attn", _flash_attn),
    ("-ctk --cache-type-k", "cache_type_k", _one_of(*CACHE_TYPES)),
    ("-ctv --cache-type-v", "cache_type_v", _one_of(*CACHE_TYPES)),
    ("-sm --split-mode", "split_mode", _one_of("none", "layer", "row", "tensor")),
    ("-ts --tensor-split", "tensor_split", _shares),
    ("-mg --main-gpu", "main_gpu", _count(0)),
    ("-dev --device", "device_names", _names),
    ("-mm --mmproj", "mmproj", _text),
    ("--pooling", "pooling", _one_of("none", "mean", "cls", "last", "rank")),
    ("--spec-type", "spec_types", _names),
)
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
_OVERRIDES = {
    spelling: kind
    for kind, spellings in {
        "tensor": "-ot --override-tensor",
        "experts": "-cmoe --cpu-moe",
        "some experts": "-ncmoe --n-cpu-moe",
    }.items()
    for spelling in spellings.split()
}
_UNCOUNTED = frozenset(
    (
        *("--lora", "--lora-scaled", "--control-vector", "--control-vector-scaled", "--override-kv", "--rpc"),
        *("-md", "--model-draft", "--spec-draft-model", "-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf"),
        *("-mmu", "--mmproj-url", "-mv", "--model-vocoder"),
    )
)
_BY_SPELLING = {name: (target, reader) for spellings, target, reader in _VALUES for name in spellings.split()}
_SWITCH_BY_SPELLING = {name: (target, value) for spellings, target, value in _SWITCHES for name in spellings.split()}


def parse_flags(flags: tuple[str, ...]) -> LaunchFlags:
    """What these words of a llama-server command line mean for memory. Raises FlagError."""
    values: dict[str, object] = {}
    overrides: list[TensorOverride] = []
    uncounted: list[str] = []
    words = _Words(flags)
    for flag in words:
        if flag in _BY_SPELLING:
            target, reader = _BY_SPELLING[flag]
            text = words.value(flag)
            values[target] = reader(flag, text)
            if target == "gpu_layers" and text in ("auto", "-1", "-2"):
                uncounted.append(f"{flag} {text} is planned as all layers")
        elif flag in _SWITCH_BY_SPELLING:
            target, switch = _SWITCH_BY_SPELLING[flag]
            values[target] = switch
        elif flag in _OVERRIDES:
            overrides += _read_override(flag, words)
        elif flag in _UNCOUNTED:
            uncounted.append(f"the memory that {flag} takes is not counted")
    result = replace(LaunchFlags(), **values, overrides=tuple(overrides), uncounted=tuple(uncounted))  # type: ignore[arg-type]  # the tables pair each field with a reader of its type
    _check_together(result)
    return result


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


def _read_override(flag: str, words: _Words) -> list[TensorOverride]:
    if _OVERRIDES[flag] == "experts":
        return [TensorOverride(re.compile(EXPERT_TENSORS), None)]
    text = words.value(flag)
    if _OVERRIDES[flag] == "some experts":
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
