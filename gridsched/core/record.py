"""A dataclass that is frozen for the type checker and cheap at run time.

Owns one decorator. A truly frozen dataclass takes about five times as long to make, because each field passes
`object.__setattr__`; what is made at every event would cost more than the decision that it carries. mypy refuses
assignments to its fields all the same.
"""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, eq_default=True)
def record(cls: type[T]) -> type[T]:
    """A slotted, hashable dataclass, not to be changed after it was made."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
