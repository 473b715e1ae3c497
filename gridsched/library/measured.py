"""Kept measurements as what `vram.calibrate` judges. Owns what counts as one card: the card itself under one driver."""

from collections.abc import Iterable, Iterator

from gridsched.ports import Measurement
from gridsched.vram.calibrate import Load


def card(identity: str, driver: str) -> str:
    """A device under its driver: another driver may take more."""
    return f"{identity} {driver}".rstrip()


def loads(measurements: Iterable[Measurement]) -> Iterator[Load]:
    """The measured launches of which it is known what they are."""
    for kept in measurements:
        account = kept.account
        if account is not None and kept.measured_bytes:
            facts = account.facts
            yield Load(
                architecture=facts.architecture,
                engine_build=facts.engine_build,
                devices=tuple(map(card, facts.devices, facts.drivers)),
                predicted=account.predicted,
                measured_bytes=kept.measured_bytes,
                allocated=account.allocated,
            )
