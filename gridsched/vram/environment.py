"""Environment variables that would change a launch behind its plan.

Owns which they are, and why: the engine's own settings (each has a flag, which is where a plan is read from), what
chooses devices, and what lets memory spill. A model's environment may hold none of them; gridsched's own environment is
cleaned of them before an engine sees it. Other variables of the engine's backends pass: they move nothing from one
memory to another (`GGML_CUDA_NO_PINNED`, `GGML_CUDA_REGISTER_HOST`), or only what a measurement, kept by flags and
environment together, corrects (`GGML_CUDA_DISABLE_GRAPHS`, `CUDA_MODULE_LOADING`).
"""

from collections.abc import Mapping

_SETTING = "LLAMA_ARG_"
_GIVEN = frozenset(("LLAMA_API_KEY",))
_PLACEMENT = frozenset(
    (
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GGML_CUDA_DEVICES", "GGML_VK_VISIBLE_DEVICES"),
        *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ONEAPI_DEVICE_SELECTOR"),
        *("GGML_OPENCL_DEVICE", "GGML_OPENCL_PLATFORM", "GGML_METAL_DEVICES", "GGML_DISABLE_VULKAN"),
        *("GGML_BACKEND_PATH", "MTMD_BACKEND_DEVICE"),
    )
)
_SPILLING = frozenset(
    (
        *("GGML_CUDA_ENABLE_UNIFIED_MEMORY", "GGML_VK_ALLOW_SYSMEM_FALLBACK", "GGML_VK_PREFER_HOST_MEMORY"),
        *("GGML_METAL_SHARED_BUFFERS_ENABLE", "GGML_METAL_SHARED_BUFFERS_DISABLE"),
    )
)


def environment_fault(name: str, flags: Mapping[str, str]) -> str | None:
    """Why a model's environment may not hold this variable, None if it may.

    `flags` says which flag stands for a setting of the engine, as far as the engine's help tells.
    """
    upper = name.upper()
    if upper.startswith(_SETTING):
        flag = flags.get(upper, "its flag")
        return f"the engine's settings are planned from its flags: write {flag} under flags instead"
    if upper in _GIVEN:
        return "is given by gridsched itself; remove it"
    if upper in _PLACEMENT:
        return "gridsched chooses the devices of a launch: remove it, and name the only one as device"
    if upper in _SPILLING:
        return "memory would spill from the cards, or into them, behind the plan: remove it"
    return None


def is_withheld(name: str) -> bool:
    """Whether an engine must not get this variable from gridsched's own environment."""
    upper = name.upper()
    return upper.startswith(_SETTING) or upper in _GIVEN or upper in _SPILLING or upper in _OURS_TO_SET


_OURS_TO_SET = frozenset(
    (
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GGML_CUDA_DEVICES"),
        "GGML_VK_VISIBLE_DEVICES",
        "MTMD_BACKEND_DEVICE",
    )
)
"""Those of the placement that gridsched says itself. The others say what there is, to it as to the engine."""
