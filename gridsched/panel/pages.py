"""`/` and `/panel/…`: the panel's files, as a Quart blueprint.

Owns how they are sent: from memory, and with a policy under which nothing runs or is shown that did not come from this
server. They hold no secret, so everybody may have them; whatever the page shows it asks the API for, with the key of
whoever looks. Must never put anything into a page: what comes from outside reaches it as JSON only.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from typing import Final

from quart import Blueprint, Response, request
from werkzeug.exceptions import NotFound

NAME: Final = "panel"
"""Of the blueprint: what is under it needs no scope."""

INDEX: Final = "index.html"

TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Content-Security-Policy. With trusted types even a script of ours cannot make markup of a text (M9)."""

HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class Page:
    """One file: what it is, and its content."""

    content_type: str
    content: bytes
    etag: str


def blueprint() -> Blueprint:
    """The routes. The files are read once."""
    pages = _pages()
    panel = Blueprint(NAME, __name__)

    @panel.get("/")
    async def get_index() -> Response:
        return _answer(pages[INDEX])

    @panel.get("/panel/<path:name>")
    async def get_file(name: str) -> Response:
        if name not in pages or name == INDEX:
            raise NotFound
        return _answer(pages[name])

    return panel


def _answer(page: Page) -> Response:
    response = Response(page.content, content_type=page.content_type, headers=HEADERS)
    response.set_etag(page.etag)
    if request.if_none_match.contains_weak(page.etag):  # a proxy that packs it makes it weak
        response.status_code = 304
        response.set_data(b"")
        del response.content_length
    return response


def _pages() -> Mapping[str, Page]:
    return {
        name: Page(TYPES[PurePosixPath(name).suffix], content, sha256(content).hexdigest()[:16])
        for name, content in _files(files(__package__) / "static", "")
    }


def _files(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _files(each, f"{prefix}{each.name}/")
        elif PurePosixPath(each.name).suffix in TYPES:
            yield prefix + each.name, each.read_bytes()
