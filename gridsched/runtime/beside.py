"""Host memory beside devices: a load that takes more than there is at the moment is told of, because nothing is
reserved there; and the scheduler hears it when its size changes.

Owns the sentence. Must never refuse or delay a load: what is free now may be back, or taken, a moment later.
"""

from collections.abc import Callable

import trio

from gridsched.core.events import DevicesChanged
from gridsched.core.model import LaunchOption
from gridsched.ports import HostMemory, Post

LOOK_SECONDS = 60.0
"""How often the size is read. It changes when a virtual machine is given memory, or somebody sets a limit."""


async def follow(now: Callable[[], DevicesChanged], post: Post) -> None:
    """Post what there is to plan with whenever it is no longer what it was, until cancelled."""
    known = now()
    while True:
        await trio.sleep(LOOK_SECONDS)
        if (found := now()) != known:
            known = found
            post(found)


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
