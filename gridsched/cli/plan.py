"""`gridsched plan MODEL`: what a load of a model would do now, without doing it; or the refusal with its arithmetic.

Asks the running server. Where none answers, and none was named, the same is worked out for a server that had just been
started here, with the configuration and the devices as they are.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import httpx

from gridsched.app import StartError, plan_here
from gridsched.cli.client import NotOurs, Refused, add_server_arguments, connect, explain, fetch
from gridsched.cli.components import COMPONENTS
from gridsched.cli.options import add_machine_arguments, machine, refuse, say, settings_of
from gridsched.cli.table import size
from gridsched.library.names import printable

LOADS, NOT_NOW, CONFIGURATION = 0, 1, 2
_ASKED_WRONGLY = frozenset(("model_not_found", "model_unavailable", "invalid_request"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.epilog = "--config, --models-dir, --data-dir and --sim count where no server answers and none was named."
    add_server_arguments(parser)
    add_machine_arguments(parser)
    parser.add_argument("model", metavar="MODEL", help="a model or family, by any of its names")
    parser.add_argument("--ctx", type=int, metavar="N", help="with so many tokens for all slots, not as configured")
    parser.add_argument("--json", action="store_true", help="the answer as it is")


def main(args: argparse.Namespace) -> int:
    """Print the plan. 0 where it loads or is loaded, 1 where it does not now, or no server answers that was named, 2
    for a model or context that cannot be, and for a configuration that is wrong."""
    is_named = args.server is not None
    try:
        told, server, asked = _ask(args), args.server, f"asked    {args.server}"
    except httpx.ConnectError as error:
        if is_named:
            return explain(args, error)
        found = _here(args)
        if isinstance(found, int):
            say(f"no server answers at {args.server}: this was about one that would be started here")
            return found
        told, server = found, None
        asked = (
            f"note     no server answers at {args.server}: this is what one would do that had just been started here"
        )
    except (httpx.HTTPError, NotOurs, Refused) as error:
        code = explain(args, error)
        return CONFIGURATION if isinstance(error, Refused) and error.code in _ASKED_WRONGLY else code
    try:
        lines = [json.dumps({**told, "server": server})] if args.json else [*map(printable, rows(told)), asked]
        loads = bool(told["loads"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return explain(args, NotOurs("it sends no plan"))
    print("\n".join(lines))
    return LOADS if loads else NOT_NOW


def _ask(args: argparse.Namespace) -> Mapping[str, Any]:
    """What the server says. Raises httpx.HTTPError, Refused and NotOurs."""
    with connect(args) as client:
        query = f"?ctx={args.ctx}" if args.ctx is not None else ""
        return fetch(client, f"/api/models/{quote(args.model, safe='')}/plan{query}")


def _here(args: argparse.Namespace) -> Mapping[str, Any] | int:
    """What a server would say that had just been started here; or, said already, why there could be none."""
    try:
        settings, _ = settings_of(args)
        with machine(args, settings, or_visit=True) as found:
            return plan_here(found.parts, settings, args.model, args.ctx)
    except StartError as error:
        return refuse(error)


# --- for a person -----------------------------------------------------------------------------------------------


def rows(told: Mapping[str, Any]) -> Iterator[str]:
    """The answer in lines. Raises KeyError, TypeError, ValueError or AttributeError where it is none."""
    yield f"{'loads' if told['loads'] else 'no':<8} {told['text']}"
    if told["launch"] is not None:
        yield from _launch(told["launch"])
    for one in told["evictions"]:
        terms = " ".join(f"{name}={value}" for name, value in one["terms"].items())
        price = f" ({terms})" if terms else ""
        steps = f", {one['steps']} steps end first" if one["steps"] else ""
        yield f"goes     {one['model']}: {size(one['bytes'])}, {', '.join(one['why'])}{steps}{price}"
    yield from (f"note     {one}" for one in told.get("notes", ()))
    if told["refusal"] is not None:
        yield from _refusal(told["refusal"])


def _launch(launch: Mapping[str, Any]) -> Iterator[str]:
    slots = "1 slot" if launch["parallel"] == 1 else f"{launch['parallel']} slots"
    cache = f", cache {launch['cache_type']}" if launch.get("cache_type") else ""
    told = "measured" if launch["measured"] else "estimated"
    yield (
        f"launch   {launch['ctx_size']} tokens, {slots} of {launch['ctx_per_slot']}{cache}, "
        f"on {'+'.join(launch['devices'])}: {size(launch['total_bytes'])} {told}"
    )
    for part in launch.get("estimate") or ():
        made_of = ", ".join(f"{name} {size(part[key])}" for name, key in COMPONENTS if part[key])
        yield f"  {part['name']}: {made_of}"
    if host := launch.get("host"):
        yield f"  host memory: {size(host['need_bytes'])}, beside {size(host['mapped_bytes'])} of mapped weights"
    if launch.get("flags"):
        yield f"flags    {' '.join(launch['flags'])}"


def _refusal(refusal: Mapping[str, Any]) -> Iterator[str]:
    for row in refusal.get("per_device", ()):
        held = [
            f"{name} {size(row[key])}"
            for name, key in (("others", "external_bytes"), ("pinned", "pinned_bytes"), ("lost", "lost_bytes"))
            if row.get(key)
        ]
        beside = f" ({', '.join(held)})" if held else ""
        yield (
            f"  {row['device']}: needs {size(row['required_bytes'])}, {size(row['available_bytes'])} can be had{beside}"
        )
    for one in refusal.get("holders", ()):
        yield f"held     {one['model'] or 'programs outside'}: {size(one['bytes'])} of {one['device']}, {one['state']}"
    if "max_ctx_that_fits" in refusal:
        tokens, slots = refusal["max_ctx_that_fits"], refusal["max_parallel_that_fits"]
        most = " or ".join(f"{count} {what}" for count, what in ((tokens, "tokens in all"), (slots, "slots")) if count)
        yield f"at most  {most or 'nothing: not even the shortest context with one slot'}"
    yield from (f"try      {one}" for one in refusal.get("suggestions", ()))
    yield from (f"note     {one}" for one in refusal.get("notes", ()))
