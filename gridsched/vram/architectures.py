"""What llama.cpp's loaders do for each architecture, as data: which layers get a cache, a window, a state, an indexer.

Owns the table and nothing else: no metadata, no sizes. An architecture that is not in it is `UNKNOWN`, whose layers are
charged the dearer way by what their tensors are. The rows are read from the loaders of llama.cpp of October 2026
(`src/models`, `llama_model::create_memory`), and held to what it accounts for tiny models of each
(`tests/vram/data/allocations.jsonl.gz`).
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

    EVERY_LAYER = auto()  # with a cache
    BY_TYPES = auto()  # those that `attention.indexer.types` marks; without the key every one
    GLM = auto()  # the same, but for GLM's own rule without the key
    AFTER_DENSE = auto()  # behind the leading dense blocks, and with values
    COMPRESSED = auto()  # DeepSeek 4: compressed copies of keys by `attention.compress_ratios`


@dataclass(frozen=True, slots=True)
class WindowRule:
    """How a loader decides which layers slide.

    A list in the header marks them. Else one layer in each `period` is full, the last or (`full_first`) the first,
    where a number in the header replaces the period; 0 is none, 1 all. Without a period there must be a list.
    `by_header` False: the header's pattern is not read. The window is `fixed` tokens if it is not 0 in the header,
    which means `default` where it is silent. `only_blocks`: models of another depth have no window.
    """

    period: int | None = None
    full_first: bool = False
    by_header: bool = True
    default: int = 0
    fixed: int = 0
    only_blocks: int | None = None


@dataclass(frozen=True, slots=True)
class Architecture:
    """One row. `cache`: has any KV cache. `encoder`: turns a text into vectors, all of an input in one micro-batch.

    `output_is_table`: a file without an output tensor has a second copy of the token table as its output layer. `mla`:
    reads the keys of latent attention, and then keeps K alone. `caches_drafting`: the blocks that only drafting uses
    have a cache although they are not loaded. `own_caches`: only so many first layers keep caches, the rest reuse them
    (-1: by `attention.shared_kv_layers`); `borrows_cache`: a draft model that keeps none and uses its target's.
    `slot_streams`: every slot has caches of its own even where they are unified. `router`: one more layer of one head
    keeps a cache. `ngrams`: some layers remember what their n-gram embeddings were made of.
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
    caches_drafting: bool = False
    own_caches: int | None = None
    slot_streams: bool = False
    borrows_cache: bool = False
    router: bool = False
    ngrams: bool = False


UNKNOWN = Architecture(known=False, recurrence=Recurrence.BY_TENSORS, state=StateKind.BY_KEYS)

_BERT = Architecture(cache=False, encoder=True, output_is_table=False)
_MAMBA_HYBRID = Architecture(recurrence=Recurrence.NO_KV_HEADS, state=StateKind.MAMBA, caches_drafting=True)
_DELTA_NET = Architecture(recurrence=Recurrence.INTERVAL, state=StateKind.MAMBA)
_KDA_HYBRID = replace(_MAMBA_HYBRID, state=StateKind.KDA, mla=True)
_NEMOTRON_HYBRID = replace(_MAMBA_HYBRID, recurrence=Recurrence.NO_KV_HEADS_NOR_FEED_FORWARD)
_LFM = replace(_MAMBA_HYBRID, state=StateKind.SHORT_CONVOLUTION)
_MARKED = WindowRule()
_DEEPSEEK_4 = Architecture(
    mla=True, caches_drafting=True, indexer=Indexer.COMPRESSED, slot_streams=True, window=WindowRule(0, by_header=False)
)

_PLAIN_NAMES = """
llama deci falcon grok gpt2 gptj gptneox mpt baichuan starcoder refact bloom stablelm qwen qwen2 qwen2moe qwen2vl qwen3
qwen3moe qwen3vl qwen3vlmoe qwen3tts phi2 phi3 phimoe plamo codeshell orion internlm2 minicpm minicpm3 gemma starcoder2
xverse command-r dbrx olmo olmoe openelm arctic deepseek deepseek2-ocr chatglm jais jais2 nemotron exaone granite
granitemoe chameleon plm bailingmoe dots1 arcee ernie4_5 ernie4_5-moe hunyuan-moe hunyuan-dense hunyuan_vl smollm3
seed_oss grovemoe apertus minimax-m2 cogvlm pangu-embedded mistral3 paddleocr llama-embed maincoder talkie nanbeige
pockettts t5 eagle3 bailingmoe2 glm4 glm4moe hy_v3 hrm_text
"""

_ROWS: tuple[tuple[str, Architecture], ...] = (
    (_PLAIN_NAMES, Architecture()),
    ("bitnet", Architecture(output_is_table=False)),
    ("graniteswitch", Architecture(router=True, caches_drafting=True)),
    ("t5encoder", Architecture(encoder=True)),  # the engine gives it a cache that nothing uses
    ("bert nomic-bert nomic-bert-moe jina-bert-v2 jina-bert-v3 modern-bert neo-bert eurobert", _BERT),
    ("wavtokenizer-dec clef", _BERT),
    ("gemma-embedding", replace(_BERT, output_is_table=True)),
    ("dream llada llada-moe rnd1", Architecture(cache=False)),  # they write by diffusion
    # latent attention, sparse attention
    ("deepseek2 mistral4", Architecture(mla=True)),
    ("deepseek32", Architecture(mla=True, indexer=Indexer.EVERY_LAYER)),
    ("glm-dsa", Architecture(mla=True, indexer=Indexer.GLM)),
    ("hy_v4", Architecture(mla=True, indexer=Indexer.BY_TYPES, caches_drafting=True)),
    ("dots3note", Architecture(mla=True, indexer=Indexer.BY_TYPES, window=_MARKED)),
    ("minimax-m3", Architecture(indexer=Indexer.AFTER_DENSE, caches_drafting=True)),
    ("deepseek4", _DEEPSEEK_4),
    # sliding windows
    ("gemma2", Architecture(window=WindowRule(2, default=4096))),
    ("gpt-oss", Architecture(window=WindowRule(2))),
    ("afmoe cohere2 olmo2 mellum muse-glimmer exaone-moe", Architecture(window=WindowRule(4))),
    ("exaone4", Architecture(window=WindowRule(4, default=4096, only_blocks=64))),
    ("llama4", Architecture(window=WindowRule(4, default=8192, fixed=8192))),
    ("cohere2moe laguna", Architecture(window=WindowRule(4, full_first=True))),
    ("smallthinker", Architecture(window=WindowRule(4, full_first=True, fixed=4096))),
    ("gemma3n", Architecture(window=WindowRule(5), own_caches=20)),  # a constant in llama.cpp's loader
    ("gemma3", Architecture(window=WindowRule(6))),
    ("plamo3", Architecture(window=WindowRule(8))),
    ("granite_swa maple dflash mimo2 step35 spark2_5", Architecture(window=_MARKED)),
    ("gemma4", Architecture(window=_MARKED, own_caches=-1)),
    ("gemma4-assistant", Architecture(window=_MARKED, borrows_cache=True)),  # a draft that uses its target's cache
    # recurrent states
    ("mamba", Architecture(recurrence=Recurrence.ALL, state=StateKind.MAMBA_UNGROUPED)),
    ("mamba2", Architecture(recurrence=Recurrence.ALL, state=StateKind.MAMBA)),
    ("rwkv6 rwkv6qwen2 rwkv7 arwkv7", Architecture(recurrence=Recurrence.ALL, state=StateKind.RWKV)),
    ("falcon-h1", replace(_MAMBA_HYBRID, recurrence=Recurrence.BESIDE_CACHE)),
    ("granitehybrid plamo2", _MAMBA_HYBRID),
    ("jamba", replace(_MAMBA_HYBRID, state=StateKind.MAMBA_UNGROUPED)),
    ("nemotron_h nemotron_h_moe", _NEMOTRON_HYBRID),
    ("lfm2", replace(_LFM, window=WindowRule(0, by_header=False))),
    ("lfm2moe", _LFM),
    ("qwen3next qwen35 qwen35moe", _DELTA_NET),
    ("qwen4exp", replace(_DELTA_NET, indexer=Indexer.EVERY_LAYER, ngrams=True)),
    ("minimax-01", replace(_DELTA_NET, state=StateKind.LIGHTNING, interval=8)),
    ("kimi-linear kimi-k3 bailingmoe3", _KDA_HYBRID),
    ("glm5-next", replace(_KDA_HYBRID, caches_drafting=False, indexer=Indexer.BY_TYPES)),
)

ARCHITECTURES: dict[str, Architecture] = {name: row for names, row in _ROWS for name in names.split()}
"""By `general.architecture`."""


def architecture(name: str) -> Architecture:
    """The row of an architecture, or UNKNOWN."""
    return ARCHITECTURES.get(name, UNKNOWN)
