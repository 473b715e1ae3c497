"""What a load would do, in lines for a person: the launch, who goes for it, or the refusal with its arithmetic. Pure.

Owns these lines; `load --dry-run` and `plan` show the same.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gridsched.cli import arithmetic
from gridsched.cli.components import COMPONENTS
from gridsched.cli.words import size


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
        yield from arithmetic.lines(told["refusal"])


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
