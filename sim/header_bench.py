"""How our header reader and the `gguf` package's do on one file, beside each other: `python -m sim.header_bench`.

Owns a file with a large vocabulary, and one process for each reader, so that each has its own memory. Time is the
processor's. Figures for notes, never a test. The reference takes a quarter of a minute or more, and a GiB.
"""

import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import thread_time

from gridsched.vram.header import scan_file

VOCABULARY = 262_144
WINDOW_BYTES = 512 << 10  # as the library reads files
ROUNDS = {"ours": 9, "reference": 1}


def header_bytes(vocabulary: int) -> bytes:
    """The head of a model file with a large vocabulary: tokens, merges, scores and types."""

    def text(value: bytes) -> bytes:
        return struct.pack("<Q", len(value)) + value

    def array(key: bytes, kind: int, items: bytes) -> bytes:
        return text(b"tokenizer.ggml." + key) + struct.pack("<IIQ", 9, kind, vocabulary) + items

    pairs = (
        text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama"),
        array(b"tokens", 8, b"".join(text(b"token%d" % number) for number in range(vocabulary))),
        array(b"merges", 8, b"".join(text(b"tok en%d" % number) for number in range(vocabulary))),
        array(b"scores", 6, bytes(4 * vocabulary)),
        array(b"token_type", 5, bytes(4 * vocabulary)),
    )
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs)) + b"".join(pairs)


def _read_ours(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        scan_file(lambda offset, least: os.pread(descriptor, max(least, WINDOW_BYTES), offset), size)
    finally:
        os.close(descriptor)


def _reference() -> Callable[[str], object]:
    from gguf import GGUFReader  # noqa: PLC0415 - numpy and half a second, in the process that measures it alone

    return GGUFReader


def _peak_mib() -> float:
    """The most memory this process has had since the count was cleared, or ever where it cannot be."""
    with suppress(OSError):
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(reader: str, path: str) -> tuple[float, float]:
    """Median milliseconds, and MiB by which this process grew at its most, reading included."""
    read = _read_ours if reader == "ours" else _reference()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _peak_mib()
    figures = []
    for _ in range(ROUNDS[reader]):
        started = thread_time()
        read(path)
        figures.append((thread_time() - started) * 1000)
    return sorted(figures)[len(figures) // 2], _peak_mib() - before


def compare() -> str:
    """One line: both readers on one file, in this minute."""
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(header_bytes(VOCABULARY))
        file.flush()
        figures = {}
        for reader in ROUNDS:
            words = [sys.executable, "-m", "sim.header_bench", reader, file.name]
            done = subprocess.run(words, capture_output=True, text=True, check=True)  # noqa: S603 - this module itself
            figures[reader] = json.loads(done.stdout)
        size = file.tell() / 1e6
    (ms, mib), (reference_ms, reference_mib) = figures["ours"], figures["reference"]
    return (
        f"header with {VOCABULARY:,} tokens ({size:.0f} MB): {ms:.0f} ms and {mib:.1f} MiB; gguf.GGUFReader in the same"
        f" minute {reference_ms:,.0f} ms and {reference_mib:,.0f} MiB ({reference_ms / ms:,.0f} times as long)"
    )


if __name__ == "__main__":
    said = json.dumps(measure(*sys.argv[1:3])) if sys.argv[1:] else compare()
    sys.stdout.write(said + "\n")
