"""What the models look like from outside: `GET /v1/models`, OpenAI's list with our own facts under `gridsched`.

Reads the catalog and a snapshot; starts nothing and changes nothing.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import msgspec

from gridsched.core.ids import DeviceName
from gridsched.core.instance import InstanceState
from gridsched.core.model import LaunchOption, ModelSpec, Tier
from gridsched.core.snapshot import InstanceView, Snapshot
from gridsched.ports import CatalogFamily, CatalogModel, CatalogVirtual, Names

OWNER = "gridsched"
_STATES: Mapping[InstanceState, str] = {
    InstanceState.READY: "ready",
    InstanceState.STARTING: "loading",
    InstanceState.DRAINING: "draining",
    InstanceState.STOPPING: "draining",
}
"""The public word for a process's state, the best first: of two processes of one model the better one speaks."""

_STATE_WORDS = (*dict.fromkeys(_STATES.values()), "cold", "failed", "unavailable")
"""The public words for a model's state, nearest to serving first."""


def listing(catalog: Names, snapshot: Snapshot) -> list[Mapping[str, object]]:
    """OpenAI's model objects of all models, families and virtual models, those that cannot be served among them."""
    data = [describe(model, snapshot) for model in catalog.models()]
    data += [describe_family(family, snapshot) for family in catalog.families()]
    data += [describe_virtual(virtual, snapshot) for virtual in catalog.virtuals()]
    return data


def one(found: CatalogModel | CatalogFamily | CatalogVirtual, snapshot: Snapshot) -> Mapping[str, object]:
    """OpenAI's model object."""
    match found:
        case CatalogVirtual():
            return describe_virtual(found, snapshot)
        case CatalogFamily():
            return describe_family(found, snapshot)
    return describe(found, snapshot)


def describe_virtual(virtual: CatalogVirtual, snapshot: Snapshot) -> Mapping[str, object]:
    """One name over another model: how its base stands, and what it adds. The system's words are the configuration's
    alone: that there are some is told."""
    base = virtual.base
    told = describe_family(base, snapshot) if isinstance(base, CatalogFamily) else describe(base, snapshot)
    facts = {"base": base.name, "aliases": virtual.entry.aliases, "virtual": added(virtual)}
    return {**told, "id": virtual.name, "gridsched": {**cast("Mapping[str, object]", told["gridsched"]), **facts}}


def added(virtual: CatalogVirtual) -> Mapping[str, object]:
    """What a virtual model adds to the requests of its base."""
    entry = virtual.entry
    kept = entry.idle_ttl_seconds
    return {
        "system_prompt": entry.system_prompt is not None,
        "members": {name: msgspec.Raw(value) for name, value in entry.members.items()},
        "max_tokens": entry.max_tokens,
        "class": entry.default_class.label if entry.default_class is not None else None,
        "idle_ttl_s": kept if kept is None or math.isfinite(kept) else "never",
    }


def describe_family(family: CatalogFamily, snapshot: Snapshot) -> Mapping[str, object]:
    """One family (R10): its models by quality, what may be asked of it, and how the model stands that is nearest to
    serving."""
    model = nearest(family, snapshot)
    if model is None:
        facts: dict[str, object] = {"state": "unavailable", "fits": "never", "capabilities": [], "aliases": []}
        return _listed(family.name, 0, facts | {"variants": {}})
    best = family.best or model
    facts = dict(_facts(model, snapshot))
    facts["capabilities"] = capabilities(best)
    facts["aliases"] = []
    facts["variants"] = {quality.label: model.name for quality, model in family.variants}
    return _listed(family.name, best.created, facts)


def nearest(found: CatalogModel | CatalogFamily, snapshot: Snapshot) -> CatalogModel | None:
    """The model itself, or the one of a family that is nearest to serving; None of a family without any."""
    if isinstance(found, CatalogModel):
        return found
    named = (model for _, model in found.variants)
    return min(named, key=lambda model: _STATE_WORDS.index(state_of(model, snapshot)), default=None)


def describe(model: CatalogModel, snapshot: Snapshot) -> Mapping[str, object]:
    """One model, as the contract lists it."""
    return _listed(model.name, model.created, _facts(model, snapshot))


def _listed(name: str, created: int, facts: Mapping[str, object]) -> Mapping[str, object]:
    return {"id": name, "object": "model", "created": created, "owned_by": OWNER, "gridsched": facts}


def capabilities(model: CatalogModel) -> list[str]:
    """What it can be asked for."""
    return sorted(capability.value for capability in model.capabilities)


def _facts(model: CatalogModel, snapshot: Snapshot) -> Mapping[str, object]:
    instance = best_instance(snapshot.instances, model)
    facts: dict[str, object] = {
        "state": _state(model, instance, snapshot),
        "fits": fits(model.spec, instance, snapshot),
        "capabilities": capabilities(model),
        "tier": tier(model, instance),
        **_shape(model.spec, instance),
        "aliases": model.aliases,
        "base": None,
        "memory_bytes": memory(model.spec, instance),
        "architecture": model.architecture,
        "size_bytes": model.size_bytes,
        "ctx_train": model.ctx_train,
    }
    if model.unavailable is not None:
        facts["unavailable"] = model.unavailable
    elif model.name in snapshot.failed:
        retry_at, why = snapshot.failed[model.name]
        facts["failed"] = {"reason": why, "retry_after_s": max(0.0, retry_at - snapshot.at)}
    return facts


def best_instance(instances: Iterable[InstanceView], model: CatalogModel) -> InstanceView | None:
    """The process that speaks for a model: the ready one before the loading, before the draining one."""
    order = list(_STATES)
    living = [view for view in instances if view.model == model.name and view.state in _STATES]
    return min(living, key=lambda view: order.index(view.state), default=None)


def state_of(model: CatalogModel, snapshot: Snapshot) -> str:
    """The public word for how a model stands."""
    return _state(model, best_instance(snapshot.instances, model), snapshot)


def _state(model: CatalogModel, instance: InstanceView | None, snapshot: Snapshot) -> str:
    if model.spec is None:
        return "unavailable"
    if instance is not None:
        return _STATES[instance.state]
    return "failed" if model.name in snapshot.failed else "cold"


def tier(model: CatalogModel, instance: InstanceView | None) -> str:
    """Who may evict it (R1), of its process or as configured."""
    if instance is not None:
        return str(instance.tier.value)
    configured = Tier.PINNED if model.spec is not None and model.spec.pinned else Tier.COLD
    return str(configured.value)


def _shape(spec: ModelSpec | None, instance: InstanceView | None) -> Mapping[str, int | None]:
    """Slots and the context of each: of the process, else of the best way to launch one."""
    shape = instance or (spec.options[0] if spec is not None else None)
    if shape is None:
        return {"ctx_per_slot": None, "parallel": None}
    return {"ctx_per_slot": shape.ctx_size // shape.parallel, "parallel": shape.parallel}


def memory(spec: ModelSpec | None, instance: InstanceView | None) -> Mapping[str, int | None]:
    """Bytes in all: of the process, else of the best launch."""
    if instance is not None:
        return {"estimated": instance.estimated_bytes, "measured": instance.measured_bytes}
    if spec is None:
        return {"estimated": None, "measured": None}
    best = spec.options[0]
    return {
        "estimated": sum(part.total_bytes for part in best.footprint),
        "measured": sum(best.measured_bytes) or None,
    }


def fits(spec: ModelSpec | None, instance: InstanceView | None, snapshot: Snapshot) -> str:
    """Whether a load would find room: now, once everything idle has gone, or never. Informs, and gates nothing."""
    if spec is None:
        return "never"
    if instance is not None:
        return "now"
    return fit_of(spec.options, snapshot)[0]


def fit_of(options: Sequence[LaunchOption], snapshot: Snapshot) -> tuple[str, LaunchOption]:
    """Whether the devices would carry one of these, best first: `now`, `if_idle` or `never`; and the first that they
    would, else the first. There is at least one."""
    room = {view.name: view.total_bytes - view.headroom_bytes for view in snapshot.devices}
    taken = {
        view.name: view.external_bytes + view.lost_bytes + view.reserved_bytes + view.freeing_bytes
        for view in snapshot.devices
    }
    for word, others in (("now", taken), ("if_idle", {})):
        for option in options:
            if _has_room(option, room, others):
                return word, option
    return "never", options[0]


def _has_room(option: LaunchOption, room: Mapping[DeviceName, int], taken: Mapping[DeviceName, int]) -> bool:
    return all(need <= room.get(device, 0) - taken.get(device, 0) for device, need in option.need_bytes)
