"""What a header means for memory: the shape of every layer, and what kind of model it is.

Owns the sum of it: `Geometry`, and the reading of what a whole model has once. The layers are read by `layers`, the
tensors by `weights`, values are checked by `keys`, and what differs by architecture is the table in `architectures`.
Knows no flags and no devices.
"""

from dataclasses import dataclass, field

from gridsched.vram.architectures import Architecture, architecture
from gridsched.vram.header import Header, SkippedArray, TensorInfo
from gridsched.vram.keys import MAX_BLOCKS, MAX_COUNT, GeometryError, Keys
from gridsched.vram.layers import Depth, Layer, build_layers, keeps_keys_alone, window_tokens
from gridsched.vram.projector import Tower, read_towers
from gridsched.vram.state import StateSpace, state_space
from gridsched.vram.weights import Tensors, Weight, weight

__all__ = ["Experts", "Geometry", "GeometryError", "Layer", "StateSpace", "Weight"]

_NO_STATE = StateSpace()
_POOLING = ("none", "mean", "cls", "last", "rank")
_PLAIN_FORWARD = ("bert", "nomic-bert-moe")  # without a gate, should their tensors not show it
_ADAPTERS = ("adapter", "controlvector")  # what `general.type` (or the architecture) of such a file is


@dataclass(frozen=True, slots=True)
class Experts:
    """Mixture of experts; all 0 for a dense model. `shared_gated`: the shared expert's share is learned too. `gated`:
    a gate of the same width stands beside each expert."""

    count: int = 0
    used: int = 0
    feed_forward_length: int = 0
    shared_feed_forward_length: int = 0
    shared_gated: bool = False
    gated: bool = True


@dataclass(frozen=True, slots=True)
class Geometry:
    """Everything the formulas need to know of one model. `weights` are all its tensors, drafting blocks included.

    `blocks` counts the ordinary layers, `draft_blocks` those that only speculative decoding uses; both are in `layers`.
    `feed_forward_length` is that of dense layers, 0 where all are experts; `feed_forward_gated`: a gate of the same
    width stands beside them. `window` is in tokens, 0 for none. `mla`: its caches hold K alone. `slot_streams`: every
    slot has caches of its own even where they are unified. `pooling` is one of none, mean, cls, last, rank, or None
    where the header does not say.
    An adapter has weights and nothing else, a projector weights and `towers`, its encoders.
    """

    architecture: str
    blocks: int = 0
    draft_blocks: int = 0
    embedding_length: int = 0
    feed_forward_length: int = 0
    feed_forward_gated: bool = True
    layers: tuple[Layer, ...] = ()
    window: int = 0
    mla: bool = False
    experts: Experts = Experts()
    state_space: StateSpace = _NO_STATE
    slot_streams: bool = False
    altup_inputs: int = 1
    per_layer_embedding_length: int = 0
    vocab_size: int = 0
    context_train: int = 0
    tied_output: bool = False
    pooling: str | None = None
    causal: bool = False
    has_chat_template: bool = False
    is_encoder: bool = False
    is_reranker: bool = False
    is_projector: bool = False
    is_adapter: bool = False
    towers: tuple[Tower, ...] = ()
    has_cache: bool = False
    weights: tuple[Weight, ...] = ()
    notes: tuple[str, ...] = ()
    tensors: Tensors = field(init=False, repr=False, compare=False)  # the weights by block

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", Tensors.of(self.weights))

    @property
    def is_embedding(self) -> bool:
        """Whether the model is made to turn texts into vectors (or, for a reranker, into scores)."""
        return self.is_encoder or self.pooling not in (None, "none")

    @property
    def state_bytes(self) -> int:
        """The largest state that a layer keeps of one sequence."""
        return max((layer.state_bytes for layer in self.layers), default=0)

    @property
    def file_bytes(self) -> int:
        """The tensors' bytes in the file."""
        return sum(weight.file_bytes for weight in self.weights)

    @property
    def active_part(self) -> float:
        """The share of the tensors' bytes that is read for each token that is written: of experts those that are used,
        of a table of words one row, unless it is the output's matrix too, and nothing of blocks that only draft."""
        return sum(map(self._read_bytes, self.weights)) / max(self.file_bytes, 1) if self.file_bytes else 1.0

    def _read_bytes(self, weight: Weight) -> float:
        if (weight.block or 0) >= self.blocks > 0:
            return 0.0
        if (
            weight.block is None
            and "token_embd" in weight.name
            and not (self.tied_output and weight.name == "token_embd.weight")
        ):
            return 0.0
        if "_exps." in weight.name and self.experts.count:
            return weight.file_bytes * min(1.0, self.experts.used / self.experts.count)
        return float(weight.file_bytes)

    @classmethod
    def from_header(cls, header: Header, shards: tuple[Header, ...] = ()) -> "Geometry":
        """The geometry of a model whose metadata are in `header`; the other files of a split set come as `shards`.

        Raises GeometryError.
        """
        keys = Keys(header.metadata)
        tensors = [tensor for part in (header, *shards) for tensor in part.tensors]
        notes = [note for part in (header, *shards) for note in part.notes]
        _check_split(keys, len(tensors), 1 + len(shards))
        adapter = keys.architecture in _ADAPTERS or keys.text("general.type") in _ADAPTERS
        projector = keys.architecture == "clip" or keys.text("general.type") == "mmproj"
        if adapter or projector:
            weights = tuple(map(weight, tensors))
            return cls(
                keys.architecture,
                is_projector=projector and not adapter,
                is_adapter=adapter,
                towers=read_towers(header.metadata, tensors) if projector else (),
                weights=weights,
                notes=tuple(notes),
            )
        return _model(cls, keys, tensors, notes)


def _check_split(keys: Keys, tensors: int, parts: int) -> None:
    """A split set is whole, or refused: half of a model's tensors would be planned as all of them."""
    declared, total = keys.metadata.get("split.count"), keys.metadata.get("split.tensors.count")
    if isinstance(declared, int) and declared > 1 and declared != parts:
        raise GeometryError("split.count", f"the model is split over {declared} files, {parts} of them were read")
    if isinstance(total, int) and total != tensors:
        raise GeometryError("split.tensors.count", f"says {total} tensors, the files have {tensors}")


def _model(cls: type[Geometry], keys: Keys, tensors: list[TensorInfo], notes: list[str]) -> Geometry:
    row = architecture(keys.architecture)
    depth = _depth(keys, row)
    names = {tensor.name for tensor in tensors}
    embedding = keys.number("embedding_length")
    if not embedding:
        raise keys.error("embedding_length", "is 0")
    pooling = _pooling(keys)
    experts = _experts(keys, names)
    forward_length, forward_gated = _feed_forward(keys, tensors, experts)
    layers = build_layers(keys, row, depth, names)
    if row.cache and not row.borrows_cache and not any(_remembers(layer) for layer in layers):
        raise keys.error("attention.head_count", "no layer has heads: its cache cannot be planned")
    return cls(
        architecture=keys.architecture,
        blocks=depth.blocks,
        draft_blocks=depth.total - depth.blocks,
        embedding_length=embedding,
        feed_forward_length=forward_length,
        feed_forward_gated=forward_gated,
        layers=layers,
        window=window_tokens(keys, row.window, depth) if any(layer.window for layer in layers) else 0,
        mla=keeps_keys_alone(keys, row),
        slot_streams=row.slot_streams,
        experts=experts,
        state_space=state_space(keys, row.state),
        altup_inputs=keys.number("altup.num_inputs", 1),
        per_layer_embedding_length=keys.number("embedding_length_per_layer_input", 0),
        vocab_size=_vocab_size(keys, tensors),
        context_train=keys.number("context_length", 0, most=MAX_COUNT),
        tied_output="output.weight" not in names and "token_embd.weight" in names and row.output_is_table,
        pooling=pooling,
        causal=keys.raw("attention.causal") is not False and not row.encoder,
        has_chat_template="tokenizer.chat_template" in keys.metadata,
        is_encoder=row.encoder,
        is_reranker=pooling == "rank" or "cls.output.weight" in names,
        has_cache=row.cache,
        weights=tuple(map(weight, tensors)),
        notes=(*notes, *_doubts(keys, row, layers)),
    )


def _depth(keys: Keys, row: Architecture) -> Depth:
    """Block counts. Nanbeige runs through its blocks several times, each time with caches of their own."""
    total = keys.number("block_count", most=MAX_COUNT)
    loops = keys.number("num_loops", 1) if keys.architecture == "nanbeige" else 1
    if not 1 <= total * loops <= MAX_BLOCKS:
        raise keys.error("block_count", f"{total * loops} is implausible (1 to {MAX_BLOCKS} are possible)")
    drafting = keys.number("nextn_predict_layers", 0)
    if drafting > total:
        raise keys.error("nextn_predict_layers", f"{drafting} of {total} blocks are too many")
    if row.router:
        return Depth(total + 1, total)
    # A file of drafting blocks alone is a draft model, whose ordinary layers they are.
    return Depth(total * loops, total * loops - drafting % total)


def _remembers(layer: Layer) -> bool:
    return layer.state_bytes > 0 or (layer.cache_source is not None and layer.key_width > 0)


def _doubts(keys: Keys, row: Architecture, layers: tuple[Layer, ...]) -> tuple[str, ...]:
    """Why the estimate is dearer than one would think, as notes: the engine ignores a window, or the table does not
    know the architecture."""
    name, notes = keys.architecture, []
    window = keys.number("attention.sliding_window", 0, most=MAX_COUNT, may_be_list=True)
    if window and row.cache and not any(layer.window for layer in layers):
        how = "the engine ignores" if row.known else "it is not known how the engine uses"
        notes.append(f"{how} the window of {window} tokens of {name}: full cache on every layer")
    if row.known:
        return tuple(notes)
    notes.append(f"the architecture {name} is not known: what its header does not settle is charged the dearer way")
    if keys.number("attention.key_length_mla", 0):
        notes.append(f"latent attention is not counted on for {name}: K and V of every head")
    if any(layer.recurrent for layer in layers):
        notes.append(f"the recurrent state of {name} is taken as the largest that its keys can mean")
    return tuple(notes)


def _feed_forward(keys: Keys, tensors: list[TensorInfo], experts: Experts) -> tuple[int, bool]:
    """The width of the widest dense feed-forward layer, and whether it has a gate, as a tensor of its own or behind the
    layer in the same one. What the tensors do not show is taken from the header, with a gate.
    """
    length = keys.number("feed_forward_length", 0, may_be_list=True)
    ups = [tensor.shape[1] for tensor in tensors if tensor.name.endswith(".ffn_up.weight") and len(tensor.shape) > 1]
    if not ups:
        return (0 if experts.count and tensors else length), keys.architecture not in _PLAIN_FORWARD
    if any(tensor.name.endswith(".ffn_gate.weight") for tensor in tensors):
        return max(ups), True
    return (length, True) if max(ups) == 2 * length else (max(ups), False)


def _experts(keys: Keys, names: set[str]) -> Experts:
    count = keys.number("expert_count", 0)
    if not count:
        return Experts()
    # Granite writes the experts' width where dense models write theirs.
    width = keys.number("expert_feed_forward_length", 0, may_be_list=True)
    return Experts(
        count=count,
        used=keys.number("expert_used_count", 0, may_be_list=True),
        feed_forward_length=width or keys.number("feed_forward_length", 0, may_be_list=True),
        shared_feed_forward_length=keys.number("expert_shared_feed_forward_length", 0, may_be_list=True),
        gated=not names or any(name.endswith((".ffn_gate_exps.weight", ".ffn_gate_up_exps.weight")) for name in names),
        shared_gated=any(name.endswith(".ffn_gate_inp_shexp.weight") for name in names),
    )


def _vocab_size(keys: Keys, tensors: list[TensorInfo]) -> int:
    tokens = keys.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, SkippedArray):
        return tokens.length
    if isinstance(tokens, tuple):
        return len(tokens)
    if size := keys.number("vocab_size", 0, most=MAX_COUNT):
        return size
    return next((tensor.shape[-1] for tensor in tensors if tensor.name == "token_embd.weight"), 0)


def _pooling(keys: Keys) -> str | None:
    value = keys.raw("pooling_type")
    return _POOLING[value] if isinstance(value, int) and 0 <= value < len(_POOLING) else None
