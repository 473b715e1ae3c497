"""Our header reader against the `gguf` package's: every value that ours keeps, every tensor, on every kind of file."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from gguf import GGUFReader
from gguf.constants import GGUFEndian, GGUFValueType

from gridsched.library.read import read_file
from gridsched.vram.header import KEPT_ARRAY_ENTRIES, Header, SkippedArray, scan
from tests.library.models import CHAT, EMBEDDER, PROJECTOR, PROJECTOR_TENSORS, TENSORS, write_split
from tests.support.gguf_header import Tensor, Value, build_header, data_end
from tests.support.tiny_model import make_tiny_chat
from tests.vram.models import real_headers

SHORT = {"uint": "u", "int": "i", "float": "f"}


def short(kind: GGUFValueType) -> str:
    """The package's name of a type as we write it: UINT32 is u32."""
    name = kind.name.lower()
    for long, letter in SHORT.items():
        if name.startswith(long) and name != long:
            return letter + name.removeprefix(long)
    return name


def check(path: Path) -> None:
    """Assert that both readers say the same about this file."""
    reference = GGUFReader(path)
    ours = read_file(path, any_byte_order=True).header
    assert ours.big_endian == (reference.endianess == GGUFEndian.BIG)
    fields = {name: field for name, field in reference.fields.items() if not name.startswith("GGUF.")}
    assert ours.version == reference.fields["GGUF.version"].contents()
    assert list(ours.metadata) == list(fields)
    for name, field in fields.items():
        kept, array = ours.metadata[name], field.types[0] == GGUFValueType.ARRAY
        if isinstance(kept, SkippedArray):
            assert array
            assert (kept.kind, kept.length) == (short(field.types[1]), len(field.data))
            assert kept.length > KEPT_ARRAY_ENTRIES
        else:
            assert kept == (tuple(field.contents()) if array and field.data else () if array else field.contents()), (
                name
            )
    assert ours.data_offset == reference.data_offset
    assert [(t.name, t.shape, t.type_id, t.size_bytes, ours.data_offset + t.offset) for t in ours.tensors] == [
        (t.name, tuple(t.shape.tolist()), t.tensor_type.value, t.n_bytes, t.data_offset) for t in reference.tensors
    ]


def sparse(path: Path, header: bytes, parsed: Header) -> Path:
    """A file with this header and as much as its tensors need behind it, which takes no disk."""
    with path.open("wb") as file:
        file.write(header)
        file.truncate(parsed.data_offset + max((t.offset + t.size_bytes for t in parsed.tensors), default=0))
    return path


@pytest.mark.parametrize("name", sorted(real_headers()))
def test_a_real_models_header_is_read_as_the_reference_reads_it(name: str, tmp_path: Path) -> None:
    """All its metadata, and each tensor's name, shape, type, place and bytes."""
    data = real_headers()[name]
    check(sparse(tmp_path / "m.gguf", data, scan(data)))


LORA: tuple[Tensor, ...] = (
    ("blk.0.attn_q.weight.lora_a", (256, 8), "F32"),
    ("blk.0.attn_q.weight.lora_b", (8, 256), "F32"),
)
EVERY: Mapping[str, Value] = {
    **CHAT,
    "x.on": True,
    "x.off": False,
    "x.negative": -7,
    "x.large": 2**40,
    "x.text": "mo\u0301del 模型 🦙",
    "x.flags": [True, False],
    "x.words": ["", "a", "é" * 300],
    "x.at the edge": list(range(KEPT_ARRAY_ENTRIES)),
    "x.beyond": list(range(KEPT_ARRAY_ENTRIES + 1)),
    "x.floats": [0.5] * 600,
    "x.many": [f"word {i}" for i in range(3000)],
}


@pytest.mark.parametrize("order", ["<", ">"], ids=["little-endian", "big-endian"])
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    ("metadata", "tensors"),
    [
        (EVERY, TENSORS),
        (EMBEDDER, TENSORS),
        (PROJECTOR, PROJECTOR_TENSORS),
        ({"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}, LORA),
        ({**CHAT, "general.alignment": 4096}, TENSORS),
    ],
    ids=["every type of value", "encoder", "projector", "adapter", "wide alignment"],
)
def test_other_kinds_of_file_are_read_as_the_reference_reads_them(
    metadata: Mapping[str, Value], tensors: Sequence[Tensor], version: int, order: str, tmp_path: Path
) -> None:
    """Both versions, both byte orders, every type of value."""
    alignment = metadata.get("general.alignment", 32)
    assert isinstance(alignment, int)
    data = build_header(metadata, tensors, version=version, order=order, alignment=alignment)
    with (tmp_path / "m.gguf").open("wb") as file:
        file.write(data)
        file.truncate(data_end(data, tensors, alignment=alignment))
    check(tmp_path / "m.gguf")


def test_parts_of_a_set_and_a_generated_model_are_read_as_the_reference_reads_them(tmp_path: Path) -> None:
    """Each file by itself."""
    for path in (*write_split(tmp_path, "m", 3), make_tiny_chat(tmp_path / "tiny.gguf")):
        check(path)
