"""The engine's command line and environment, as pure functions of a launch. Owns every flag that we pass, and why.

Whatever the plan has decided is said explicitly, so that nothing is left for the engine to choose: slots, context,
placement, and its own fitting switched off (L7: never a silent spill).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gridsched.core.ids import DeviceName
from gridsched.core.model import LaunchOption
from gridsched.engine.address import LOOPBACK, Address, Port
from gridsched.ports import Backend, Capability, DeviceInfo, Launch
from gridsched.vram.environment import is_withheld
from gridsched.vram.host import CACHE_RAM_MIB, CTX_CHECKPOINTS
from gridsched.vram.words import long_name, spelled

ALL_LAYERS = 999  # more than any model has: every layer on the device. `all` is not known to older builds

# Flags that would take the process out of our hands: where it listens, who may ask, which model it is, what it says.
_REFUSED = frozenset(
    (
        *("--host", "--port", "--reuse-port", "--api-prefix", "--api-key", "--api-key-file"),
        *("--ssl-key-file", "--ssl-cert-file", "--no-slots", "--alias", "-a", "--tags"),
        *("--model", "-m", "--model-url", "-mu", "--hf-repo", "-hf", "-hfr", "--hf-file", "-hff", "--hf-token", "-hft"),
        *("--models-dir", "--models-preset", "--version", "--help", "-h", "--usage", "--list-devices", "--log-disable"),
        *("--cache-list", "-cl", "--completion-bash", "--device", "-dev"),
    )
)

_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")
_LAYERS = frozenset(
    (
        *("-ngl", "--gpu-layers", "--n-gpu-layers"),
        *("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl"),
    )
)


@dataclass(frozen=True, slots=True)
class Build:
    """What of an engine decides about its command line. `card_names` are its own names for the cards it can use,
    `file_flags` take paths; those that are relative begin at `folder`, wherever the process stands. `key_variable` is
    where the engine reads what it is to be told with every request, "" where it cannot ask for anything."""

    path: Path
    known_flags: frozenset[str]
    card_names: Mapping[DeviceName, str]
    log_level: str = ""
    file_flags: frozenset[str] = frozenset()
    folder: Path = Path("/")
    key_variable: str = ""


@dataclass(frozen=True, slots=True)
class Spawn:
    """What differs from one spawn to the next: the address, and a tag that no other process carries."""

    address: Address
    tag: str


def refused_flags(flags: Sequence[str]) -> tuple[str, ...]:
    """Those of a person's engine flags that we cannot pass on, also when written `--a=b` or `--a_b`."""
    names = (flag.partition("=")[0] for flag in flags if flag.startswith("-"))
    return tuple(name for name in names if long_name(name) in _REFUSED)


def build_argv(build: Build, launch: Launch, devices: Sequence[DeviceInfo], spawn: Spawn) -> tuple[str, ...]:
    """The command line. `devices` are those of the option's footprint, in its order, each of them usable.

    Flags that came late to the engine are passed where its own help has them. The rung's flags, then the person's, come
    last: the engine takes the last of a kind.
    """
    argv = [str(build.path), "--model", str(build.folder / launch.path), *_listen(spawn.address)]
    argv += ["--alias", launch.model.replace(",", "_"), "--parallel", str(launch.option.parallel)]
    argv += ["--ctx-size", str(launch.option.ctx_size), *_placement(launch.option, devices, build.card_names)]
    optional = {
        "--fit": ("off",),
        "--slots": (),
        "--no-webui": (),
        "--tags": (spawn.tag,),
        "--cache-ram": (str(0 if _on_host(devices) else CACHE_RAM_MIB),),
        "--ctx-checkpoints": (str(CTX_CHECKPOINTS),),
        "--sse-ping-interval": ("-1",),  # the engine's pings would hide a stall, and count as bytes of an answer
    }
    for flag, values in optional.items():
        if flag in build.known_flags:
            argv += [flag, *values]
    if build.log_level:
        argv += ["--verbosity", build.log_level]
    if Capability.EMBEDDING in launch.capabilities:
        argv.append("--embeddings")
    if Capability.RERANK in launch.capabilities:
        argv.append("--reranking")
    if launch.mmproj is not None:
        argv += ["--mmproj", str(build.folder / launch.mmproj)]
    return (*argv, *launch.option.flags, *_fixed(build, spelled(launch.flags)))


def _listen(address: Address) -> tuple[str, ...]:
    if isinstance(address, Port):
        return "--host", LOOPBACK, "--port", str(address.number)
    return "--host", str(address)


def _fixed(build: Build, flags: tuple[str, ...]) -> Iterator[str]:
    """A person's flags with automatic layers as the number that they were planned as, and with whole paths."""
    for before, word in zip(("", *flags), flags, strict=False):
        name = long_name(before)
        if name in _LAYERS and (word in ("auto", "all") or word.startswith("-")):
            yield str(ALL_LAYERS)
        elif name in build.file_flags and long_name(word) not in build.known_flags:
            yield ",".join(str(build.folder / path) if path else "" for path in word.split(","))
        else:
            yield word


def clean_env(base: Mapping[str, str]) -> dict[str, str]:
    """An environment without secrets, and without settings that would change a launch behind the plan."""
    return {name: value for name, value in base.items() if not _is_withheld(name)}


def build_env(
    base: Mapping[str, str], engine_env: Mapping[str, str], launch: Launch, devices: Sequence[DeviceInfo]
) -> dict[str, str]:
    """The child's environment.

    CUDA numbers cards by speed unless told otherwise, so a card is named by its UUID and the rest are hidden. On the
    host, threads that wait for each other must not spin: two processes with as many threads as cores then slow each
    other to 0.6 to 26 tokens a second, where 42 each is what they get if threads sleep (2 cores, SmolLM2-135M; alone,
    67 instead of 87).
    """
    env = {**clean_env(base), **engine_env}
    if _on_host(devices):
        env.setdefault("OMP_WAIT_POLICY", "passive")
    cuda = [device.uuid for device in devices if device.backend is Backend.CUDA]
    if cuda:
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        env["CUDA_VISIBLE_DEVICES"] = ",".join(cuda)
    env.update(launch.env)
    return env


def devices_of(option: LaunchOption, known: Mapping[DeviceName, DeviceInfo]) -> tuple[DeviceInfo, ...]:
    """The devices of an option's footprint, in its order. Raises KeyError for one that is not there."""
    return tuple(known[name] for name in option.devices)


def _placement(option: LaunchOption, devices: Sequence[DeviceInfo], names: Mapping[DeviceName, str]) -> list[str]:
    """Where the layers go. Several devices share them in proportion to their planned weights."""
    if _on_host(devices):
        return ["--device", "none", "--n-gpu-layers", "0"]
    if any(device.backend is Backend.CPU for device in devices):
        raise ValueError("a launch spans the host and a card: no such plan is made")
    placement = ["--device", ",".join(names_in_launch(devices, names)), "--n-gpu-layers", str(ALL_LAYERS)]
    if len(devices) == 1:
        return [*placement, "--split-mode", "none", "--main-gpu", "0"]
    weights = [max(1, part.weights_bytes // (1024 * 1024)) for part in option.footprint]
    return [*placement, "--split-mode", "layer", "--tensor-split", ",".join(map(str, weights))]


def names_in_launch(devices: Sequence[DeviceInfo], names: Mapping[DeviceName, str]) -> tuple[str, ...]:
    """What the engine calls the cards of a launch. Raises KeyError for one that it cannot use.

    CUDA counts only the cards that the process is shown, in the order of the launch; others count all there are.
    """
    known = [names[device.spec.name] for device in devices if device.backend is not Backend.CPU]
    return tuple(f"CUDA{order}" if name.startswith("CUDA") else name for order, name in enumerate(known))


def _on_host(devices: Sequence[DeviceInfo]) -> bool:
    return all(device.backend is Backend.CPU for device in devices)


def _is_withheld(name: str) -> bool:
    upper = name.upper()
    return upper.startswith("GRIDSCHED_") or is_withheld(name) or any(word in upper for word in _SECRET_WORDS)
