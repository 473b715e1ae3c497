"""A load that takes more host memory than there is at the moment: told of, because nothing is reserved there.

Owns the sentence. Must never refuse or delay a load: what is free now may be back, or taken, a moment later.
"""

from gridsched.core.model import LaunchOption
from gridsched.ports import HostMemory


def lacking(option: LaunchOption, host: HostMemory | None) -> str | None:
    """What a launch lacks of the host memory that is available now; None where there is enough, or nobody knows."""
    available = host.available_bytes() if host is not None and option.host is not None else None
    if available is None or option.host_need_bytes + option.host_mapped_bytes <= available:
        return None
    takes = f"it takes {_size(option.host_need_bytes)} of host memory"
    there = f"{_size(available)} are available now"
    if option.host_need_bytes > available:
        return f"{takes} beside its devices, and {there}: the system may swap, or end it"
    mapped = _size(option.host_mapped_bytes)
    return f"{takes} beside {mapped} of mapped weights, and {there}: weights will be read from the disk again and again"


def _size(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
