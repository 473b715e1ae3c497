"""The models as other protocols list them: LM Studio's `GET /api/v0/models`, and Anthropic's `GET /v1/models`.

Owns those shapes. Reads the catalog and a snapshot, as `models` does; starts nothing and changes nothing.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import cast

from gridsched.control.models import best_instance, nearest
from gridsched.core.instance import InstanceState
from gridsched.core.snapshot import Snapshot
from gridsched.ports import Capability, CatalogModel, Names

LAST_SECOND = 253_402_300_799
"""Of the year 9999."""

LOADED = frozenset({InstanceState.READY, InstanceState.DRAINING})


def lm_studio(names: Names, name: str, snapshot: Snapshot) -> Mapping[str, object]:
    """The model, family or virtual model of this name, as LM Studio lists one."""
    virtual = names.virtual(name)
    found = virtual.base if virtual is not None else names.resolve(name)
    return _entry(name, nearest(found, snapshot) if found is not None else None, snapshot)


def _entry(name: str, model: CatalogModel | None, snapshot: Snapshot) -> Mapping[str, object]:
    """One model; of a family without models only its name is known."""
    instance = best_instance(snapshot.instances, model) if model is not None else None
    loaded = instance is not None and instance.state in LOADED
    told: dict[str, object] = {
        "id": name,
        "object": "model",
        "type": _type(model),
        "publisher": model.publisher if model is not None else "",
        "arch": model.architecture if model is not None else "",
        "compatibility_type": "gguf",
        "quantization": model.quantization if model is not None else "",
        "state": "loaded" if loaded else "not-loaded",
        "max_context_length": model.ctx_train if model is not None else 0,
    }
    if instance is not None and loaded:
        told["loaded_context_length"] = instance.ctx_size // instance.parallel
    return told


def _type(model: CatalogModel | None) -> str:
    """Its three words; a reranker is none of them, and nothing to chat with."""
    able = model.capabilities if model is not None else frozenset({Capability.CHAT})
    if Capability.VISION in able:
        return "vlm"
    return "llm" if able & {Capability.CHAT, Capability.COMPLETION} else "embeddings"


def anthropic(told: Mapping[str, object]) -> Mapping[str, object]:
    """OpenAI's model object with the members of Anthropic's beside them."""
    seconds = min(max(0, cast("int", told["created"])), LAST_SECOND)  # a file's time may be anything
    created = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {**told, "type": "model", "display_name": told["id"], "created_at": created, "lifecycle": "active"}


def anthropic_page(data: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    """What Anthropic's list has beside its entries: all of them are on one page."""
    first, last = (str(data[0]["id"]), str(data[-1]["id"])) if data else (None, None)
    return {"has_more": False, "first_id": first, "last_id": last}
