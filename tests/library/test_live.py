"""The catalog that everybody holds, and what of a model's settings makes its processes others."""

import inspect
from dataclasses import replace
from pathlib import Path

import pytest

from gridsched.core.model import ModelSpec
from gridsched.library.live import LiveCatalog
from gridsched.ports import Catalog, ModelEntry
from tests.library.catalogs import catalog
from tests.library.models import write_model


def spec(entry: ModelEntry) -> ModelSpec:
    """What the scheduler is told of a model."""
    (model,) = catalog(entry).models()
    assert model.spec is not None
    return model.spec


def test_every_question_goes_to_the_catalog_of_now(tmp_path: Path) -> None:
    """All of the port, with its own arguments; one that everybody holds becomes another."""
    first, second = (catalog(ModelEntry(name, write_model(tmp_path / f"{name}.gguf"))) for name in "ab")
    live = LiveCatalog(first)
    asked = {name for name, _ in inspect.getmembers(Catalog, inspect.isfunction) if not name.startswith("_")}
    for name in asked:
        ours, theirs = (inspect.signature(getattr(each, name)).parameters for each in (LiveCatalog, Catalog))
        taken = [[(each.name, each.kind, each.default) for each in one.values()] for one in (ours, theirs)]
        assert taken[0] == taken[1], name
    assert live.resolve("a") is not None
    live.become(second)
    assert (live.resolve("a"), [model.name for model in live.models()]) == (None, ["b"])


@pytest.mark.parametrize(
    ("change", "is_another"),
    [
        ({"aliases": ("other",)}, False),
        ({"idle_ttl_seconds": 7.0}, False),
        ({"pinned": True}, False),
        ({"reasoning_format": "none"}, True),
        ({"env": {"A": "b"}}, True),
        ({"flags": ("--no-mmap",)}, True),
        ({"ctx_size": 2048}, True),
    ],
)
def test_R2_a_process_is_another_where_its_launch_is(
    tmp_path: Path, change: dict[str, object], is_another: bool
) -> None:
    """Names and times change nothing of it."""
    entry = ModelEntry("m", write_model(tmp_path / "m.gguf"))
    before, after = spec(entry), spec(replace(entry, **change))  # type: ignore[arg-type]  # the rows'
    launches = [(each.launched_with, [option.key for option in each.options]) for each in (before, after)]
    assert (launches[0] != launches[1]) is is_another
