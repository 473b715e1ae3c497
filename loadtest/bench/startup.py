"""From the start of the program until it can serve, over a library of fifty models: with an empty data directory, and
again with what the first start has left there.

Owns the library: headers as real models have them, with vocabularies of 150,000 words in half of them, over data that
is not there. Each start is paired with Python importing trio, h11 and msgspec in the same round: on a busy machine only
their ratio says anything. The files are in the system's cache both times; "cold" is a start that has no index yet.
"""

import http.client
import json
import random
import shutil
import struct
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from loadtest.bench.processes import LOOPBACK, ROOT, Child, Processes, free_port
from loadtest.bench.result import BenchFault, Plan, Row, row_of
from loadtest.bench.tools import compiled

MODELS = 50
WORDS, FEW_WORDS = 151_936, 32_000
"""Of Qwen's models, and of the first Llamas."""
SHAPES = (
    (28, 1024, 16, 3072),
    (36, 2560, 32, 9728),
    (36, 4096, 32, 12288),
    (40, 5120, 40, 17408),
    (64, 5120, 64, 25600),
)
"""Blocks, width, heads, inner width: from half a billion to thirty billion weights."""
KV_HEADS, HEAD_LENGTH = 8, 128
LIMIT_SECONDS = 300.0
POLL_SECONDS = 0.02
REFERENCE = "python with trio, h11, msgspec"
_IMPORTS = "import trio, h11, msgspec"
_TYPES = {"f32": (0, 1, 4), "q4_k": (12, 256, 144), "q6_k": (14, 256, 210)}


def measure(plan: Plan) -> Iterable[Row]:
    """Two rows: cold and cached. Raises BenchFault."""
    folder = plan.folder / "startup"
    folder.mkdir()
    library = make_library(folder / "models")
    stub = compiled("engine_stub", folder)
    plan.say("startup: once before it counts, so that everything is compiled")
    with Processes(folder) as processes:
        _started(processes, library, stub, folder / "data")
    told: dict[str, list[_Start]] = {"cold": [], "cached": []}
    for number in range(plan.rounds):
        data = folder / f"data-{number}"
        for kind, starts in told.items():
            plan.say(f"startup: {kind}, round {number + 1}")
            with Processes(folder) as processes:
                starts.append(_started(processes, library, stub, data))
        shutil.rmtree(data)
    for kind, starts in told.items():
        each = {
            "can_serve_s": [start.wall_s for start in starts],
            "cpu_s": [start.cpu_s for start in starts],
            "reference_cpu_s": [start.reference_cpu_s for start in starts],
            "cpu_ratio": [start.cpu_s / start.reference_cpu_s for start in starts],
        }
        yield row_of(each, case="startup", variant="gridsched", reference=REFERENCE, setting=f"{kind}, {MODELS} models")


@dataclass(frozen=True, slots=True)
class _Start:
    wall_s: float
    cpu_s: float
    reference_cpu_s: float


def _started(processes: Processes, library: Path, stub: Path, data: Path) -> _Start:
    config = data.with_suffix(".yaml")
    config.write_text(json.dumps({"engine": {"path": str(stub)}}), encoding="utf-8")  # JSON is YAML
    env = {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(data.parent / "compiled"), "PYTHONDONTWRITEBYTECODE": ""}
    code = f"{_IMPORTS}; import time; print(time.process_time(), flush=True); time.sleep(60)"
    reference = processes.start("reference", (sys.executable, "-c", code), env)
    until = time.monotonic() + LIMIT_SECONDS
    while not (printed := reference.log.read_text(encoding="utf-8")).endswith("\n"):
        if not reference.running or time.monotonic() > until:
            raise BenchFault(f"python does not start: {reference.said()}")
        time.sleep(POLL_SECONDS)
    port, began = free_port(), time.monotonic()
    words = (sys.executable, "-m", "gridsched", "serve", "--config", str(config), "--models-dir", str(library))
    server = processes.start("gridsched", (*words, "--data-dir", str(data), "--port", str(port)), env, ROOT)
    _wait_until_able(server, port, until)
    return _Start(time.monotonic() - began, server.cpu_us() / 1e6, float(printed))


def _wait_until_able(server: Child, port: int, until: float) -> None:
    """Raises BenchFault."""
    while time.monotonic() < until and server.running:
        connection = http.client.HTTPConnection(LOOPBACK, port, timeout=LIMIT_SECONDS)
        try:
            connection.request("GET", "/health")
            told = json.loads(connection.getresponse().read())
            if told["can_serve"] and told["models_indexed"] == MODELS:
                return
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        time.sleep(POLL_SECONDS)
    raise BenchFault(f"gridsched cannot serve: {server.said()}")


# --- the library ------------------------------------------------------------------------------------------------------


def make_library(folder: Path, models: int = MODELS) -> Path:
    """A folder with so many models, each as large as it says and nearly all of it a hole."""
    folder.mkdir()
    for number in range(models):
        _write(folder / f"model-{number:02}-q4_k.gguf", ("llama", "qwen3")[number % 2], SHAPES[number % 5], number % 2)
    return folder


def _write(path: Path, family: str, shape: tuple[int, int, int, int], many: int) -> None:
    count = WORDS if many else FEW_WORDS
    entries = [*_metadata(path.stem, family, shape), *_vocabulary(count)]
    rows, offset = [], 0
    for name, extents, kind in _tensors(shape, count):
        number, block, size = _TYPES[kind]
        dimensions = struct.pack(f"<I{len(extents)}Q", len(extents), *extents)
        rows.append(_text(name) + dimensions + struct.pack("<IQ", number, offset))
        values = extents[0] * (extents[1] if len(extents) > 1 else 1)
        offset += -(-values // block * size // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(rows), len(entries)) + b"".join((*entries, *rows))
    head += bytes(-len(head) % 32)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + offset)


def _metadata(name: str, family: str, shape: tuple[int, int, int, int]) -> Iterator[bytes]:
    blocks, width, heads, inner = shape
    yield _entry("general.architecture", family)
    yield _entry("general.name", name)
    numbers = {"block_count": blocks, "context_length": 40960, "embedding_length": width, "feed_forward_length": inner}
    numbers |= {"attention.head_count": heads, "attention.head_count_kv": KV_HEADS}
    numbers |= {"attention.key_length": HEAD_LENGTH, "attention.value_length": HEAD_LENGTH}
    for key, number in numbers.items():
        yield _entry(f"{family}.{key}", number)
    yield _entry(
        "tokenizer.chat_template", "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}" * 40
    )


def _tensors(shape: tuple[int, int, int, int], words: int) -> Iterator[tuple[str, Sequence[int], str]]:
    blocks, width, heads, inner = shape
    yield "token_embd.weight", (width, words), "q6_k"
    yield "output_norm.weight", (width,), "f32"
    yield "output.weight", (width, words), "q6_k"
    own, shared = heads * HEAD_LENGTH, KV_HEADS * HEAD_LENGTH
    for block in range(blocks):
        for name, extents, kind in (
            ("attn_norm", (width,), "f32"),
            ("attn_q", (width, own), "q4_k"),
            ("attn_k", (width, shared), "q4_k"),
            ("attn_v", (width, shared), "q6_k"),
            ("attn_output", (own, width), "q4_k"),
            ("ffn_norm", (width,), "f32"),
            ("ffn_gate", (width, inner), "q4_k"),
            ("ffn_up", (width, inner), "q4_k"),
            ("ffn_down", (inner, width), "q6_k"),
        ):
            yield f"blk.{block}.{name}.weight", extents, kind


@cache
def _vocabulary(count: int) -> tuple[bytes, ...]:
    """The lists of a tokenizer: words, their kinds, merges."""
    dice = random.Random(count)  # noqa: S311 - the same words each time
    words = [
        "".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=dice.choice((2, 3, 4, 5, 6, 7, 9, 12))))
        for _ in range(count)
    ]
    merges = [f"{first} {second}" for first, second in pairwise(words)]
    kinds = struct.pack(f"<IIQ{count}i", 9, 5, count, *([1] * count))
    return (
        _entry("tokenizer.ggml.model", "gpt2"),
        _text("tokenizer.ggml.tokens") + _texts(words),
        _text("tokenizer.ggml.token_type") + kinds,
        _text("tokenizer.ggml.merges") + _texts(merges),
    )


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _texts(values: Sequence[str]) -> bytes:
    return struct.pack("<IIQ", 9, 8, len(values)) + b"".join(map(_text, values))


def _entry(key: str, value: str | int) -> bytes:
    if isinstance(value, str):
        return _text(key) + struct.pack("<I", 8) + _text(value)
    return _text(key) + struct.pack("<II", 4, value)
