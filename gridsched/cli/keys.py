"""`gridsched keys add·list·revoke`: API keys of the server of a data directory, beside it while it runs.

Owns the words. A secret is printed once, when its key is made, and nowhere else. A server that runs notices the change
by itself.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path

from gridsched.cli.arguments import a_path
from gridsched.cli.show import say
from gridsched.cli.streams import tell
from gridsched.core.job import JobClass
from gridsched.credentials import ApiKey, Scope
from gridsched.library.names import printable
from gridsched.settings.admin_token import read_admin_token
from gridsched.settings.api_keys import (
    KeysError,
    NoSuchChange,
    add_key,
    check_key,
    digest_of,
    new_secret,
    no_such_model,
    read_keys,
    revoke_key,
)
from gridsched.settings.paths import DataDir, DataDirError, data_dir_path, owner_of

FAILED, CONFIGURATION = 1, 2
ASKED_SECONDS = 5.0
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,4})?)%")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    add = _verb(verbs, "add", "make a key; its secret is shown this once")
    add.add_argument("name", metavar="NAME", help="whose key, or what for: letters, digits, dots, dashes, underscores")
    words = ", ".join(each.label for each in JobClass)
    for option, field, text in (
        ("--class", "default_class", f"of requests that name none ({words})"),
        ("--max-class", "highest_class", "the highest that it may use"),
    ):
        add.add_argument(option, dest=field, type=_job_class, metavar="CLASS", help=text)
    scopes = (
        "inference (ask models), read (status, jobs, events), residency (load, unload, pin,"
        " lease), admin (configuration, keys, downloads, restart)"
    )
    text = f"what it may: {scopes}; inference,read if left out"
    add.add_argument("--scope", type=_scopes, default="inference,read", metavar="A,B", help=text)
    add.add_argument("--models", type=_names, default=(), metavar="A,B", help="the only models that it may ask for")
    add.add_argument("--concurrency", type=int, metavar="N", help="most requests to models that are open at once")
    add.add_argument("--queue-share", type=_share, metavar="25%", help="most of a class's queue that it may take")
    add.add_argument("--json", action="store_true", help="as JSON, the secret too")
    shown = _verb(verbs, "list", "the keys, without their secrets")
    shown.add_argument("--json", action="store_true", help="as JSON")
    _verb(verbs, "revoke", "take a key away: its requests that run may finish").add_argument("name", metavar="NAME")


def _verb(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, text: str
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.add_argument("--data-dir", type=a_path, metavar="DIR", help="of the server (GRIDSCHED_DATA_DIR)")
    return parser


def main(args: argparse.Namespace) -> int:
    """Do what the verb says. 0; 1 when it cannot be done; 2 for a key that cannot be, or a file that is damaged."""
    try:
        data_dir = data_dir_path(args.data_dir, os.environ)
        return VERBS[args.verb](data_dir, args)
    except (NoSuchChange, DataDirError) as error:
        say(str(error))
        return FAILED
    except KeysError as error:
        say(str(error))
        return CONFIGURATION
    except BrokenPipeError:
        raise  # nobody reads the list to its end
    except OSError as error:
        say(f"{error.filename or data_dir}: {error.strerror or error}; nothing was changed")
        return FAILED


# --- the verbs ------------------------------------------------------------------------------------------------------


def _add(data_dir: Path, args: argparse.Namespace) -> int:
    secret = new_secret()
    key = ApiKey(
        name=args.name,
        sha256=digest_of(secret),
        scopes=args.scope,
        created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        default_class=args.default_class,
        highest_class=args.highest_class,
        models=args.models,
        concurrency=args.concurrency,
        queue_share=args.queue_share,
    )
    check_key(key)
    for sentence in _unknown_models(data_dir, args.models):
        say(sentence)
    with DataDir.own_or_visit(data_dir):
        is_first = not read_keys(data_dir)
        add_key(data_dir, key)
    if args.json:
        tell(json.dumps({**_fields(key), "secret": secret}))
        return 0
    if is_first:
        print("gridsched: from now on every request needs a key, on this machine too", file=sys.stderr)
    print("gridsched: clients show this as their API key; it is not shown again:", file=sys.stderr)
    tell(secret)
    return 0


def _unknown_models(data_dir: Path, names: Sequence[str]) -> list[str]:
    """What is to be said of names that no model has, by the server that runs there."""
    import httpx  # noqa: PLC0415 - slow to load, and no other of these commands asks a server

    owner = owner_of(data_dir)
    if not names or owner is None or not owner.port:
        return ["no server runs there, so it was not looked whether these models are there"] if names else []
    try:
        told = httpx.get(f"{owner.url}/api/models", headers=_admin(data_dir), timeout=ASKED_SECONDS).json()["models"]
        known = [name for model in told for name in (model["id"], *model["aliases"])]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return ["the server there did not say which models there are, so it was not looked whether these are"]
    there = {name.casefold() for name in known}
    missing = [name for name in names if name.casefold() not in there]
    return [no_such_model(name, get_close_matches(name, known, 1)) for name in missing]


def _admin(data_dir: Path) -> dict[str, str]:
    token = read_admin_token(data_dir)
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _list(data_dir: Path, args: argparse.Namespace) -> int:
    keys = read_keys(data_dir)
    if args.json:
        tell(json.dumps({"keys": [_fields(key) for key in keys]}))
        return 0
    for line in _table(keys) or ["no keys: whoever is on this machine may use the server without one"]:
        tell(printable(line))
    return 0


def _revoke(data_dir: Path, args: argparse.Namespace) -> int:
    left = revoke_key(data_dir, args.name)
    last = "" if left else "; that was the last one: whoever is on this machine may use the server without a key now"
    say(f"{args.name} is revoked{last}")
    return 0


VERBS = {"add": _add, "list": _list, "revoke": _revoke}


def _fields(key: ApiKey) -> dict[str, object]:
    """A key for a program; never its digest, which is of no use to one."""
    return {
        "name": key.name,
        "created": key.created,
        "scopes": [scope.value for scope in key.scopes],
        "class": _label(key.default_class),
        "max_class": _label(key.highest_class),
        "models": list(key.models),
        "concurrency": key.concurrency,
        "queue_share": key.queue_share,
    }


def _table(keys: Sequence[ApiKey]) -> list[str]:
    width = max((len(key.name) for key in keys), default=0)
    return [f"{key.name:<{width}}  {key.created}  {'; '.join(_words(key))}" for key in keys]


def _words(key: ApiKey) -> list[str]:
    """What is to be said of a key, for a person."""
    said = [",".join(scope.value for scope in key.scopes)]
    said += [f"class {key.default_class.label}"] if key.default_class is not None else []
    said += [f"at most {key.highest_class.label}"] if key.highest_class is not None else []
    said += [f"models {','.join(key.models)}"] if key.models else []
    said += [f"{key.concurrency} at once"] if key.concurrency is not None else []
    said += [f"{key.queue_share * 100:g}% of a queue"] if key.queue_share is not None else []
    return said


def _label(job_class: JobClass | None) -> str | None:
    return None if job_class is None else job_class.label


# --- what a person may write ----------------------------------------------------------------------------------------


def _job_class(text: str) -> JobClass:
    known = {each.label: each for each in JobClass}
    if text not in known:
        raise argparse.ArgumentTypeError(f"{printable(text)} is no class; there are {', '.join(known)}")
    return known[text]


def _scopes(text: str) -> tuple[Scope, ...]:
    known = {scope.value: scope for scope in Scope}
    wrong = [word for word in _split(text) if word not in known]
    if wrong or not _split(text):
        raise argparse.ArgumentTypeError(f"{printable(','.join(wrong)) or 'nothing'}: scopes are {', '.join(known)}")
    return tuple(scope for word, scope in known.items() if word in _split(text))


def _names(text: str) -> tuple[str, ...]:
    names = _split(text)
    if not names:
        raise argparse.ArgumentTypeError("name at least one model, or leave it out for all of them")
    return names


def _share(text: str) -> float:
    match = _PERCENT.fullmatch(text)
    if match is None or not 0 < float(match[1]) <= 100:  # noqa: PLR2004 - a per cent sign's hundred
        raise argparse.ArgumentTypeError(f"{printable(text)} is no share such as 25%: above 0%, at most 100%")
    return round(float(match[1]) / 100, 6)


def _split(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
