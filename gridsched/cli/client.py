"""What the client commands share: asking the server that is meant, following what goes on there, showing the answer.

A verb's path is that of its row in `control` (`paths`), never written here.
"""

import argparse
import json
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import httpx

from gridsched.cli import known, paths, show
from gridsched.cli.failures import FAILURES, NotOurs, Refused, explain
from gridsched.cli.streams import tell
from gridsched.cli.where import add_server_arguments, choose, usual_server

ANSWER_SECONDS = 20.0
"""What a command asks takes a server no second; a script must not wait for ever on one that hangs."""

LOOK_SECONDS = 0.2
"""Between two looks at an operation."""


def add_client_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what every command has that asks a server."""
    add_server_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the server's answer as it is, as one JSON document")


def connect(args: argparse.Namespace) -> httpx.Client:
    """A client for the server that the arguments name, else the usual one, which is put down in them. Never through a
    proxy of the environment. Raises KnownError."""
    settle(args)
    headers = {b"Authorization": f"Bearer {args.api_key}".encode()} if args.api_key else {}
    timeout = httpx.Timeout(10.0, read=None)
    return httpx.Client(
        base_url=args.server, headers=headers, trust_env=False, timeout=timeout, verify=trust(args.server, args.ca)
    )


def settle(args: argparse.Namespace) -> None:
    """Put the server that is meant down in the arguments, by what it knows us and whose certificates count. Raises
    KnownError."""
    choose(args)
    if not args.server or not args.api_key:
        args.server, token = usual_server(getattr(args, "data_dir", None), args.server)
        args.api_key = args.api_key or token


def trust(url: str, ca: str | None) -> ssl.SSLContext | bool:
    """Whose certificates are believed: those of the authority that is kept with the server, else the machine's. Raises
    KnownError."""
    if not url.startswith("https:"):
        return False  # reading the machine's authorities takes a while
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:  # ssl.SSLError too
        raise known.KnownError(f"{ca} is no certificate of an authority: {error.strerror or error}") from None


def ask(client: httpx.Client, verb: str, **given: object) -> Mapping[str, Any]:
    """What the verb answers; None in its arguments is left to the server. Raises httpx.HTTPError, Refused, NotOurs."""
    method, path = paths.known()[verb]
    told = {name: value for name, value in given.items() if value is not None}
    for name in [name for name in told if f"{{{name}}}" in path]:
        path = path.replace(f"{{{name}}}", _part(str(told.pop(name))))
    if method in ("GET", "DELETE"):
        return fetch(client, path, method, params={name: _text(value) for name, value in told.items()})
    return fetch(client, path, method, json=told)


def preview(client: httpx.Client, verb: str, **given: object) -> Mapping[str, Any]:
    """What a verb would come to, without doing it. Raises httpx.HTTPError, Refused and NotOurs."""
    method, path = paths.known()[verb]
    told = {name: value for name, value in given.items() if value is not None}
    for name in [name for name in told if f"{{{name}}}" in path]:
        path = path.replace(f"{{{name}}}", _part(str(told.pop(name))))
    return fetch(client, path, method, params={"dry_run": "true"}, json=told)


def _part(name: str) -> str:
    """A name as a part of a path: also one of dots alone, which would lead elsewhere."""
    return quote(name, safe="") if name.strip(".") else "%2E" * len(name)


def whole(client: httpx.Client, verb: str, *lists: str) -> Mapping[str, Any]:
    """What a verb answers, its lists with all of their pages. Raises httpx.HTTPError, Refused and NotOurs."""
    told = dict(ask(client, verb))
    while cursor := told.get("next_cursor"):
        page = ask(client, verb, cursor=cursor)
        told |= {name: [*told[name], *page[name]] for name in lists} | {"next_cursor": page.get("next_cursor")}
    return told


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def fetch(client: httpx.Client, path: str, method: str = "GET", **sent: Any) -> Mapping[str, Any]:
    """The JSON object at a path, or that is answered there. Raises httpx.HTTPError, Refused and NotOurs."""
    sent = {name: value for name, value in sent.items() if value}
    return answered(client.request(method, path, timeout=ANSWER_SECONDS, **sent))


def answered(answer: httpx.Response) -> Mapping[str, Any]:
    """The JSON object that an answer is. Raises httpx.HTTPError, Refused and NotOurs."""
    try:
        told = answer.json()
    except ValueError:
        told = None
    if answer.is_success and isinstance(told, dict):
        return told
    if isinstance(told, dict) and isinstance(error := told.get("error"), dict) and "message" in error:
        raise Refused(str(error["message"]), str(error.get("code", "")), error)
    answer.raise_for_status()
    raise NotOurs("it sends no JSON object")


def follow(client: httpx.Client, begun: Mapping[str, Any], heard: show.Tell) -> Mapping[str, Any]:
    """The end of an operation that has begun, told by `heard` until then: its result. What is over at once comes back
    as it is. Raises httpx.HTTPError, Refused and NotOurs."""
    if not is_operation(begun):
        return begun
    told = begun
    while told.get("state") == "running":
        heard(float(told.get("done") or 0), told.get("total"), str(told.get("text", "")))
        time.sleep(LOOK_SECONDS)
        told = ask(client, "explain", job=begun["id"])
    if told.get("state") == "done":
        return told
    error = told.get("error")
    if isinstance(error, dict):
        raise Refused(str(error.get("message", "")), str(error.get("code", "")), error)
    raise Refused(f"{begun['id']} was cancelled", "cancelled")


def is_operation(told: Mapping[str, Any]) -> bool:
    """Whether an answer is of a verb that goes on."""
    return str(told.get("id", "")).startswith("op-") and "state" in told


def run(
    args: argparse.Namespace,
    asked: Callable[[httpx.Client], Mapping[str, Any]],
    shown: Callable[[Mapping[str, Any]], None],
    part: str | None = None,
) -> int:
    """Ask, and show the answer: to a person, or as it is, or a part of it. 0, or 1 where there is none."""
    try:
        with connect(args) as client:
            told = asked(client)
        if args.json:
            tell(json.dumps(told if part is None else told.get(part)))
        else:
            _show(shown, told)
    except FAILURES as error:
        return explain(args, error)
    return 0


def _show(shown: Callable[[Mapping[str, Any]], None], told: Mapping[str, Any]) -> None:
    """Raises NotOurs where the answer is none of gridsched's."""
    try:
        shown(told)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotOurs(
            f"its answer lacks something ({type(error).__name__} {error}); is it of another version?"
        ) from None
