"""The configuration in a real browser: refused at its line, saved, changed by somebody else meanwhile; and keys."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Dialog, Page, expect

from tests.external.browser.entering import admin_token, enter_key, go_to, refusals
from tests.support.gateway import Gateway, start

pytestmark = pytest.mark.slow

SELECTED = "area => area.value.slice(area.selectionStart, area.selectionEnd)"
AS_IT_WAS = "# my machine\nscheduler:\n  interactive_cooldown: 5s\n"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A server with a configuration file of its own."""
    folder = tmp_path_factory.mktemp("gateway")
    (folder / "gridsched.yaml").write_text(AS_IT_WAS, encoding="utf-8")
    gateway = start(folder, "--sim", "--config", str(folder / "gridsched.yaml"))
    yield gateway
    assert gateway.stop() == 0


@pytest.fixture
def file(gateway: Gateway) -> Path:
    """That file, as it was."""
    file = gateway.log.parent / "gridsched.yaml"
    file.write_text(AS_IT_WAS, encoding="utf-8")
    return file


def typed(page: Page, gateway: Gateway, text: str) -> None:
    """An admin has put this in the file's place, and not saved it."""
    go_to(page, "settings")
    enter_key(page, admin_token(gateway))
    expect(page.get_by_label("Configuration")).to_have_value(AS_IT_WAS)
    page.get_by_label("Configuration").fill(text)
    expect(page.get_by_text("not saved", exact=True)).to_be_visible()


def test_an_edit_is_refused_at_its_line_and_then_saved(
    page: Page, gateway: Gateway, file: Path, shot: Callable[[Page, str], None]
) -> None:
    """Each fault with its line, its key and the nearest that there is; the mended text is asked about, and written."""
    typed(page, gateway, "# mine\nserver:\n  prot: 1234\nscheduler:\n  interactive_cooldown: soon\n")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("#config-said")).to_contain_text("server.prot: unknown key; did you mean port?")
    expect(page.locator("#config-said")).to_contain_text("scheduler.interactive_cooldown: expected a duration")
    expect(page.locator(".numbers .bad")).to_have_text(["3", "5"])
    shot(page, "a refused configuration")
    page.get_by_role("button", name="line 5").click()
    assert page.get_by_label("Configuration").evaluate(SELECTED) == "  interactive_cooldown: soon"
    assert file.read_text(encoding="utf-8") == AS_IT_WAS
    assert refusals(page, 422) == 1
    mended = "# mine\nscheduler:\n  interactive_cooldown: 6s\n"
    page.get_by_label("Configuration").fill(mended)
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("scheduler.interactive_cooldown")
    page.get_by_role("button", name="Save it").click()
    expect(page.locator("#config-said")).to_contain_text("Saved")
    expect(page.get_by_text("not saved", exact=True)).to_be_hidden()
    assert file.read_text(encoding="utf-8") == mended
    assert gateway.get("/api/config").json()["settings"]["scheduler"]["interactive_cooldown"] == "6s"


def test_what_is_not_saved_is_kept_and_not_left_unasked(page: Page, gateway: Gateway, file: Path) -> None:
    """Through another view, and a change of the file by somebody else, which is told; a tab that is closed asks."""
    mine = AS_IT_WAS + "# a thought\n"
    typed(page, gateway, mine)
    go_to(page, "log")
    go_to(page, "settings")
    expect(page.get_by_label("Configuration")).to_have_value(mine)
    file.write_text(AS_IT_WAS.replace("5s", "7s"), encoding="utf-8")
    expect(page.get_by_text("Somebody has changed the file meanwhile")).to_be_visible(timeout=20_000)
    expect(page.get_by_label("Configuration")).to_have_value(mine)
    asked: list[str] = []

    def stay(dialog: Dialog) -> None:
        asked.append(dialog.type)
        dialog.dismiss()

    page.on("dialog", stay)
    with page.expect_event("dialog"):
        page.close(run_before_unload=True)
    assert asked == ["beforeunload"]
    page.get_by_role("button", name="Show theirs").click()
    page.get_by_role("button", name="Throw it away").click()
    expect(page.get_by_label("Configuration")).to_have_value(AS_IT_WAS.replace("5s", "7s"))


def test_one_setting_is_changed_in_the_table(page: Page, gateway: Gateway, file: Path) -> None:
    """Where it comes from is said before and after, and the comment in the file stays."""
    go_to(page, "settings")
    enter_key(page, admin_token(gateway))
    page.get_by_label("Named").fill("relief_slots")
    row = page.locator("tr", has=page.get_by_text("scheduler.relief_slots", exact=True))
    expect(row).to_contain_text("the default")
    expect(row).to_contain_text("at once")
    page.get_by_role("button", name="Change scheduler.relief_slots").click()
    page.get_by_label("Value").fill("3")
    page.get_by_role("button", name="Next").click()
    page.get_by_role("button", name="Change it").click()
    expect(row).to_contain_text("line 4")
    assert file.read_text(encoding="utf-8") == AS_IT_WAS + "  relief_slots: 3\n"


def test_H6_a_key_is_shown_once_and_what_it_may_not_is_not_offered(page: Page, gateway: Gateway, file: Path) -> None:
    """From the first key on the page wants one; with that one it shows the settings, and not the file."""
    assert file.exists()
    go_to(page, "settings")
    expect(page.get_by_text("Seeing and making keys needs the admin token")).to_be_visible()
    enter_key(page, admin_token(gateway))
    page.get_by_label("For", exact=True).fill("tom")
    page.get_by_role("button", name="Make a key").click()
    secret = page.locator(".secret").text_content() or ""
    assert secret.startswith("gs-")
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    expect(page.get_by_text(secret)).to_have_count(0)
    enter_key(page, "")
    expect(page.get_by_role("dialog")).to_contain_text("this server wants an API key", timeout=20_000)
    page.get_by_label("API key or admin token").fill(secret)
    page.get_by_role("button", name="Use it").click()
    expect(page.get_by_text("Changing the configuration needs the admin token")).to_be_visible()
    expect(page.get_by_role("button", name="Save", exact=True)).to_be_disabled()
    expect(page.get_by_role("button", name="Change server.host")).to_be_disabled()
    enter_key(page, admin_token(gateway))
    page.get_by_role("button", name="Revoke the key tom").click()
    page.get_by_role("button", name="Revoke it").click()
    expect(page.get_by_text("There are none: on this machine nobody needs one.")).to_be_visible()
    assert refusals(page, 401) >= 1
