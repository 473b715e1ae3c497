"""A header's metadata by the architecture's own short names, each value checked where it is used.

Owns the checks and the error that they end in. Nothing that a header claims is believed before it is here: counts are
whole and within bounds, lists have an entry for each layer.
"""

from collections.abc import Mapping

from gridsched.vram.header import MetadataValue, Scalar, SkippedArray

MAX_BLOCKS = 512  # LLAMA_MAX_LAYERS: the engine refuses more
MAX_COUNT = 2**31 - 1  # contexts, windows, vocabularies
MAX_WIDTH = 2**20  # lengths, heads, experts; the widest real feed-forward layers have under 60,000 values


class GeometryError(Exception):
    """A header without what planning needs, or with nonsense there. `field` is the metadata key."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class Keys:
    """The metadata of one architecture. Every method that takes a short name raises GeometryError for its value."""

    def __init__(self, metadata: Mapping[str, MetadataValue]) -> None:
        self.metadata = metadata
        architecture = metadata.get("general.architecture")
        if not isinstance(architecture, str) or not architecture:
            raise GeometryError("general.architecture", "the header does not name the model's architecture")
        self.architecture = architecture

    def raw(self, key: str) -> MetadataValue | None:
        """The value as the header has it."""
        return self.metadata.get(f"{self.architecture}.{key}")

    def is_list(self, key: str) -> bool:
        """Whether the header has a list there."""
        return isinstance(self.raw(key), tuple | SkippedArray)

    def text(self, full_key: str) -> str | None:
        """A string by its whole key."""
        value = self.metadata.get(full_key)
        return value if isinstance(value, str) else None

    def error(self, key: str, message: str) -> GeometryError:
        """The error for a short name."""
        return GeometryError(f"{self.architecture}.{key}", message)

    def number(self, key: str, default: int | None = None, *, most: int = MAX_WIDTH, may_be_list: bool = False) -> int:
        """A count. A missing one raises unless there is a default; of a list the largest entry counts, where the key
        may have one for each layer."""
        value = self.raw(key)
        if value is None:
            if default is None:
                raise self.error(key, "is missing from the header")
            return default
        if may_be_list and isinstance(value, tuple):
            return max((self._whole(key, item, most) for item in value), default=0)
        if isinstance(value, tuple | SkippedArray):
            raise self.error(key, "is a list where one number is expected")
        return self._whole(key, value, most)

    def per_layer(self, key: str, total: int, blocks: int, default: int) -> tuple[int, ...]:
        """A count for each of `total` layers, from a list or from one number.

        A list may leave out the blocks behind the `blocks` ordinary ones, which are then as its largest.
        """
        value = self.raw(key)
        if not isinstance(value, tuple | SkippedArray):
            return (default if value is None else self._whole(key, value, MAX_WIDTH),) * total
        counts = tuple(self._whole(key, item, MAX_WIDTH) for item in self._entries(key, value, total, blocks))
        return counts + (max(counts, default=default),) * (total - len(counts))

    def marks(self, key: str, total: int, blocks: int) -> tuple[bool, ...]:
        """Yes or no for each of `total` layers, from a list or from one number for all; no for those it leaves out."""
        value = self.raw(key)
        if not isinstance(value, tuple | SkippedArray):
            return (self.number(key, most=MAX_COUNT) > 0,) * total
        entries = self._entries(key, value, total, blocks)
        marks = tuple(item if isinstance(item, bool) else self._whole(key, item, MAX_COUNT) > 0 for item in entries)
        return marks + (False,) * (total - len(marks))

    def _entries(
        self, key: str, value: tuple[Scalar, ...] | SkippedArray, total: int, blocks: int
    ) -> tuple[Scalar, ...]:
        length = value.length if isinstance(value, SkippedArray) else len(value)
        if isinstance(value, SkippedArray) or length not in (total, blocks):
            raise self.error(key, f"has {length} entries for {total} layers")
        return value

    def _whole(self, key: str, value: MetadataValue, most: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.error(key, f"{value!r} is not a count")
        if value > most:
            raise self.error(key, f"{value} is implausible (at most {most})")
        return value
