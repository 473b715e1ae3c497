"""Environment variables that would change a launch behind its plan."""

import pytest

from gridsched.vram.environment import environment_fault, is_withheld


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("LLAMA_ARG_CTX_SIZE", "write --ctx-size under flags instead"),
        ("llama_arg_ctx_size", "write --ctx-size under flags instead"),
        ("LLAMA_ARG_SOMETHING_NEW", "write its flag under flags instead"),
        ("LLAMA_API_KEY", "is given by gridsched itself"),
        ("CUDA_VISIBLE_DEVICES", "gridsched chooses the devices"),
        ("HIP_VISIBLE_DEVICES", "gridsched chooses the devices"),
        ("GGML_VK_VISIBLE_DEVICES", "gridsched chooses the devices"),
        ("GGML_CUDA_ENABLE_UNIFIED_MEMORY", "memory would spill"),
        ("GGML_VK_PREFER_HOST_MEMORY", "memory would spill"),
    ],
)
def test_E25_what_would_move_memory_or_devices_is_refused_by_name(name: str, part: str) -> None:
    """In a model's environment; with what to do instead."""
    assert part in (environment_fault(name, {"LLAMA_ARG_CTX_SIZE": "--ctx-size"}) or "")


@pytest.mark.parametrize(
    "name", ["GGML_CUDA_NO_PINNED", "GGML_CUDA_DISABLE_GRAPHS", "OMP_NUM_THREADS", "LD_LIBRARY_PATH", "HF_HOME", "A"]
)
def test_what_moves_nothing_passes(name: str) -> None:
    """Into a model's environment, and from gridsched's own."""
    assert environment_fault(name, {}) is None
    assert not is_withheld(name)


@pytest.mark.parametrize(
    "name", ["LLAMA_ARG_N_GPU_LAYERS", "CUDA_VISIBLE_DEVICES", "GGML_CUDA_DEVICES", "GGML_CUDA_ENABLE_UNIFIED_MEMORY"]
)
def test_E25_gridscheds_own_environment_is_cleaned(name: str) -> None:
    """Never ignored: no engine sees it."""
    assert is_withheld(name)


def test_what_says_which_hardware_there_is_stays() -> None:
    """A card that is hidden from gridsched's engine when it is asked is hidden from its processes too."""
    assert not is_withheld("HIP_VISIBLE_DEVICES")
    assert not is_withheld("ONEAPI_DEVICE_SELECTOR")
