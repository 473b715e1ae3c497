"""Bytes of a recurrent layer's state for one sequence, from the header's keys. Always f32, whatever the cache's type.

Owns one formula for each kind of state (llama-hparams, `n_embd_r` and `n_embd_s`): what the convolution remembers, and
the state proper.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gridsched.vram.architectures import StateKind
from gridsched.vram.keys import Keys

_F32_BYTES = 4


@dataclass(frozen=True, slots=True)
class StateSpace:
    """The recurrent part's sizes, in values; all 0 where there is none."""

    inner: int = 0
    state: int = 0
    conv: int = 0
    groups: int = 0
    heads: int = 0

    @property
    def conv_width(self) -> int:
        """Values a token that pass through the convolution."""
        return self.inner + 2 * self.groups * self.state

    @property
    def state_bytes(self) -> int:
        """What one layer remembers of one sequence."""
        return _F32_BYTES * (max(self.conv - 1, 0) * self.conv_width + self.state * self.inner)


def state_space(keys: Keys, kind: StateKind | None) -> StateSpace:
    """The sizes that the loader of an architecture with such states reads; raises GeometryError."""
    if kind in (None, StateKind.RWKV, StateKind.SHORT_CONVOLUTION, StateKind.LIGHTNING):
        return StateSpace()
    grouped = kind is not StateKind.MAMBA_UNGROUPED
    return StateSpace(
        inner=keys.number("ssm.inner_size", 0),
        state=keys.number("ssm.state_size", 0),
        conv=keys.number("ssm.conv_kernel", 0),
        groups=keys.number("ssm.group_count", 0) if grouped else 0,
        heads=keys.number("ssm.time_step_rank", 0),
    )


def state_bytes(keys: Keys, kind: StateKind | None, heads: int, head_length: int) -> int:
    """Bytes of one layer's state; 0 where the header has none of the keys. `heads` and `head_length` are those of the
    attention of the first layer, which two kinds share. Raises GeometryError.
    """
    width = keys.number("embedding_length")
    sizes: Mapping[StateKind | None, Callable[[], int]] = {
        None: int,
        StateKind.RWKV: lambda: (
            _F32_BYTES * width * (keys.number("token_shift_count", 2) + keys.number("wkv.head_size"))
        ),
        StateKind.SHORT_CONVOLUTION: lambda: _F32_BYTES * width * max(keys.number("shortconv.l_cache") - 1, 0),
        StateKind.KDA: lambda: _kda_bytes(keys, heads),
        StateKind.LIGHTNING: lambda: _F32_BYTES * head_length * head_length * heads,
        StateKind.BY_KEYS: lambda: _bytes_by_keys(keys, heads),
    }
    return sizes[kind]() if kind in sizes else state_space(keys, kind).state_bytes


def ngram_bytes(keys: Keys) -> int:
    """What one layer with n-gram embeddings remembers of one sequence beside its state: the inputs that its dilated
    convolution looks back over, in every stream of the hyper-connections. Raises GeometryError."""
    back = max(keys.number("ple.conv_kernel", 0) - 1, 0) * keys.number("ple.ngram_size", 0)
    return _F32_BYTES * back * keys.number("hyper_connection.count", 1) * keys.number("embedding_length")


def _kda_bytes(keys: Keys, heads: int) -> int:
    head = keys.number("kda.head_dim")
    remembered = (keys.number("ssm.conv_kernel", 0) or 4) - 1
    return _F32_BYTES * heads * head * (3 * remembered + head)


def _bytes_by_keys(keys: Keys, heads: int) -> int:
    """Of an architecture that the table does not know: the largest that its keys can mean."""
    sizes = [state_space(keys, StateKind.BY_KEYS).state_bytes]
    if keys.raw("wkv.head_size") is not None:
        sizes.append(state_bytes(keys, StateKind.RWKV, heads, 0))
    if keys.raw("shortconv.l_cache") is not None:
        sizes.append(state_bytes(keys, StateKind.SHORT_CONVOLUTION, heads, 0))
    if keys.raw("kda.head_dim") is not None:
        sizes.append(_kda_bytes(keys, heads))
    return max(sizes)
