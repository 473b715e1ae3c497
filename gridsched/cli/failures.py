"""Why a command has no answer, in one sentence, and what to do: nobody listens, something else does, or the server
refuses.

Owns these sentences and their exit codes. Must never print a secret.
"""

import argparse
import json
from collections.abc import Mapping
from typing import Any

import httpx

from gridsched.cli import arithmetic, show
from gridsched.cli.known import KnownError
from gridsched.cli.streams import tell
from gridsched.library.names import printable

FAILED, CONFIGURATION = 1, 2


class NotOurs(Exception):
    """What answers is no gridsched; the sentence says how that is known."""


class Refused(Exception):
    """The server answers that it will not, or cannot; the sentence and the code are its own, `error` all of it."""

    def __init__(self, message: str, code: str = "", error: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.error = error or {"message": message, "code": code}


Failure = httpx.HTTPError | NotOurs | Refused | KnownError
FAILURES = (httpx.HTTPError, NotOurs, Refused, KnownError)


def explain(args: argparse.Namespace, error: Failure) -> int:
    """Say why there is no answer, or none of ours, and what to do; the exit code."""
    show.say(_sentence(args.server, error))
    if isinstance(error, Refused):
        for line in arithmetic.lines(error.error.get("gridsched") or {}):
            show.beside(printable(line))
        if getattr(args, "json", False):
            tell(json.dumps({"error": error.error}))
    return CONFIGURATION if isinstance(error, KnownError) else FAILED


def _sentence(at: str, error: Failure) -> str:
    match error:
        case KnownError():
            return str(error)
        case Refused():
            return _refused(at, error)
        case NotOurs():
            return f"what answers at {at} is no gridsched: {error}"
        case httpx.HTTPStatusError(response=answer):
            if answer.status_code in (401, 403):
                return f"the server at {at} wants another key ({answer.status_code}); name it with --api-key"
            return f"the server at {at} answers {answer.status_code} here; is it a gridsched?"
    return _unreached(at, error)


def _refused(at: str, error: Refused) -> str:
    match error.code:
        case "invalid_api_key":
            return f"{error} (--api-key, or kept: gridsched servers add NAME {at} --key-stdin)"
        case "remote_admin_requires_credential":
            return f"{error}: name that directory (--data-dir), or show what is in admin.token there (--api-key)"
    return str(error)


def _unreached(at: str, error: httpx.HTTPError) -> str:
    match error:
        case httpx.ReadTimeout():
            return f"the server at {at} does not answer in time: it hangs"
        case httpx.ConnectError() if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return f"the certificate of {at} is of nobody whom this machine trusts; gridsched servers add has --ca FILE"
        case httpx.ConnectError() if "SSL" in str(error):
            return f"what answers at {at} does not speak TLS; is it http://…?"
        case httpx.LocalProtocolError():  # which tells the key
            return "the key has letters that cannot be sent, such as a line's end; nothing was asked (--api-key)"
        case httpx.RemoteProtocolError():
            return f"what answers at {at} is no gridsched, or wants https://: {error}"
    return f"no server answers at {at} ({error}); start one (gridsched serve) or name it (--server)"
