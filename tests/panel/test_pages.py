"""The panel's files as the server sends them."""

import re

from trio.testing import MockClock

from gridsched.panel.pages import POLICY
from tests.support.front import serving


async def test_the_page_and_all_that_it_names_are_there_for_everybody(autojump_clock: MockClock) -> None:
    """The page, its scripts and its style, each with its type, the policy and no word for a cache to keep it by."""
    async with serving(autojump_clock) as house, await house.connect() as client:
        page = await client.ask("GET", "/")
        named = re.findall(r'(?:href|src)="(/panel/[^"]+)"', page.body.decode())
        assert (page.status, page.headers["content-type"], len(named)) == (200, "text/html; charset=utf-8", 6)
        for path in ("/", *named):
            answer = await client.ask("GET", path)
            assert (answer.status, answer.headers["x-content-type-options"]) == (200, "nosniff"), path
            assert answer.headers["content-security-policy"] == POLICY
            for etag in (answer.headers["etag"], f"W/{answer.headers['etag']}"):
                again = await client.ask("GET", path, None, {"If-None-Match": etag})
                assert (again.status, again.body, again.headers.get("content-length")) == (304, b"", None)
                assert again.headers["content-security-policy"] == POLICY


async def test_a_file_that_is_not_there_is_a_404_in_the_usual_shape(autojump_clock: MockClock) -> None:
    """Nothing outside the folder is served, whatever the path."""
    async with serving(autojump_clock) as house, await house.connect() as client:
        for path in ("/panel/none.js", "/panel/../pages.py", "/panel/%2e%2e/pages.py", "/panel/index.html", "/panel/"):
            answer = await client.ask("GET", path)
            assert (answer.status, answer.error["code"]) == (404, "not_found"), path


def test_M9_the_policy_lets_nothing_inline_run() -> None:
    """No unsafe-inline, no unsafe-eval, nothing from elsewhere."""
    assert "unsafe" not in POLICY
    assert "default-src 'none'" in POLICY
