"""The hub, asked by `huggingface_hub`: which repositories there are, and what files one of them holds.

Owns what is asked, with which credential, and how long is waited. Every request is asked for by a person or an agent:
nothing is sent at import or at start, the library's own reports are off, and a token goes to the hub alone. What the
hub says is not believed: sizes and checksums are held against the bytes that come (`fetch`), paths against the folder
that they are to lie in.

Blocks for as long as the hub does, up to a limit: the caller makes the calls in a thread. Raises HubError alone.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlsplit

if TYPE_CHECKING:
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

PUBLIC_HUB = "https://huggingface.co"
SILENT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
"""How long the hub may be silent, and how long one answer may take."""

LARGEST_ANSWER_BYTES = 16 << 20
"""A repository of ten thousand files tells 4 MB about them."""

_TRUE = {"1", "ON", "YES", "TRUE"}
_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}", re.ASCII)
_REVISION = re.compile(r"[\w./-]{1,200}", re.ASCII)
_TOLD_TO_STAY = "HF_HUB_OFFLINE is set for this server: the hub is not asked"
_MISSING = {"RevisionNotFound": "revision of it", "EntryNotFound": "file"}
_TOLD = ("downloads", "likes", "lastModified", "gated", "private", "tags", "pipeline_tag", "gguf")


class Trouble(Enum):
    """Why the hub gave no answer."""

    OFFLINE = "offline"  # this machine is told not to ask
    UNREACHABLE = "unreachable"
    BUSY = "busy"  # too many requests: later
    NOT_FOUND = "not_found"
    GATED = "gated"  # nobody gets it without permission
    WRONG = "wrong"  # what came cannot be right
    ASKED_WRONG = "asked_wrong"  # what was asked for cannot be


class HubError(Exception):
    """No answer: the sentence is fit for a person, the trouble for whoever makes a status of it."""

    def __init__(self, trouble: Trouble, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.trouble = trouble
        self.retry_after_seconds = retry_after_seconds


@dataclass(frozen=True, slots=True)
class Found:
    """A repository in a search. `gated` is how one gets permission: "" where none is needed, `auto`, `manual`."""

    id: str
    downloads: int
    likes: int
    updated: str
    gated: str
    private: bool
    tags: tuple[str, ...]
    architecture: str
    ctx_train: int | None


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository. `sha256` is "" for one that is no large file; then `blob_id` is git's own checksum."""

    path: str
    size_bytes: int
    sha256: str
    blob_id: str


@dataclass(frozen=True, slots=True)
class Repo:
    """A repository at one commit: everything that is fetched of it is of that one."""

    found: Found
    commit: str
    files: tuple[HubFile, ...]

    @property
    def id(self) -> str:
        """`PUBLISHER/NAME`."""
        return self.found.id


class Hub:
    """The hub that the environment names, with its credential: `HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_OFFLINE`."""

    def __init__(self, environ: Mapping[str, str], *, silent_seconds: float = SILENT_SECONDS) -> None:
        """Asks nothing."""
        self.endpoint = (environ.get("HF_ENDPOINT") or PUBLIC_HUB).rstrip("/")
        self._token = environ.get("HF_TOKEN", "").strip()
        self.environ = {"HF_ENDPOINT": self.endpoint, "HF_TOKEN": self._token}
        offline = environ.get("HF_HUB_OFFLINE") or environ.get("TRANSFORMERS_OFFLINE") or ""
        self._offline = offline.upper() in _TRUE
        self.silent_seconds = silent_seconds

    @property
    def host(self) -> str:
        """Its name, for sentences: without a name and a password for it, which are nobody's to read."""
        return (urlsplit(self.endpoint).netloc or self.endpoint).rpartition("@")[2]

    def search(self, words: str, limit: int, cursor: str | None = None) -> tuple[tuple[Found, ...], str | None]:
        """Repositories with GGUF files, the most downloaded first, and where the next page begins."""
        asked: dict[str, Any] = {"filter": "gguf", "limit": limit, "sort": "downloads", "expand": list(_TOLD)}
        asked |= {"search": words} if words.strip() else {}
        asked |= {"cursor": cursor} if cursor else {}
        told, links = self._ask("/api/models", asked)
        if not isinstance(told, list):
            raise self._wrong()
        following = parse_qs(urlsplit(links.get("next", {}).get("url", "")).query).get("cursor")
        return tuple(_found(self._info(each)) for each in told), following[0] if following else None

    def repo(self, repo_id: str, revision: str | None = None) -> Repo:
        """A repository, at a branch, tag or commit; at its main branch where none is named."""
        check_repo_id(repo_id)
        if revision is not None and not _REVISION.fullmatch(revision):
            raise HubError(Trouble.ASKED_WRONG, f"{revision[:80]!r} is no branch, tag or commit")
        at = f"/revision/{quote(revision, safe='')}" if revision is not None else ""
        told, _ = self._ask(f"/api/models/{repo_id}{at}", {"blobs": True})
        info = self._info(told)
        if not re.fullmatch(r"[0-9a-f]{7,64}", info.sha or "") or info.id.lower() != repo_id.lower():
            raise self._wrong()
        return Repo(_found(info), str(info.sha), tuple(self._file(each) for each in info.siblings or ()))

    def address(self, repo: Repo, path: str) -> str:
        """Where a file of it is."""
        return f"{self.endpoint}/{repo.id}/resolve/{repo.commit}/{quote(path)}"

    @contextmanager
    def stream(
        self, url: str, headers: Mapping[str, str] | None = None, params: Mapping[str, Any] | None = None
    ) -> Iterator["httpx2.Response"]:
        """One answer of the hub, or of the host that it sends to, which hears no token. Raises HubError, also for what
        goes wrong while the body is read."""
        self.check_may_ask()
        import httpx2  # noqa: PLC0415 - a server that is never asked for a model has no use for it
        from huggingface_hub import get_session, hf_raise_for_status  # noqa: PLC0415 - the same
        from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled  # noqa: PLC0415 - the same
        from huggingface_hub.utils._headers import build_hf_headers  # noqa: PLC0415 - the same

        _silence()
        sent = build_hf_headers(token=self._token or False, library_name="gridsched", headers=dict(headers or {}))
        session = get_session()
        try:
            with session.stream(
                "GET", url, headers=sent, params=params, timeout=httpx2.Timeout(self.silent_seconds)
            ) as response:
                if response.is_error:
                    hf_raise_for_status(response)
                if self.endpoint.startswith("https:") and response.url.scheme != "https":
                    raise HubError(Trouble.WRONG, f"{self.host} sends from https to {response.url.scheme}")
                yield response
        except HfHubHTTPError as error:
            raise self._refused(error) from error
        except OfflineModeIsEnabled as error:
            raise HubError(Trouble.OFFLINE, _TOLD_TO_STAY) from error
        except httpx2.TimeoutException as error:
            raise HubError(Trouble.UNREACHABLE, f"{self.host} did not answer in time") from error
        except httpx2.ConnectError as error:
            raise HubError(Trouble.UNREACHABLE, f"{self.host} cannot be reached: {error}") from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise HubError(Trouble.UNREACHABLE, f"{self.host} broke off: {error or type(error).__name__}") from error

    def check_may_ask(self) -> None:
        """Raises HubError where this machine was told not to, or cannot."""
        if self._offline:
            raise HubError(Trouble.OFFLINE, _TOLD_TO_STAY)
        if urlsplit(self.endpoint).scheme not in ("http", "https"):
            raise HubError(Trouble.UNREACHABLE, f"HF_ENDPOINT is no http or https address: {self.host!r}")
        if not (self._token.isascii() and self._token.isprintable()):
            raise HubError(Trouble.GATED, "HF_TOKEN has a character that no token has")

    def _ask(self, path: str, params: Mapping[str, Any]) -> tuple[Any, Mapping[Any, Mapping[str, str]]]:
        """What the hub says, and its links to other pages."""
        deadline = monotonic() + ANSWER_SECONDS
        body = bytearray()
        with self.stream(self.endpoint + path, params=params) as response:
            for piece in response.iter_bytes():
                body += piece
                if monotonic() > deadline:
                    raise HubError(Trouble.UNREACHABLE, f"{self.host} is too slow: its answer did not come in time")
                if len(body) > LARGEST_ANSWER_BYTES:
                    raise HubError(Trouble.WRONG, f"{self.host} answers without an end")
            links = response.links
        try:
            return json.loads(body), links
        except (ValueError, RecursionError) as error:
            raise self._wrong() from error

    def _info(self, told: object) -> "ModelInfo":
        from huggingface_hub.hf_api import ModelInfo  # noqa: PLC0415 - see `stream`

        if not isinstance(told, dict):
            raise self._wrong()
        try:
            return ModelInfo(**told)  # type: ignore[no-untyped-call] # it has no types, and checks by failing
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise self._wrong() from error

    def _file(self, told: "RepoSibling") -> HubFile:
        size = told.lfs.size if told.lfs is not None else told.size
        sha256 = told.lfs.sha256 if told.lfs is not None else ""
        if not isinstance(size, int) or size < 0 or (sha256 and not re.fullmatch(r"[0-9a-f]{64}", str(sha256))):
            raise self._wrong()
        return HubFile(told.rfilename, size, sha256, told.blob_id or "")

    def _wrong(self) -> HubError:
        return HubError(Trouble.WRONG, f"{self.host} answers with something that is no answer of the hub")

    def _refused(self, error: "HfHubHTTPError") -> HubError:
        """What an error's status means. The hub says 401 of a repository that is not there, too."""
        response = error.response
        status, code = response.status_code, response.headers.get("x-error-code", "")
        also = "although HF_TOKEN was sent" if self._token else "no HF_TOKEN is set for this server"
        if code == "GatedRepo":
            return HubError(Trouble.GATED, f"{self.host} gives this repository only to who has permission ({also})")
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return HubError(Trouble.GATED, f"{self.host} has no such repository, or not for this server ({also})")
        if status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
            return HubError(Trouble.NOT_FOUND, f"{self.host} has no such {_MISSING.get(code, 'repository')}")
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            after = response.headers.get("retry-after", "")
            wait = float(after) if after.isascii() and after.isdigit() and len(after) < 7 else None  # noqa: PLR2004
            return HubError(Trouble.BUSY, f"{self.host} has had too many requests from here", wait)
        return HubError(Trouble.UNREACHABLE, f"{self.host} answered {status} {response.reason_phrase}".rstrip())


def check_repo_id(repo_id: str) -> None:
    """Raises HubError for what can be no repository: it becomes a part of addresses and of paths."""
    if not _REPO.fullmatch(repo_id) or ".." in repo_id or "--" in repo_id or repo_id.endswith((".", ".git")):
        raise HubError(Trouble.ASKED_WRONG, f"{repo_id[:200]!r} is no repository: it is PUBLISHER/NAME")


def _silence() -> None:
    """The library tells the hub with each request what else is installed, and asks it who may be calling, unless this
    is so. It is read from the environment at the import, which a test or another library may have done before."""
    from huggingface_hub import constants  # noqa: PLC0415 - see `stream`

    constants.HF_HUB_DISABLE_TELEMETRY = True


def _found(info: "ModelInfo") -> Found:
    gguf = info.gguf if isinstance(info.gguf, Mapping) else {}
    updated = info.last_modified
    trained = gguf.get("context_length")
    return Found(
        id=str(info.id),
        downloads=info.downloads or 0,
        likes=info.likes or 0,
        updated=updated.isoformat(timespec="seconds") if updated is not None else "",
        gated=str(info.gated) if info.gated else "",
        private=bool(info.private),
        tags=tuple(map(str, info.tags or ())),
        architecture=str(gguf.get("architecture") or ""),
        ctx_train=trained if isinstance(trained, int) else None,
    )
