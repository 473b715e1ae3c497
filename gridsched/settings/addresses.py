"""How the address of a machine, or a range of them, is read from the configuration. Owns that reader alone."""

from ipaddress import IPv4Network, IPv6Network, ip_network

from gridsched.settings.values import TEXT, Reads, shown

Network = IPv4Network | IPv6Network


def _network(value: object) -> Network:
    """An address, or a range of them. Raises ValueError."""
    try:
        network = ip_network(value) if isinstance(value, str) else None
    except ValueError:
        network = None
    if network is None:
        raise ValueError(f"expected an address or a range such as 10.0.0.0/8, {shown(value)}")
    if not network.prefixlen:
        raise ValueError("would have anybody say who called; name the proxies")
    return network


NETWORK = Reads("address or range", lambda value, _: _network(value), TEXT.json_schema)
