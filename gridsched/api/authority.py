"""Who may change the machine (H6). Pure.

Being on loopback is not enough: any program, and any page in a browser, of this machine is. Whoever drains, restarts or
changes the server shows a credential. Today that is the local admin token; keys with scopes join it here.
"""

import hmac
from collections.abc import Mapping

from gridsched.api.problems import Problem


class Authority:
    """Knows the credentials. Without a token nobody may do what needs one."""

    def __init__(self, admin_token: str = "") -> None:
        self._admin_token = admin_token.encode()

    def refuse_admin(self, headers: Mapping[bytes, bytes]) -> Problem | None:
        """The refusal of what changes the machine, or None for a request that may."""
        if not self._admin_token:
            return Problem(
                "remote_admin_requires_credential",
                "this server has no admin token: it keeps no data directory, or could not write there",
            )
        said = headers.get(b"authorization")
        if said is None:
            return Problem(
                "remote_admin_requires_credential",
                "this needs the admin token, as Authorization: Bearer TOKEN; gridsched's own commands on the server's"
                " machine find it in the data directory (admin.token)",
            )
        scheme, _, token = said.strip().partition(b" ")
        if scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._admin_token):
            return None
        return Problem(
            "invalid_api_key", "this is not the server's admin token", headers=((b"www-authenticate", b"Bearer"),)
        )
