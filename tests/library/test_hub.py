"""The hub, asked for real over HTTP: a stub of it on loopback, as it should be and as it should not."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from gridsched.library.hub import Hub, HubError, Trouble
from gridsched.library.offers import Offers, chosen, offers_of
from tests.support import hub_host
from tests.support.hub_host import COMMIT, HubHost

REPO = "someone/tiny-GGUF"


@pytest.fixture
def host() -> Iterator[HubHost]:
    """A hub with one repository."""
    from huggingface_hub.utils._http import close_session  # noqa: PLC0415 - as in production

    with hub_host.serving() as world:
        world.repos[REPO] = {"README.md": b"# tiny", "tiny-Q4_K_M.gguf": b"four", "tiny-Q8_0.gguf": b"eight"}
        yield world
        close_session()


def trouble(hub: Hub, repo: str = REPO, revision: str | None = None) -> HubError:
    """What goes wrong with a repository."""
    with pytest.raises(HubError) as caught:
        hub.repo(repo, revision)
    return caught.value


def test_a_search_gives_pages(host: HubHost) -> None:
    """With what a person chooses by, and a cursor for what follows."""
    host.repos |= {f"someone/other{number}-GGUF": {} for number in range(3)}
    hub = Hub(host.environ)
    first, cursor = hub.search("other", 2)
    assert [each.id for each in first] == ["someone/other0-GGUF", "someone/other1-GGUF"]
    assert first[0].downloads == 999
    assert first[0].updated == "2026-05-04T03:02:01+00:00"
    assert (first[0].architecture, first[0].ctx_train) == ("llama", 4096)
    assert cursor is not None
    rest, end = hub.search("other", 2, cursor)
    assert [each.id for each in rest] == ["someone/other2-GGUF"]
    assert end is None


def test_a_repository_is_at_one_commit(host: HubHost) -> None:
    """Its files with their sizes and checksums; what is fetched of it is of that commit."""
    repo = Hub(host.environ).repo(REPO)
    assert repo.commit == COMMIT
    assert [(file.path, file.size_bytes, len(file.sha256)) for file in repo.files][1:] == [
        ("tiny-Q4_K_M.gguf", 4, 64),
        ("tiny-Q8_0.gguf", 5, 64),
    ]
    assert Hub(host.environ).address(repo, "a b/c.gguf") == f"{host.url}/{REPO}/resolve/{COMMIT}/a%20b/c.gguf"


def test_what_is_not_there_is_said(host: HubHost) -> None:
    """A repository, a revision; one that needs permission; and what can be no repository is not even asked for."""
    hub = Hub(host.environ)
    assert trouble(hub, "someone/else").trouble is Trouble.GATED  # the hub says the same of both
    assert trouble(hub, revision="v9").trouble is Trouble.NOT_FOUND
    assert "revision" in str(trouble(hub, revision="v9"))
    host.gated.add(REPO)
    assert "permission" in str(trouble(hub))
    assert "although HF_TOKEN was sent" in str(trouble(Hub({**host.environ, "HF_TOKEN": "hf_wrong"})))
    assert Hub({**host.environ, "HF_TOKEN": host.token}).repo(REPO).commit == COMMIT
    before = len(host.asked)
    for name in ("../etc/passwd", "a/b/c", "one", "a/..", "a/b?x=1", "a b/c"):
        assert trouble(hub, name).trouble is Trouble.ASKED_WRONG
    assert len(host.asked) == before


@pytest.mark.parametrize(("status", "expected"), [(500, Trouble.UNREACHABLE), (429, Trouble.BUSY)])
def test_a_hub_in_trouble_is_said_at_once(host: HubHost, status: int, expected: Trouble) -> None:
    """The library's own repeating would take half a minute, or as long as the hub says."""
    host.busy, host.retry_after = status, "3600"
    error = trouble(Hub(host.environ))
    assert error.trouble is expected
    assert error.retry_after_seconds == (3600.0 if status == 429 else None)
    assert len(host.asked) == 1


def test_a_hub_that_is_silent_or_gone_is_given_up(host: HubHost) -> None:
    """In bounded time, with a sentence that names it."""
    host.silent = True
    error = trouble(Hub(host.environ, silent_seconds=0.1))
    assert (error.trouble, "did not answer in time" in str(error)) == (Trouble.UNREACHABLE, True)
    gone = trouble(Hub({"HF_ENDPOINT": "http://127.0.0.1:9"}, silent_seconds=0.5))
    assert (gone.trouble, "127.0.0.1:9 cannot be reached" in str(gone)) == (Trouble.UNREACHABLE, True)


def test_a_server_that_is_told_to_stay_offline_asks_nothing(host: HubHost) -> None:
    """HF_HUB_OFFLINE."""
    assert trouble(Hub({**host.environ, "HF_HUB_OFFLINE": "1"})).trouble is Trouble.OFFLINE
    assert host.asked == []


def test_nothing_but_the_question_leaves_the_machine(host: HubHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """No report of what is installed or who calls, no question beside ours; a login of other programs stays theirs."""
    monkeypatch.setenv("AI_AGENT", "somebody")
    Hub(host.environ).search("", 1)
    assert [path.partition("?")[0] for path in host.paths()] == ["/api/models"]
    headers = host.asked[0][2]
    assert "authorization" not in headers
    assert "agent/" not in headers["user-agent"]
    assert "gridsched" in headers["user-agent"]


@pytest.mark.slow
def test_a_start_does_not_even_read_the_library() -> None:
    """`huggingface_hub` takes its time to import; who never asks the hub does not wait for it."""
    words = "import sys, gridsched.app, gridsched.control.verbs; sys.exit('huggingface_hub' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", words], check=False).returncode == 0


def offers(*paths: str, host: HubHost) -> Offers:
    """What a repository of these files offers."""
    host.repos["a/b"] = dict.fromkeys(paths, b"x")
    return offers_of(Hub(host.environ).repo("a/b"))


def test_F2_split_sets_are_one_offer_and_projectors_are_apart(host: HubHost) -> None:
    """As they lie in repositories: in folders, in parts, beside projectors and matrices."""
    found = offers(
        "m-Q4_K_M.gguf",
        "Q8_0/m-Q8_0-00001-of-00002.gguf",
        "Q8_0/m-Q8_0-00002-of-00002.gguf",
        "m-IQ3_XXS-00002-of-00003.gguf",
        "m-UD-Q2_K_XL.gguf",
        "mmproj-BF16.gguf",
        "mmproj-F16.gguf",
        "m.imatrix.gguf",
        "config.json",
        ".hidden/m.gguf",
        host=host,
    )
    assert {offer.name: (offer.quantization, len(offer.files), len(offer.missing)) for offer in found.models} == {
        "Q8_0/m-Q8_0": ("Q8_0", 2, 0),
        "m-IQ3_XXS": ("IQ3_XXS", 1, 2),
        "m-Q4_K_M": ("Q4_K_M", 1, 0),
        "m-UD-Q2_K_XL": ("UD-Q2_K_XL", 1, 0),
    }
    assert [file.path for file in found.projectors] == ["mmproj-F16.gguf", "mmproj-BF16.gguf"]


def test_an_offer_is_meant_by_any_of_its_files_or_by_its_quantization(host: HubHost) -> None:
    """Without regard to case; what is not there, or not clear, is answered with what there is."""
    found = offers("m-Q4_K_M.gguf", "Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf", host=host)
    assert chosen(found, "a/b", "M-Q8_0-00002-of-00002.gguf", None).quantization == "Q8_0"
    assert chosen(found, "a/b", None, "q4_k_m").name == "m-Q4_K_M"
    with pytest.raises(HubError, match=r"has no 'Q5_0'; it has Q8_0, Q4_K_M"):
        chosen(found, "a/b", None, "Q5_0")
    with pytest.raises(HubError, match="several models"):
        chosen(found, "a/b", None, None)
    with pytest.raises(HubError, match="no model in a GGUF file"):
        chosen(offers("a.safetensors", host=host), "a/b", None, None)
    with pytest.raises(HubError, match=r"00002-of-00002\.gguf is missing"):
        chosen(offers("m-00001-of-00002.gguf", host=host), "a/b", None, None)


@pytest.mark.parametrize("endpoint", ["http://tom:a-secret@127.0.0.1:9", "ftp://tom:a-secret@127.0.0.1:9"])
def test_H6_a_password_in_the_hubs_address_is_in_no_sentence(endpoint: str) -> None:
    """A mirror of a company may want one; whoever may search the hub need not know it."""
    with pytest.raises(HubError) as found:
        Hub({"HF_ENDPOINT": endpoint}).search("tiny", 1)
    assert "127.0.0.1:9" in str(found.value)
    assert "a-secret" not in str(found.value)
