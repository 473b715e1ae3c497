"""The engine's command line and environment, as pure functions of a launch. Owns every flag that we pass, and why.

Whatever the plan has decided is said explicitly, so that nothing is left for the engine to choose: slots, context,
placement, and its own fitting switched off (L7: never a silent spill).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gridsched.core.ids import DeviceName
from gridsched.core.model import LaunchOption
from gridsched.ports import Backend, Capability, DeviceInfo, Launch

# Beside a GPU, host memory is not planned: half a GiB keeps some conversations' prompts warm. On a host-memory budget
# every byte is planned, so that cache is off. The engine's own default is 8 GiB a process, growing as it runs (L6b).
CACHE_RAM_MIB_BESIDE_GPU = 512
# Saved states per slot, for models whose cache cannot be rolled back. The engine's default is 32; 4 is a guess.
CTX_CHECKPOINTS = 4
ALL_LAYERS = 999  # more than any model has: every layer on the device. `all` is not known to older builds

# Flags that would take the process out of our hands: where it listens, who may ask, which model it is, what it says.
_REFUSED = frozenset(
    (
        *("--host", "--port", "--reuse-port", "--api-prefix", "--api-key", "--api-key-file"),
        *("--ssl-key-file", "--ssl-cert-file", "--no-slots", "--alias", "-a", "--tags"),
        *("--model", "-m", "--model-url", "-mu", "--hf-repo", "-hf", "-hfr", "--hf-file", "-hff", "--hf-token", "-hft"),
        *("--models-dir", "--models-preset", "--version", "--help", "-h", "--usage", "--list-devices", "--log-disable"),
    )
)

_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")
_OURS = ("LLAMA_ARG_", "GRIDSCHED_")
_PLACEMENT = frozenset(("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GGML_VK_VISIBLE_DEVICES"))


@dataclass(frozen=True, slots=True)
class Spawn:
    """What differs from one spawn to the next: the socket, and a tag that no other process carries."""

    socket: Path
    tag: str


def refused_flags(flags: Sequence[str]) -> tuple[str, ...]:
    """Those of a person's engine flags that we cannot pass on, also when written `--a=b` or `--a_b`."""
    names = (flag.partition("=")[0] for flag in flags if flag.startswith("-"))
    return tuple(name for name in names if (name.replace("_", "-") if name.startswith("--") else name) in _REFUSED)


def build_argv(
    engine: Path, known_flags: frozenset[str], launch: Launch, devices: Sequence[DeviceInfo], spawn: Spawn
) -> tuple[str, ...]:
    """The command line. `devices` are those of the option's footprint, in its order.

    Flags that came late to the engine are passed where `known_flags` (from its own help) has them. The rung's flags,
    then the person's, come last: the engine takes the last of a kind.
    """
    argv = [str(engine), "--model", str(launch.path), "--host", str(spawn.socket)]
    argv += ["--alias", launch.model.replace(",", "_"), "--parallel", str(launch.option.parallel)]
    argv += ["--ctx-size", str(launch.option.ctx_size), *_placement(launch.option, devices)]
    optional = {
        "--fit": ("off",),
        "--slots": (),
        "--no-webui": (),
        "--tags": (spawn.tag,),
        "--cache-ram": (str(0 if _on_host(devices) else CACHE_RAM_MIB_BESIDE_GPU),),
        "--ctx-checkpoints": (str(CTX_CHECKPOINTS),),
        "--sse-ping-interval": ("-1",),  # the engine's pings would hide a stall, and count as bytes of an answer
    }
    for flag, values in optional.items():
        if flag in known_flags:
            argv += [flag, *values]
    if Capability.EMBEDDING in launch.capabilities:
        argv.append("--embeddings")
    if Capability.RERANK in launch.capabilities:
        argv.append("--reranking")
    if launch.mmproj is not None:
        argv += ["--mmproj", str(launch.mmproj)]
    return (*argv, *launch.option.flags, *launch.flags)


def build_env(
    base: Mapping[str, str], engine_env: Mapping[str, str], launch: Launch, devices: Sequence[DeviceInfo]
) -> dict[str, str]:
    """The child's environment: ours without secrets and without settings that would change the launch behind the plan.

    CUDA numbers cards by speed unless told otherwise, so a card is named by its UUID and the rest are hidden.
    """
    env = {name: value for name, value in base.items() if not _is_withheld(name)}
    env.update(engine_env)
    cuda = [device.uuid for device in devices if device.backend is Backend.CUDA]
    if cuda:
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        env["CUDA_VISIBLE_DEVICES"] = ",".join(cuda)
    env.update(launch.env)
    return env


def devices_of(option: LaunchOption, known: Mapping[DeviceName, DeviceInfo]) -> tuple[DeviceInfo, ...]:
    """The devices of an option's footprint, in its order. Raises KeyError for one that is not there."""
    return tuple(known[name] for name in option.devices)


def _placement(option: LaunchOption, devices: Sequence[DeviceInfo]) -> list[str]:
    """Where the layers go. Several devices share them in proportion to their planned weights."""
    if _on_host(devices):
        return ["--device", "none", "--n-gpu-layers", "0"]
    names = ",".join(_engine_name(device, order) for order, device in enumerate(devices))
    placement = ["--device", names, "--n-gpu-layers", str(ALL_LAYERS)]
    if len(devices) == 1:
        return [*placement, "--split-mode", "none", "--main-gpu", "0"]
    weights = [max(1, part.weights_bytes // (1024 * 1024)) for part in option.footprint]
    return [*placement, "--split-mode", "layer", "--tensor-split", ",".join(map(str, weights))]


def _engine_name(device: DeviceInfo, order: int) -> str:
    """CUDA counts only the cards it is shown, Vulkan counts all there are."""
    match device.backend:
        case Backend.CUDA:
            return f"CUDA{order}"
        case Backend.VULKAN:
            return f"Vulkan{device.index}"
        case _:
            raise ValueError(f"a launch spans the host and a card ({device.spec.name}): no such plan is made")


def _on_host(devices: Sequence[DeviceInfo]) -> bool:
    return all(device.backend is Backend.CPU for device in devices)


def _is_withheld(name: str) -> bool:
    upper = name.upper()
    return upper.startswith(_OURS) or upper in _PLACEMENT or any(word in upper for word in _SECRET_WORDS)
