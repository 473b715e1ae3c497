"""What llama.cpp's loaders do for each architecture, as data: which layers get a cache, a window, a state, an indexer.

Owns the table and nothing else: no metadata, no sizes. An architecture that is not in it is `UNKNOWN`, whose layers are
charged the dearer way by what their tensors are. The rows are read from the loaders of llama.cpp b10256 (`src/models`,
`llama_model::create_memory`) and later ones where an architecture is newer; those that the engine in the test
environment knows are held to what it really allocates (`tests/vram/data/allocations.jsonl.gz`).
"""

from dataclasses import dataclass, replace
from enum import Enum, auto


class Recurrence(Enum):
    """Which layers carry a recurrent state."""

    NONE = auto()
    ALL = auto()  # and no layer has a cache
    BESIDE_CACHE = auto()  # all of them, each beside its cache
    NO_KV_HEADS = auto()  # those whose `head_count_kv` is 0
    NO_KV_HEADS_NOR_FEED_FORWARD = auto()  # and whose `feed_forward_length` is 0 too: a layer has one of the three
    INTERVAL = auto()  # all but every n-th, by a list or by `full_attention_interval`
    BY_TENSORS = auto()  # whatever the layer's tensors show


class StateKind(Enum):
    """How large such a state is, see `state`."""

    MAMBA = auto()
    MAMBA_UNGROUPED = auto()  # the loader does not read `ssm.group_count`
    SHORT_CONVOLUTION = auto()
    KDA = auto()
    RWKV = auto()
    LIGHTNING = auto()
    BY_KEYS = auto()  # whatever the header's keys show


class Indexer(Enum):
    """Sparse attention's own cache of keys, beside the layer's."""

    EVERY_LAYER = auto()
    BY_TYPES = auto()  # on the layers that `attention.indexer.types` marks
    AFTER_DENSE = auto()  # behind the leading dense blocks, and with values
    ATTENTION_LAYERS = auto()  # of a hybrid
    COMPRESSED = auto()  # DeepSeek 4: compressed copies of keys by `attention.compress_ratios`


@dataclass(frozen=True, slots=True)
class WindowRule:
    """How a loader decides which layers slide.

    One layer in each `period` is full, the last or (`full_first`) the first; period 0 is none, 1 all. A number in the
    header replaces the period where `reads_period`; a list marks the layers where `reads_list` (a number then marks
    all or none of them, unless both are read); else it is ignored. The window is `fixed` tokens if it is not 0 in the
    header, which means `default` where it is silent. `only_blocks`: models of another depth have no window.
    """

    period: int | None = None
    full_first: bool = False
    reads_period: bool = True
    reads_list: bool = False
    default: int = 0
    fixed: int = 0
    only_blocks: int | None = None


@dataclass(frozen=True, slots=True)
class Architecture:
    """One row. `cache`: has any KV cache. `encoder`: turns a text into vectors, all of an input in one micro-batch.

    `output_is_table`: a file without an output tensor has a second copy of the token table as its output layer. `mla`:
    reads the keys of latent attention, and then keeps K alone. `drafting`: reads `nextn_predict_layers`, and does not
    load those blocks without drafting; `caches_drafting`: gives them a cache all the same. `own_caches`: only so many
    first layers keep caches, the rest reuse them (-1: by `attention.shared_kv_layers`); `borrows_cache`: a draft model
    that keeps none and uses its target's. `slot_streams`: every slot has caches of its own even where they are unified.
    """

    known: bool = True
    cache: bool = True
    encoder: bool = False
    output_is_table: bool = True
    window: WindowRule | None = None
    recurrence: Recurrence = Recurrence.NONE
    state: StateKind | None = None
    interval: int = 4
    mla: bool = False
    indexer: Indexer | None = None
    indexer_rows: int = 1
    drafting: bool = False
    caches_drafting: bool = False
    own_caches: int | None = None
    slot_streams: bool = False
    borrows_cache: bool = False


UNKNOWN = Architecture(known=False, recurrence=Recurrence.BY_TENSORS, state=StateKind.BY_KEYS)

_PLAIN = Architecture()
_DRAFTING = Architecture(drafting=True)
_MLA = Architecture(mla=True)
_DSA = Architecture(mla=True, drafting=True, indexer=Indexer.BY_TYPES)
_BERT = Architecture(cache=False, encoder=True, output_is_table=False)
_DIFFUSION = Architecture(cache=False)
_DELTA_NET = Architecture(recurrence=Recurrence.INTERVAL, state=StateKind.MAMBA, drafting=True)
_MAMBA_HYBRID = Architecture(recurrence=Recurrence.NO_KV_HEADS, state=StateKind.MAMBA)
_KDA_HYBRID = Architecture(recurrence=Recurrence.NO_KV_HEADS, state=StateKind.KDA, mla=True)
_NEMOTRON_HYBRID = Architecture(recurrence=Recurrence.NO_KV_HEADS_NOR_FEED_FORWARD, state=StateKind.MAMBA)
_LFM = Architecture(recurrence=Recurrence.NO_KV_HEADS, state=StateKind.SHORT_CONVOLUTION)
_MARKED = WindowRule(reads_period=False, reads_list=True)


_PLAIN_NAMES = """
llama deci falcon grok gpt2 gptj gptneox mpt baichuan starcoder refact bloom stablelm qwen qwen2 qwen2moe qwen2vl qwen3
qwen3moe qwen3vl qwen3vlmoe qwen3tts phi2 phi3 phimoe plamo codeshell orion internlm2 minicpm minicpm3 gemma starcoder2
xverse command-r dbrx olmo olmoe openelm arctic deepseek deepseek2-ocr chatglm jais jais2 nemotron exaone granite
granitemoe chameleon plm bailingmoe dots1 arcee ernie4_5 ernie4_5-moe hunyuan-moe hunyuan-dense hunyuan_vl smollm3
seed_oss grovemoe apertus minimax-m2 cogvlm pangu-embedded mistral3 paddleocr llama-embed maincoder talkie nanbeige
pockettts t5 eagle3
"""

_ROWS: tuple[tuple[str, Architecture], ...] = (
    (_PLAIN_NAMES, _PLAIN),
    ("bitnet", Architecture(output_is_table=False)),
    ("t5encoder", Architecture(encoder=True)),  # the engine gives it a cache that nothing uses
    (
        "bert nomic-bert nomic-bert-moe jina-bert-v2 jina-bert-v3 modern-bert neo-bert eurobert wavtokenizer-dec clef",
        _BERT,
    ),
    ("gemma-embedding", replace(_BERT, output_is_table=True)),
    ("dream llada llada-moe rnd1", _DIFFUSION),
    # latent attention, sparse attention
    ("deepseek2", replace(_MLA, drafting=True)),
    ("mistral4", _MLA),
    ("deepseek32", replace(_DSA, indexer=Indexer.EVERY_LAYER)),
    ("glm-dsa", _DSA),
    ("minimax-m3", Architecture(indexer=Indexer.AFTER_DENSE)),
    (
        "deepseek4",
        Architecture(
            mla=True,
            drafting=True,
            caches_drafting=True,
            indexer=Indexer.COMPRESSED,
            slot_streams=True,
            window=WindowRule(0, reads_period=False),
        ),
    ),
    # blocks that only drafting uses
    ("bailingmoe2 glm4 glm4moe hy_v3", _DRAFTING),
    # sliding windows
    ("afmoe cohere2 olmo2", Architecture(window=WindowRule(4))),
    ("gemma2", Architecture(window=WindowRule(2, default=4096))),
    ("gemma3", Architecture(window=WindowRule(6))),
    ("gpt-oss", Architecture(window=WindowRule(2))),
    ("plamo3", Architecture(window=WindowRule(8))),
    ("laguna", Architecture(window=WindowRule(4, full_first=True))),
    ("smallthinker", Architecture(window=WindowRule(4, full_first=True, fixed=4096))),
    ("llama4", Architecture(window=WindowRule(4, default=8192, fixed=8192))),
    ("mellum muse-glimmer", Architecture(window=WindowRule(4, reads_list=True))),
    ("cohere2moe", Architecture(window=WindowRule(4, full_first=True, reads_list=True), drafting=True)),
    ("exaone-moe", Architecture(window=WindowRule(4), drafting=True)),
    ("exaone4", Architecture(window=WindowRule(4, default=4096, only_blocks=64), drafting=True)),
    ("granite_swa maple dflash", Architecture(window=_MARKED)),
    ("mimo2 step35", Architecture(window=_MARKED, drafting=True)),
    ("gemma4", Architecture(window=_MARKED, own_caches=-1)),
    ("gemma3n", Architecture(window=WindowRule(5), own_caches=20)),  # a constant in llama.cpp's loader
    ("gemma4-assistant", Architecture(window=_MARKED, borrows_cache=True)),  # a draft that uses its target's cache
    # recurrent states
    ("mamba", Architecture(recurrence=Recurrence.ALL, state=StateKind.MAMBA_UNGROUPED)),
    ("mamba2", Architecture(recurrence=Recurrence.ALL, state=StateKind.MAMBA)),
    ("rwkv6 rwkv6qwen2 rwkv7 arwkv7", Architecture(recurrence=Recurrence.ALL, state=StateKind.RWKV)),
    ("falcon-h1", Architecture(recurrence=Recurrence.BESIDE_CACHE, state=StateKind.MAMBA)),
    ("jamba", replace(_MAMBA_HYBRID, state=StateKind.MAMBA_UNGROUPED)),
    ("granitehybrid plamo2 barbet", _MAMBA_HYBRID),
    ("nemotron_h", _NEMOTRON_HYBRID),
    ("nemotron_h_moe", replace(_NEMOTRON_HYBRID, drafting=True, caches_drafting=True)),
    ("lfm2", replace(_LFM, window=WindowRule(0, reads_period=False))),
    ("lfm2moe", _LFM),
    ("qwen3next qwen35 qwen35moe", _DELTA_NET),
    ("qwen4exp", replace(_DELTA_NET, indexer=Indexer.ATTENTION_LAYERS, indexer_rows=2)),
    ("minimax-01", Architecture(recurrence=Recurrence.INTERVAL, state=StateKind.LIGHTNING, interval=8)),
    ("kimi-linear kimi-k3", _KDA_HYBRID),
    ("bailingmoe3", replace(_KDA_HYBRID, drafting=True, caches_drafting=True)),
    (
        "glm5-next",
        replace(_KDA_HYBRID, drafting=True, caches_drafting=True, indexer=Indexer.ATTENTION_LAYERS, indexer_rows=3),
    ),
)

ARCHITECTURES: dict[str, Architecture] = {name: row for names, row in _ROWS for name in names.split()}
"""By `general.architecture`."""


def architecture(name: str) -> Architecture:
    """The row of an architecture, or UNKNOWN."""
    return ARCHITECTURES.get(name, UNKNOWN)
