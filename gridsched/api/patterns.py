"""h11's patterns for a line of a head or a trailer and for the beginning of a chunk, so that no line is slow to refuse.

Owns that replacement and nothing else: they match the same lines, and give the same parts of them. h11's own (0.16)
can match a run of blanks in as many ways as it is long, and try them all for a line that is spoilt behind it: 64 KiB of
blanks and a NUL, from anybody, held every stream up for half a minute. Must never take a line that h11 would not.
"""

import re

from h11 import _readers

HEADER = (
    rb"(?P<field_name>[!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*+(?P<field_value>(?:[^\x00\s]+(?:[ \t]+[^\x00\s]+)*)?)[ \t]*"
)
CHUNK = rb"(?P<chunk_size>[0-9A-Fa-f]{1,20})(?:(?P<chunk_ext>;.*)|[ \t]*)\r\n"


def make_quick() -> None:
    """For every connection of this process."""
    _readers.header_field_re = re.compile(HEADER)
    _readers.chunk_header_re = re.compile(CHUNK)
