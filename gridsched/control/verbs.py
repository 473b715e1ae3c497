"""Every verb there is, in the order in which they are shown. A table; pure.

A verb that is not here is not reachable: the REST routes, the OpenAPI document, the MCP tools and the matrix of who may
what are made from this list.
"""

from collections.abc import Mapping
from typing import Final

from gridsched.control import (
    auditing,
    benchmark,
    cancelling,
    configuring,
    connection,
    deleting,
    ending,
    estimates,
    hub,
    keys,
    leases,
    logs,
    looking,
    openapi,
    options,
    recommended,
    reload,
    residency,
    setup,
)
from gridsched.control.verb import Verb

VERBS: Final[tuple[Verb, ...]] = (
    *looking.VERBS,
    *connection.VERBS,
    *setup.VERBS,
    *cancelling.VERBS,
    *logs.VERBS,
    *residency.VERBS,
    *options.VERBS,
    *recommended.VERBS,
    *estimates.VERBS,
    *benchmark.VERBS,
    *hub.VERBS,
    *deleting.VERBS,
    *configuring.VERBS,
    *leases.VERBS,
    *reload.VERBS,
    *keys.VERBS,
    *auditing.VERBS,
    *ending.VERBS,
    openapi.describing(lambda: VERBS),
)

BY_NAME: Final[Mapping[str, Verb]] = {verb.name: verb for verb in VERBS}
