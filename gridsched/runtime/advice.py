"""What a refusal for memory says beside the scheduler's own words: what would fit (L7).

Owns the completing of a rejection, on its way to whoever hears it and in that one's own task: the arithmetic of a
large model takes as long as many steps, and the actor must never wait for it (S7). The decision was made and logged
before, and nothing here can change it.
"""

from dataclasses import replace

import trio

from gridsched.core.commands import Rejection, RejectionCode
from gridsched.core.ids import DeviceName, ModelName
from gridsched.ports import Catalog

LONGEST_ADVICE_SECONDS = 2.0
"""A refusal that knows no advice by then goes out without it: a client that is told no wants to hear it soon."""


class Adviser:
    """One per server."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def complete(self, asked: ModelName | None, rejection: Rejection, ctx_size: int | None = None) -> Rejection:
        """A rejection with what would fit, where it is for memory; both figures are None where that takes too long. Of
        a family that was `asked` for it is about the model that the scheduler looked at. `ctx_size`: the context that
        was asked for, where it is not the configuration's."""
        per_device = rejection.detail.get("per_device")
        if rejection.code is not RejectionCode.INSUFFICIENT_VRAM or not isinstance(per_device, list):
            return rejection
        model = ModelName(str(rejection.detail.get("model", asked)))
        usable = {DeviceName(row["device"]): int(row["available_bytes"]) for row in per_device}
        fit = None
        with trio.move_on_after(LONGEST_ADVICE_SECONDS):
            fit = await self._catalog.largest_fit(model, usable, ctx_size)
        ctx_size, parallel, told = (
            (fit.ctx_size, fit.parallel, fit.suggestions) if fit is not None else (None, None, ())
        )
        detail = {**rejection.detail, "max_ctx_that_fits": ctx_size, "max_parallel_that_fits": parallel}
        suggestions = detail.get("suggestions")
        if isinstance(suggestions, list):
            detail["suggestions"] = [*suggestions, *told]
        return replace(rejection, detail=detail)
