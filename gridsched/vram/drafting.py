"""Speculative decoding: what drafting takes beside the model, from a second model or from the model's own blocks.

Owns the rules of the second context (common/speculative.cpp, tools/server): it has the pool, slots, micro-batch and
flash attention of the first, its own placement, and its own cache types, which are f16 unless the draft's own flags say
otherwise, whatever the model's cache is. Drafting from n-grams takes nothing on a device.
"""

from dataclasses import replace

from gridsched.vram.buffers import Buffers, buffers_on_devices, buffers_on_host
from gridsched.vram.context import Context, plan_context
from gridsched.vram.flags import DraftFlags, FlagError, LaunchFlags
from gridsched.vram.geometry import Geometry, StateSpace
from gridsched.vram.placement import device_index, place, weight_bytes

MTP = "draft-mtp"


def draft_buffers(
    geometry: Geometry,
    flags: LaunchFlags,
    context: Context,
    draft: Geometry | None,
    devices: int,
    *,
    on_host: bool = False,
) -> tuple[list[Buffers], Buffers]:
    """What drafting takes on each device, and on the host. `draft` is the `--model-draft` file's geometry.

    Raises FlagError where the model is told to draft with blocks that it does not have.
    """
    own = draft is None and MTP in flags.spec_types
    if draft is None and not own:
        return [Buffers()] * devices, Buffers()
    drafter = draft or geometry
    launch = _second_launch(flags, context, drafts_itself=own)
    if MTP in flags.spec_types:
        if drafter.draft_blocks:
            return _by_blocks(drafter, launch, devices, weights_too=not own, on_host=on_host)
        if own:
            raise FlagError("--spec-type", f"{MTP} needs a model with blocks that predict further tokens")
    second = plan_context(drafter, launch, on_gpu=not on_host)
    if on_host:
        return [buffers_on_host(drafter, launch, second)], Buffers()
    return buffers_on_devices(drafter, launch, second, devices)


def _second_launch(flags: LaunchFlags, context: Context, *, drafts_itself: bool) -> LaunchFlags:
    """The flags that the drafting context is made with."""
    said = flags.draft or DraftFlags()
    launch = replace(
        flags,
        ctx_size=said.ctx_size or context.ctx_size,
        cache_type_k=said.cache_type_k,
        cache_type_v=said.cache_type_v,
        embeddings=False,
        reranking=False,
        spec_types=(),
        draft=None,
    )
    if drafts_itself:
        return launch
    launch = replace(launch, gpu_layers=said.gpu_layers, overrides=said.overrides)
    if not said.device_names:
        return launch
    if said.device_names == ("none",):
        return replace(launch, gpu_layers=0, device_names=said.device_names)
    chosen = [device_index(name) for name in said.device_names]
    shares = tuple(float(index in chosen) for index in range(max(chosen) + 1))
    return replace(launch, tensor_split=shares, split_mode="layer")


def _by_blocks(
    geometry: Geometry, launch: LaunchFlags, devices: int, *, weights_too: bool, on_host: bool
) -> tuple[list[Buffers], Buffers]:
    """A context that runs the drafting blocks alone. Their weights, and the rest of them where the file is a second
    one."""
    blocks = _blocks_alone(geometry)
    second = plan_context(blocks, launch, on_gpu=not on_host)
    placement = place(geometry, launch, 0 if on_host else devices)
    sizes, host_size = weight_bytes(geometry, placement, drafting=True)
    if weights_too:
        rest, host_rest = weight_bytes(geometry, placement)
        sizes, host_size = [left + right for left, right in zip(sizes, rest, strict=True)], host_size + host_rest
    mapped = host_size if launch.maps_file else 0
    if on_host:
        return [replace(buffers_on_host(blocks, launch, second), weights=host_size, mapped=mapped)], Buffers()
    parts, host = buffers_on_devices(blocks, launch, second, devices)
    working = {*placement.layers[geometry.blocks :]}  # the drafting blocks' devices, and the output layer's
    if host_size and launch.op_offload:
        working.add(0)  # what is on the host is fetched to the first
    parts = [
        replace(part, weights=sizes[index], compute=part.compute if index in working else 0)
        for index, part in enumerate(parts)
    ]
    return parts, replace(host, weights=host_size, mapped=mapped)


def _blocks_alone(geometry: Geometry) -> Geometry:
    """The same model with nothing in its ordinary blocks: attention over a cache of their own in the drafting ones."""
    ordinary = [
        replace(layer, cache_source=None, recurrent=False, state_bytes=0, side_caches=())
        for layer in geometry.layers[: geometry.blocks]
    ]
    drafting = [
        replace(layer, cache_source=index, recurrent=False, state_bytes=0)
        for index, layer in enumerate(geometry.layers)
        if index >= geometry.blocks
    ]
    return replace(
        geometry,
        layers=(*ordinary, *drafting),
        blocks=len(geometry.layers),
        draft_blocks=0,
        state_space=StateSpace(),
        has_cache=True,
        weights=tuple(weight for weight in geometry.weights if (weight.block or 0) >= geometry.blocks),
    )
