"""Reads llama-server's command line for what moves memory.

Owns the flags, in their current and their older names, their values and their refusal. Of a repeated flag the last
wins; tensor overrides, adapters, control vectors and ways of drafting add up, and of overrides the first match wins.
Flags that move no memory pass through untouched; flags that move memory and are not counted become notes; flags that
make the engine load something that is not known here are refused. Which flags an engine knows, and what it makes of
them for one model, is for others. Reads no environment.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from gridsched.vram.patterns import Pattern, PatternError
from gridsched.vram.quants import CACHE_TYPES
from gridsched.vram.words import FlagError, Words

__all__ = ["FlagError", "LaunchFlags", "TensorOverride", "parse_flags"]

DEFAULT_BATCH = 2048
DEFAULT_UBATCH = 512
DEFAULT_DRAFT_MAX = 3
AUTO_PARALLEL = 4  # what llama-server makes of no `-np`: four slots over one unified cache
EXPERT_TENSORS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"  # llama.cpp's own pattern for --cpu-moe
DENSE_TENSORS = r"\.ffn_(up|down|gate)\."  # and for --n-cpu-ffn
MAX_COUNT = 2**31 - 1
MAX_SHARES = 15  # the engine has room for 16 devices, and refuses a list that fills it
HOST_BUFFER = "CPU"


@dataclass(frozen=True, slots=True)
class TensorOverride:
    """Tensors whose names match go to a device (counted from 0), or to the host where `device` is None.

    `buffer` is the engine's name for it, as written.
    """

    pattern: Pattern
    device: int | None
    buffer: str = HOST_BUFFER


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
    no cap), `ctx_checkpoints` counts the saved states of a slot. `load_mode` is none, mmap, mlock, mmap+mlock, dio or
    auto. `uncounted` are sentences about flags whose memory is not in the estimate, or not as they say.
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
    host_buffer: bool = True
    load_mode: str = "auto"
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

    @property
    def maps_file(self) -> bool:
        """Whether weights on the host are the mapped file; else they are read into memory of the process."""
        return self.load_mode not in ("none", "dio")

    @property
    def weights_may_be_dropped(self) -> bool:
        """Whether the kernel may give up weights on the host, and read them again."""
        return self.load_mode in ("auto", "mmap")

    @property
    def unified(self) -> bool:
        """Whether all slots share one cache. Automatic slots always do: `--no-kv-unified` is then overruled."""
        return self.parallel is None or bool(self.kv_unified)

    def for_devices(self, names: Sequence[str]) -> "LaunchFlags":
        """The same for a launch on these devices, as the engine calls them in this order. Raises FlagError.

        Buffers of the overrides are looked up by name, and `--device` must name what the launch is given.
        """
        if self.device_names not in ((), ("none",), tuple(names)):
            there = ",".join(names) or "none"
            raise FlagError("--device", f"{','.join(self.device_names)} is not what this launch runs on ({there})")
        draft = self.draft
        if draft is not None:
            for name in draft.device_names:
                if name not in (*names, "none"):
                    raise FlagError("--device-draft", f"there is no {name!r} (there is {', '.join(names) or 'none'})")
            draft = replace(draft, overrides=_placed(draft.overrides, names))
        return replace(self, overrides=_placed(self.overrides, names), draft=draft)


def _placed(overrides: tuple[TensorOverride, ...], names: Sequence[str]) -> tuple[TensorOverride, ...]:
    known = {HOST_BUFFER: None, **{name: index for index, name in enumerate(names)}}
    for override in overrides:
        if override.buffer not in known:
            raise FlagError(
                "--override-tensor", f"there is no buffer type {override.buffer!r} (there is {', '.join(known)})"
            )
    return tuple(replace(override, device=known[override.buffer]) for override in overrides)


_Value: TypeAlias = str | int | tuple[float, ...] | tuple[str, ...] | None
_Reader: TypeAlias = Callable[[str, str], _Value]


_INTEGER = re.compile(r"[+-]?\d{1,12}", re.ASCII)


def _count(least: int, words: tuple[str, ...] = (), *, negative_is_none: bool = False) -> _Reader:
    """Reads a whole number; `words`, and negative numbers where the engine takes them so, are None."""

    def read(flag: str, text: str) -> int | None:
        if text in words:
            return None
        number = int(text) if _INTEGER.fullmatch(text) else None
        if number is not None and negative_is_none and -MAX_COUNT <= number < 0:
            return None
        if number is None or not least <= number <= MAX_COUNT:
            alternatives = "".join(f" or {word!r}" for word in words)
            most = f" to {MAX_COUNT}" if number is not None and number > MAX_COUNT else " or more"
            raise FlagError(flag, f"{text!r} is not a whole number of {least}{most}{alternatives}")
        return number

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
        shares = tuple(float(part) for part in re.split(r"[,/]+", text.rstrip(",/")))
    except ValueError:
        raise FlagError(flag, f"{text!r} is not a list of proportions such as 3,1") from None
    if not all(0 <= share < float("inf") for share in shares) or not sum(shares):
        raise FlagError(flag, f"{text!r} has no positive proportion, or a negative one")
    if len(shares) > MAX_SHARES:
        raise FlagError(flag, f"{len(shares)} proportions are more than the engine takes ({MAX_SHARES})")
    return shares


def _text(flag: str, text: str) -> str:  # noqa: ARG001 - every reader is called with the flag it reads for
    return text


def _names(flag: str, text: str) -> tuple[str, ...]:  # noqa: ARG001 - the same
    return tuple(part.strip() for part in text.split(",") if part.strip())


_LAYERS = _count(0, ("all", "auto"), negative_is_none=True)
_CACHE_TYPE = _one_of(*CACHE_TYPES)

_VALUES: tuple[tuple[str, str, _Reader], ...] = (
    ("-c --ctx-size", "ctx_size", _count(0)),
    ("-np --parallel", "parallel", _count(1, negative_is_none=True)),
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
    ("-lm --load-mode", "load_mode", _one_of("auto", "none", "mmap", "mlock", "mmap+mlock", "dio")),
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
_SWITCHES: tuple[tuple[str, str, bool | str], ...] = (
    ("-kvu --kv-unified", "kv_unified", True),
    ("-no-kvu --no-kv-unified", "kv_unified", False),
    ("-kvo --kv-offload", "kv_offload", True),
    ("-nkvo --no-kv-offload", "kv_offload", False),
    ("--swa-full", "swa_full", True),
    ("--op-offload", "op_offload", True),
    ("--no-op-offload", "op_offload", False),
    ("--repack", "repack", True),
    ("-nr --no-repack", "repack", False),
    ("--no-host", "host_buffer", False),
    ("--mmap", "load_mode", "mmap"),
    ("--no-mmap", "load_mode", "none"),
    ("--mlock", "load_mode", "mlock"),
    ("-dio --direct-io", "load_mode", "dio"),
    ("-ndio --no-direct-io", "load_mode", "none"),
    ("--embedding --embeddings", "embeddings", True),
    ("--rerank --reranking", "reranking", True),
    ("--rerank --reranking", "pooling", "rank"),
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
        (True, "some dense", "-ncffn --n-cpu-ffn"),
        (False, "tensor", "-otd --override-tensor-draft --spec-draft-override-tensor"),
        (False, "experts", "-cmoed --cpu-moe-draft --spec-draft-cpu-moe"),
        (False, "some experts", "-ncmoed --n-cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe"),
    )
    for spelling in spellings.split()
}
_TO_DOWNLOAD = "download the file, and name it as the model's path"
# What would make the engine load something that is not known here, or size itself: what to write instead.
_REFUSED = {
    spelling: instead
    for spellings, instead in (
        ("-hf -hfr --hf-repo -hff --hf-file -mu --model-url -dr --docker-repo", _TO_DOWNLOAD),
        ("-hfd -hfrd --hf-repo-draft --spec-draft-hf", "download the draft model, and name it with --model-draft"),
        ("-mmu --mmproj-url", "download the projector, and name it as the model's mmproj"),
        (
            "-hfv -hfrv --hf-repo-v -hffv --hf-file-v -mv --model-vocoder",
            "a vocoder's memory is not planned: remove it",
        ),
        ("--rpc", "memory of other machines is not planned: remove it"),
        ("--models-dir --models-preset", "gridsched itself chooses between models: name each of them under models"),
        ("--models-max --models-autoload --no-models-autoload", "gridsched itself loads models: remove it"),
        ("--embd-gemma-default --gpt-oss-20b-default --gpt-oss-120b-default", _TO_DOWNLOAD),
        ("--vision-gemma-4b-default --vision-gemma-12b-default", _TO_DOWNLOAD),
        ("--fim-qwen-1.5b-default --fim-qwen-3b-default --fim-qwen-7b-default --fim-qwen-30b-default", _TO_DOWNLOAD),
        ("--fim-qwen-7b-spec --fim-qwen-14b-spec", _TO_DOWNLOAD),
        ("--kv-unified-per-slot", "say it as ctx_per_slot, and how many slots share the cache as parallel"),
    )
    for spelling in spellings.split()
}
_FIT = ("-fit", "--fit")
_PROJECTOR_DEVICE = ("-mmdev", "--mmproj-device")
_UNCOUNTED = {
    "--image-min-tokens": "pictures are planned as the projector has them, not as --image-min-tokens has them",
    "--image-max-tokens": "pictures are planned as the projector has them, not as --image-max-tokens has them",
    "--mtmd-batch-max-tokens": "pictures are planned one at a time, not as --mtmd-batch-max-tokens has them",
}
_BY_SPELLING = {
    name: (ours, target, reader)
    for ours, table in ((True, _VALUES), (False, _DRAFT_VALUES))
    for spellings, target, reader in table
    for name in spellings.split()
}
_SWITCH_BY_SPELLING: dict[str, dict[str, bool | str]] = {}
for _spellings, _target, _value in _SWITCHES:
    for _name in _spellings.split():
        _SWITCH_BY_SPELLING.setdefault(_name, {})[_target] = _value


def parse_flags(flags: tuple[str, ...]) -> LaunchFlags:
    """What these words of a llama-server command line mean for memory. Raises FlagError."""
    said = _Said()
    words = Words(flags)
    for flag in words:
        said.read(flag, words)
    result = said.flags()
    _check_together(result)
    return result


class _Said:
    """What has been read so far, of the model and of what drafts for it."""

    def __init__(self) -> None:
        self._values: dict[bool, dict[str, object]] = {True: {}, False: {}}
        self._overrides: dict[bool, list[TensorOverride]] = {True: [], False: []}
        self._lists: dict[str, tuple[str, ...]] = {}
        self._uncounted: list[str] = []

    def read(self, flag: str, words: Words) -> None:
        """Take in one flag, and its value if it has one that is read here. Raises FlagError."""
        written = words.written
        if flag in _BY_SPELLING:
            ours, target, reader = _BY_SPELLING[flag]
            text = words.value()
            self._values[ours][target] = reader(written, text)
            if target == "gpu_layers" and (text == "auto" or text.startswith("-")):
                self._uncounted.append(f"{written} {text} is planned as all layers")
        elif flag in _SWITCH_BY_SPELLING:
            words.no_value()
            self._values[True] |= _SWITCH_BY_SPELLING[flag]
        elif flag in _LISTS:
            self._lists[_LISTS[flag]] = self._lists.get(_LISTS[flag], ()) + _listed(flag, words.value())
        elif flag in _OVERRIDES:
            ours, kind = _OVERRIDES[flag]
            self._overrides[ours] += _read_override(written, kind, words)
        else:
            self._read_unplanned(flag, words)

    def _read_unplanned(self, flag: str, words: Words) -> None:
        """Flags that are not planned with: a note, or a refusal."""
        if flag == "--override-kv":
            self._uncounted += _metadata_notes(words.value())
        elif flag in _UNCOUNTED:
            self._uncounted.append(_UNCOUNTED[flag])
        elif flag in _PROJECTOR_DEVICE:
            if words.value() != "none":
                raise FlagError(words.written, "the projector is planned on the first device of a launch: remove it")
            self._values[True]["mmproj_offload"] = False
        elif flag in _FIT:
            if words.value() not in ("off", "0", "false", "disabled"):
                raise FlagError(
                    words.written, "the engine's own fitting would change the launch behind the plan: remove it"
                )
        elif flag in _REFUSED:
            raise FlagError(words.written, _REFUSED[flag])

    def flags(self) -> LaunchFlags:
        """All of it."""
        main, draft = self._values[True], self._values[False]
        if self._overrides[False]:
            draft["overrides"] = tuple(self._overrides[False])
        if draft:
            main["draft"] = replace(DraftFlags(), **draft)  # type: ignore[arg-type]  # as below
        main["overrides"] = tuple(self._overrides[True])
        return replace(LaunchFlags(), **main, **self._lists, uncounted=tuple(self._uncounted))  # type: ignore[arg-type]  # the tables pair each field with a reader of its type


def _listed(flag: str, text: str) -> tuple[str, ...]:
    """The entries of a list: words, or files of which some are followed by their scale."""
    entries = _names(flag, text)
    return tuple(entry.rpartition(":")[0] or entry for entry in entries) if flag.endswith("-scaled") else entries


def _metadata_notes(text: str) -> list[str]:
    """Metadata that is overridden: the tokenizer's moves no memory, the rest is planned as the file has it."""
    keys = (entry.partition("=")[0].strip() for entry in text.split(","))
    changed = [key for key in keys if key and not key.startswith(("tokenizer.", "general."))]
    return [f"what --override-kv makes of {key} is not counted" for key in changed]


def _read_override(flag: str, kind: str, words: Words) -> list[TensorOverride]:
    if kind == "experts":
        words.no_value()
        return [TensorOverride(Pattern.of(EXPERT_TENSORS), None)]
    text = words.value()
    if kind == "tensor":
        return [_read_tensor_override(flag, part) for part in text.split(",")]
    if not re.fullmatch(r"\d{1,4}", text, re.ASCII):
        raise FlagError(flag, f"{text!r} is not a whole number of 0 or more")
    tensors = EXPERT_TENSORS if kind == "some experts" else DENSE_TENSORS
    return [TensorOverride(Pattern.of(rf"blk\.({_below(int(text))}){tensors}"), None)] if int(text) else []


def _below(count: int) -> str:
    """A pattern of the numbers below `count`: one, where the engine has as many as there are numbers."""
    digits = str(count - 1)
    options = ["[0-9]" if length == 1 else f"[1-9][0-9]{{{length - 1}}}" for length in range(1, len(digits))]
    for place, digit in enumerate(digits):
        least = 1 if place == 0 and len(digits) > 1 else 0
        last = place == len(digits) - 1
        most = int(digit) if last else int(digit) - 1
        if most >= least:
            rest = len(digits) - place - 1
            options.append(f"{digits[:place]}[{least}-{most}]" + (f"[0-9]{{{rest}}}" if rest else ""))
    return "|".join(options)


def _read_tensor_override(flag: str, text: str) -> TensorOverride:
    """One `<pattern>=<buffer>`; the engine looks for the first `=`, so that no pattern holds one."""
    pattern, sign, buffer = text.partition("=")
    if not sign or not pattern or not buffer:
        raise FlagError(flag, f"{text!r} is not <tensor name pattern>=<buffer type>")
    try:
        compiled = Pattern.of(pattern)
    except PatternError as problem:
        raise FlagError(flag, f"{pattern!r} is no regular expression to the engine: {problem}") from None
    if buffer == HOST_BUFFER:
        return TensorOverride(compiled, None)
    index = re.fullmatch(r"[A-Za-z]+(\d{1,2})", buffer, re.ASCII)
    if index is None:
        raise FlagError(flag, f"{buffer!r} is no buffer type such as {HOST_BUFFER} or CUDA0")
    return TensorOverride(compiled, int(index.group(1)), buffer)


def _check_together(flags: LaunchFlags) -> None:
    """Combinations that llama-server refuses whatever the model is."""
    if flags.flash_attn == "off" and CACHE_TYPES[flags.cache_type_v].is_quantized:
        raise FlagError("--cache-type-v", f"{flags.cache_type_v} needs flash attention, which --flash-attn turns off")
