"""Ollama's store as it lies on disks: names, blobs, what is missing, what is not used."""

import json
import os
from hashlib import sha256
from pathlib import Path

import pytest

from gridsched.library.names import Named, Names
from gridsched.library.ollama import is_store, manifests_of
from gridsched.library.sources import Library, Source, read_library
from gridsched.ports import ModelEntry
from tests.library.models import ADAPTER, CHAT, PROJECTOR, PROJECTOR_TENSORS, write_model

HUB = "registry.ollama.ai/library"


class Store:
    """A store that is being filled."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "blobs").mkdir(parents=True)
        (root / "manifests").mkdir()

    def blob(self, made: Path, mark: str = "-") -> str:
        """Put a file in; its digest."""
        digest = sha256(made.read_bytes()).hexdigest()
        made.rename(self.root / "blobs" / f"sha256{mark}{digest}")
        return f"sha256:{digest}"

    def model(self, name: str = "m") -> str:
        """A chat model's blob."""
        return self.blob(write_model(self.root / "new.gguf", {**CHAT, "general.name": name}))

    def tag(self, path: str, **layers: str) -> Path:
        """A manifest with layers by kind."""
        manifest = self.root / "manifests" / path
        manifest.parent.mkdir(parents=True, exist_ok=True)
        told = [
            {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": digest, "size": 1}
            for kind, digest in layers.items()
        ]
        manifest.write_text(json.dumps({"schemaVersion": 2, "layers": told}))
        return manifest

    def library(self, *entries: ModelEntry) -> Library:
        """What is served of it."""
        return read_library(entries, [self.root])

    def sources(self) -> dict[str, Source]:
        """By name."""
        return {source.entry.name: source for source in self.library().sources}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty one."""
    return Store(tmp_path / "models")


def test_names_are_as_ollama_lists_them(store: Store) -> None:
    """Its own library without host and namespace, others with what tells them apart."""
    for path in (
        "registry.ollama.ai/library/llama3.2/3b",
        "registry.ollama.ai/me/tuned/v1",
        "hf.co/pub/Repo-GGUF/Q4_K_M",
    ):
        store.tag(path, model=store.model(path))
    assert is_store(store.root)
    assert set(store.sources()) == {"llama3.2:3b", "me/tuned:v1", "hf.co/pub/Repo-GGUF:Q4_K_M"}
    assert all(source.file is not None for source in store.sources().values())


def test_a_name_is_found_as_clients_of_ollama_say_it(store: Store) -> None:
    """With its namespace, with the host, without the usual tag, in any case; a tag that is not there means nothing."""
    store.tag(f"{HUB}/llama3.2/latest", model=store.model("a"))
    store.tag(f"{HUB}/qwen3/8b", model=store.model("b"))
    named = [Named(source.entry.name, Path(source.entry.path), (), source.words) for source in store.library().sources]
    names = Names(named, None)
    for word in ("llama3.2", "llama3.2:latest", "library/llama3.2", f"{HUB}/llama3.2:latest", "LLAMA3.2:Latest"):
        assert names.resolve(word) == "llama3.2:latest", word
    assert names.resolve("library/qwen3:8b") == "qwen3:8b"
    assert names.resolve("qwen3") is None
    assert names.resolve("llama3.2:70b") is None


def test_tags_over_one_blob_are_one_model(store: Store) -> None:
    """Under the tag that says most, with the names of all: two processes for one file would be a waste."""
    digest = store.model()
    for tag in ("latest", "3b", "3b-instruct-q4_K_M"):
        store.tag(f"{HUB}/llama3.2/{tag}", model=digest)
    (source,) = store.library().sources
    assert source.entry.name == "llama3.2:3b"
    assert {"library/llama3.2:latest", "llama3.2", "llama3.2:3b-instruct-q4_K_M"} <= set(source.words)


def test_projector_and_adapter_are_loaded_with_their_model(store: Store) -> None:
    """As the manifest says; the same file with an adapter is another model."""
    model = store.model()
    eyes = store.blob(write_model(store.root / "eyes.gguf", PROJECTOR, PROJECTOR_TENSORS))
    lora = store.blob(
        write_model(store.root / "lora.gguf", {"general.architecture": "llama", "general.type": "adapter"}, ADAPTER)
    )
    store.tag(f"{HUB}/plain/1", model=model)
    store.tag(f"{HUB}/seeing/1", model=model, projector=eyes)
    store.tag(f"{HUB}/tuned/1", model=model, adapter=lora)
    found = store.sources()
    assert set(found) == {"plain:1", "seeing:1", "tuned:1"}
    assert found["plain:1"].projector is None
    assert found["seeing:1"].projector is not None
    assert [file.path.name for file in found["tuned:1"].adapters] == [lora.replace(":", "-")]


def test_older_stores_spell_their_blobs_with_a_colon(store: Store) -> None:
    """Both are found."""
    made = write_model(store.root / "new.gguf")
    store.tag(f"{HUB}/m/1", model=store.blob(made, mark=":"))
    assert store.sources()["m:1"].file is not None


def test_what_is_only_ollamas_is_not_used_and_said(store: Store) -> None:
    """Templates, parameters and system words; a name that runs elsewhere is no model here."""
    store.tag(f"{HUB}/m/1", model=store.model(), template="sha256:x", params="sha256:y", license="sha256:z")
    cloud = store.tag(f"{HUB}/big/cloud")
    library = store.library()
    assert [source.problem for source in library.sources] == [None]
    assert library.notes == (
        f"{cloud} names no file: what it runs is not on this machine.",
        f"{store.root}: templates, parameters and system words of 1 names are Ollama's own, and not used.",
    )


def test_F11_what_cannot_be_served_has_its_reason(store: Store) -> None:
    """A blob that is gone or no GGUF, a digest that leads out, tensors one by one, a manifest that is none."""
    junk = store.root / "junk"
    junk.write_bytes(b"rubbish " * 10)
    store.tag(f"{HUB}/gone/1", model="sha256:" + "0" * 64)
    store.tag(f"{HUB}/junk/1", model=store.blob(junk))
    store.tag(f"{HUB}/out/1", model="sha256:../../../etc/passwd")
    store.tag(f"{HUB}/tensors/1", tensor="sha256:" + "1" * 64)
    store.tag(f"{HUB}/bad/1").write_text("[" * 100_000)
    store.tag(f"{HUB}/worse/1").write_text('{"layers": [3]}')
    os.mkfifo(store.root / "manifests" / HUB / "worse" / "pipe")
    store.tag(f"{HUB}/good/1", model=store.model())
    said = {name: source.problem for name, source in store.sources().items()}
    assert "the file is not there" in (said["gone:1"] or "")
    assert "not a GGUF file" in (said["junk:1"] or "")
    assert "is no digest" in (said["out:1"] or "")
    assert "single tensors" in (said["tensors:1"] or "")
    assert all("no manifest that is understood" in (said[name] or "") for name in ("bad:1", "worse:1", "worse:pipe"))
    assert said["good:1"] is None


def test_a_blob_that_is_configured_is_not_listed_twice(store: Store) -> None:
    """It is found by Ollama's words all the same; and a configured name is nobody else's."""
    digest = store.model()
    store.tag(f"{HUB}/m/latest", model=digest)
    blob = store.root / "blobs" / digest.replace(":", "-")
    (source,) = store.library(ModelEntry("mine", blob)).sources
    assert source.entry.name == "mine"
    assert {"m", "library/m:latest"} <= set(source.words)
    other = write_model(store.root.parent / "other.gguf")
    library = store.library(ModelEntry("m:latest", other))
    assert [source.entry.path for source in library.sources] == [other]
    assert library.notes == (f"{blob} is not served: m:latest is configured as something else.",)


def test_a_name_that_comes_is_noticed_by_its_manifest(store: Store) -> None:
    """The blobs have no names that a folder's look would know."""
    first = store.tag(f"{HUB}/m/1", model=store.model())
    assert manifests_of(store.root) == (first,)
    second = store.tag(f"{HUB}/m/2", model=store.model("b"))
    assert manifests_of(store.root) == (first, second)


def test_nothing_is_written_to_a_store(store: Store) -> None:
    """It is read where it lies, also by a user who may do no more."""
    store.tag(f"{HUB}/m/1", model=store.model())
    before = sorted((path, path.stat().st_mtime_ns) for path in store.root.rglob("*"))
    store.library()
    assert sorted((path, path.stat().st_mtime_ns) for path in store.root.rglob("*")) == before
