"""What the start-up table says of a model."""

from pathlib import Path

from gridsched.app import Machine, SystemClock
from gridsched.cli.table import rows, verdict
from gridsched.core.ids import DeviceName
from gridsched.core.model import DeviceSpec
from gridsched.devices.headroom import Headroom
from gridsched.devices.host import HostBesideCards
from gridsched.library.catalog import ModelCatalog
from gridsched.library.planning import Defaults
from gridsched.library.sources import read_library
from gridsched.ports import Backend, DeviceInfo, ModelEntry
from gridsched.runtime.runtime import Parts
from gridsched.store.memory import MemoryStore
from sim import build
from tests.library.models import write_model

MIB = 1 << 20


def said(entry: ModelEntry, room_mib: int) -> str:
    """The verdict on a model, on a host with this much memory to plan with."""
    host = DeviceInfo(DeviceSpec(DeviceName("host"), room_mib * MIB), "host memory", Backend.CPU)
    catalog = ModelCatalog(read_library([entry], []), (host,), {}, defaults=Defaults())
    return verdict(catalog.models()[0], catalog, (host,))


def test_a_model_is_told_with_its_launch_and_where_the_figure_comes_from(tmp_path: Path) -> None:
    """The best launch that the empty devices carry, estimated until it was measured; else the reason for none."""
    path = write_model(tmp_path / "m.gguf")
    assert said(ModelEntry("m", path, parallel=1, ctx_size=512), 999).endswith(
        " MiB estimated, 1 slot x 512 tokens, on host"
    )
    assert said(ModelEntry("m", path), 999).endswith(" MiB estimated, 4 slots x 16384 tokens, on host")
    gone = tmp_path / "gone.gguf"
    assert said(ModelEntry("g", gone), 999) == f"unavailable: {gone}: the file is not there"


def test_L7_a_model_that_is_too_big_is_told_with_the_context_that_would_fit(tmp_path: Path) -> None:
    """And that context, set as it was told, is no longer too big; where nothing would fit, nothing is advised."""
    path = write_model(tmp_path / "m.gguf")
    refused = said(ModelEntry("m", path, parallel=1), 140)
    assert refused.startswith("too big: needs ")
    assert "; Set models.m.ctx_size to at most " in refused
    advised = int(refused.rpartition("to at most ")[2])
    assert f"1 slot x {advised} tokens" in said(ModelEntry("m", path, ctx_size=advised, parallel=1), 140)
    assert said(ModelEntry("m", path), 10).endswith("more than any device has for it")


def test_R10_a_family_is_told_with_its_sizes() -> None:
    """Behind the models, with what its best can do."""
    world = build()
    parts = Parts(world.catalog, world.engine, world.upstream, world.monitor, MemoryStore(), SystemClock())
    *_, family = rows(Machine(parts, ()), "defaults")
    sizes = "preferred sim-chat-12b, balanced sim-chat-4b, compact sim-chat-2b"
    assert family.split(maxsplit=2) == ["family", "sim-chat", f"chat, completion          {sizes}"]


def test_E24_a_model_that_is_too_big_for_host_memory_is_told_with_the_sum(tmp_path: Path) -> None:
    """All on the host beside a card: what the machine would have to have, against what may be planned of it."""
    card = DeviceInfo(DeviceSpec(DeviceName("gpu0"), 8 << 30), "card", Backend.CUDA)
    (tmp_path / "meminfo").write_text("MemTotal: 131072 kB\n")
    host = HostBesideCards(Headroom(), tmp_path, tmp_path)
    library = read_library([ModelEntry("m", write_model(tmp_path / "m.gguf"), flags=("-ngl", "0"))], [])
    catalog = ModelCatalog(library, (card,), {}, defaults=Defaults(), host=host.spec)
    refused = verdict(catalog.models()[0], catalog, (card,), host)
    assert refused.startswith("too big: needs ")
    assert " of host memory beside " in refused
    assert "of mapped weights, more than the 122 MiB that may be planned of it" in refused
    assert verdict(catalog.models()[0], catalog, (card,)).endswith("on gpu0")
