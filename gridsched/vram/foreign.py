"""What a file is that is no GGUF, by its first bytes: people's folders are full of them, and they want to know which.

Owns the list of beginnings. Decides nothing: `header` refuses the file, this says what to call it.
"""

_BEGINNINGS: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "it is a Git LFS pointer: the file itself was never fetched (git lfs pull does that)"),
    (b"tjgg", "it is a ggjt file, from before GGUF: the model must be converted anew"),
    (b"fmgg", "it is a ggmf file, from before GGUF: the model must be converted anew"),
    (b"lmgg", "it is a ggml file, from before GGUF: the model must be converted anew"),
    (b"algg", "it is a ggla adapter, from before GGUF: it must be converted anew"),
    (b"ggjt", "it is a ggjt file, from before GGUF: the model must be converted anew"),
    (b"FUGG", "its first word is GGUF's with the bytes swapped"),
    (b"PK\x03\x04", "it is a zip archive, as PyTorch's checkpoints are"),
    (b"\x80\x02", "it is a Python pickle, as old PyTorch checkpoints are"),
    (b"\x1f\x8b", "it is compressed by gzip"),
    (b"\xfd7zXZ", "it is compressed by xz"),
    (b"(\xb5/\xfd", "it is compressed by zstd"),
    (b"\x89HDF", "it is an HDF5 file, as Keras's checkpoints are"),
    (b"\x7fELF", "it is a program"),
    (b"<?xml", "it is an XML text, as the errors of file servers are"),
    (b"{", "it is a JSON text"),
)
_PAGE_BEGINNINGS = (b"<!doctype html", b"<html", b"<head")
_SAFETENSORS_MAX_HEADER = 100_000_000  # that format's own limit
LOOKED_AT_BYTES = 32
"""How many of a file's first bytes tell; fewer tell less."""


def described(head: bytes) -> str:
    """What the file with these first bytes is, as a clause; its first four bytes where that is all there is to say."""
    for beginning, words in _BEGINNINGS:
        if head.startswith(beginning):
            return words
    if head.lstrip().lower().startswith(_PAGE_BEGINNINGS):
        return "it is a web page: a login or an error was saved in the model's place"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= _SAFETENSORS_MAX_HEADER:
        return "it is a safetensors file: the model must be converted to GGUF"
    if not head.strip(b"\0"):
        return "it begins with zeros: a download that has not come so far"
    return f"it begins with {head[:4]!r}"
