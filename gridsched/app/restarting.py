"""Whether the next start would go well with settings that wait for it: tried while a server runs, before they are
believed. Composition only.

Owns what is tried: the engine, the address, the certificate, and who could use the server. What is as it was when the
server started is not tried again. Must never be asked from inside trio: it blocks, and runs the engine once.
"""

from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

from gridsched.api.listen import CannotListen, PortTaken, listen
from gridsched.app.finding import pinned_engine
from gridsched.app.start import StartError, certificate_of, refuse_one_port_for_two
from gridsched.control.authority import Authority
from gridsched.engine.find import find_engine
from gridsched.settings.schema import Settings


def refuse_exposure(authority: Authority, host: str, *, insecure: bool) -> None:
    """H6: a server that other machines can reach has keys, or was told to go without. Raises StartError."""
    if insecure or authority.has_keys or _is_loopback(host):
        return
    raise StartError(
        f"server.host {host} can be reached from other machines, and there are no API keys: nobody there could use the"
        " server. Make a key (gridsched keys add NAME), listen on 127.0.0.1, or say --insecure: then everybody who can"
        " reach it may ask its models, see what runs, and load and unload"
    )


def _is_loopback(host: str) -> bool:
    """Whether only this machine comes to an address. A name is one that could not be listened on."""
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return True


def refuse_start(
    authority: Authority, data_dir: Path | None, environ: Mapping[str, str], before: Settings, after: Settings
) -> None:
    """Raises StartError for settings with which a start would fail. Without a `data_dir` no engine is looked for."""
    refuse_one_port_for_two(after)
    if after.server.tls != before.server.tls:
        certificate_of(after)
    if (host := after.server.host) != before.server.host:
        with suppress(PortTaken):  # whoever has it may be gone by then
            try:
                listen(host, 0).close()
            except CannotListen as error:
                raise StartError(after.told(("server", "host"), str(error))) from None
        refuse_exposure(authority, host, insecure=authority.insecure)
    if data_dir is not None and after.engine.path != before.engine.path:
        path = str(after.engine.path) if after.engine.path else None
        found = find_engine(path, environ, pinned_engine(after, data_dir))
        if not found.info.ok:
            raise StartError(after.told(("engine", "path"), found.info.problem))
