"""The start-up table: what was found and what it would take, in lines that fit a terminal. Owns no rule."""

from collections.abc import Iterator, Sequence
from ipaddress import ip_address

import trio

from gridsched.app import Machine
from gridsched.cli.words import size
from gridsched.control import findings
from gridsched.control.authority import Authority
from gridsched.core.model import LaunchOption
from gridsched.library.names import printable
from gridsched.ports import Catalog, CatalogModel, DeviceInfo, HostMemory, VirtualEntry


def too_big_for(option: LaunchOption, devices: Sequence[DeviceInfo], host: HostMemory | None = None) -> bool:
    """Whether an option takes more of a device, or of host memory, than may ever be planned there (L7)."""
    usable = {info.spec.name: info.spec.total_bytes - info.spec.headroom_bytes for info in devices}
    return lacks_host(option, host) or any(need > usable.get(device, 0) for device, need in option.need_bytes)


def lacks_host(option: LaunchOption, host: HostMemory | None) -> bool:
    """Whether an option takes more host memory beside its devices than the machine has for it."""
    return host is not None and option.host_need_bytes > host.spec.total_bytes - host.spec.headroom_bytes


def best_option(
    model: CatalogModel, devices: Sequence[DeviceInfo], host: HostMemory | None = None
) -> LaunchOption | None:
    """The first rung of a model's ladder that an empty machine could carry; None where there is none."""
    if model.spec is None:
        return None
    return next((option for option in model.spec.options if not too_big_for(option, devices, host)), None)


def verdict(
    model: CatalogModel, catalog: Catalog, devices: Sequence[DeviceInfo], host: HostMemory | None = None
) -> str:
    """What is to be said of a model in one line: how it would be launched, or why it cannot and what would fit."""
    if model.spec is None:
        return f"unavailable: {model.unavailable}"
    option = best_option(model, devices, host)
    if option is None:
        least = min(model.spec.options, key=lambda one: sum(need for _, need in one.need_bytes))
        need = sum(need for _, need in least.need_bytes)
        usable = {info.spec.name: info.spec.total_bytes - info.spec.headroom_bytes for info in devices}
        advice = "".join(f"; {told}" for told in trio.run(catalog.largest_fit, model.name, usable).suggestions)
        if host is not None and all(lacks_host(one, host) for one in model.spec.options):
            room, least = host.spec, min(model.spec.options, key=lambda one: one.host_need_bytes)
            kept = f" beside {size(least.host_mapped_bytes)} of mapped weights" if least.host_mapped_bytes else ""
            return (
                f"too big: needs {size(least.host_need_bytes)} of host memory{kept}, more than the"
                f" {size(room.total_bytes - room.headroom_bytes)} that may be planned of it{advice}"
            )
        return f"too big: needs {size(need)} at {least.ctx_size} tokens, more than any device has for it{advice}"
    need = sum(need for _, need in option.need_bytes)
    source = "measured" if option.measured_bytes else "estimated"
    slots = "1 slot" if option.parallel == 1 else f"{option.parallel} slots"
    return (
        f"{size(need)} {source}, {slots} x {option.ctx_size // option.parallel} tokens, on {'+'.join(option.devices)}"
    )


def rows(found: Machine, settings_from: str) -> Iterator[str]:
    """Every line of the table, printable whatever files are called."""
    return map(printable, _rows(found, settings_from))


def _rows(found: Machine, settings_from: str) -> Iterator[str]:
    parts = found.parts
    devices = parts.monitor.devices()
    yield f"settings   {settings_from}"
    yield f"engine     {findings.described(parts.engine.info())}"
    for info in devices:
        planned = info.spec.total_bytes - info.spec.headroom_bytes
        yield f"device     {info.spec.name}: {info.label}, {size(info.spec.total_bytes)}, {size(planned)} to plan with"
    if parts.host is not None:
        spec = parts.host.spec
        planned = spec.total_bytes - spec.headroom_bytes
        yield f"host       {size(spec.total_bytes)} of memory, {size(planned)} for what lies beside the devices"
    for note in found.notes:
        yield f"note       {note}"
    for problem in found.problems:
        yield f"problem    {problem}"
    models, families, virtuals = parts.catalog.models(), parts.catalog.families(), parts.catalog.virtuals()
    names = [model.name for model in models] + [each.name for each in families] + [each.name for each in virtuals]
    width = min(40, max(map(len, names), default=0))
    able = max(18, *(len(_able(model)) for model in models)) if models else 18
    for model in models:
        said = verdict(model, parts.catalog, devices, parts.host)
        yield f"model      {model.name:<{width}}  {_able(model):<{able}}  {said}"
    for family in families:
        sizes = ", ".join(f"{quality.label} {model.name}" for quality, model in family.variants)
        best = _able(family.best) if family.best is not None else ""
        yield f"family     {family.name:<{width}}  {best:<{able}}  {sizes}"
    for virtual in virtuals:
        yield f"virtual    {virtual.name:<{width}}  {_adds(virtual.entry):<{able}}  served by {virtual.base.name}"


def _adds(entry: VirtualEntry) -> str:
    """What a virtual model adds to its base, in as many words as fit."""
    parts = ["prompt"] if entry.system_prompt is not None else []
    parts += ["sampling"] if entry.members else []
    parts += ["limits"] if entry.max_tokens is not None else []
    parts += [entry.default_class.label] if entry.default_class is not None else []
    return ", ".join(parts) or "as it is"


def _able(model: CatalogModel) -> str:
    return ", ".join(sorted(capability.value for capability in model.capabilities))


def unservable(found: Machine) -> Iterator[str]:
    """Which models cannot be served as things are; their own rows say why."""
    devices = found.parts.monitor.devices()
    host = found.parts.host
    bad = [model.name for model in found.parts.catalog.models() if best_option(model, devices, host) is None]
    if bad:
        yield findings.unservable(bad)


def who_may(authority: Authority, host: str) -> Iterator[str]:
    """Whom a server on this address serves, where that is not just its own machine (H6)."""
    if not authority.knows_keys:
        return  # what is wrong has been said
    if authority.has_keys:
        yield "keys       every request needs one"
    elif authority.lets_all_in and not ip_address(host.partition("%")[0]).is_loopback:
        yield "INSECURE   whoever can reach this address may use the server: there are no API keys"
