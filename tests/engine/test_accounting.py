"""What the engine prints of its own memory, as recorded from its logs."""

import pytest

from gridsched.core.ids import DeviceName
from gridsched.core.model import DeviceFootprint, DeviceSpec
from gridsched.engine.accounting import allocations, is_of_interest, level_in, misplaced
from gridsched.ports import Backend, DeviceInfo

MIB = 1 << 20
HOST = DeviceInfo(DeviceSpec(DeviceName("host"), 0), "host", Backend.CPU)
CARDS = tuple(
    DeviceInfo(DeviceSpec(DeviceName(f"gpu{n}"), 0), "card", Backend.CUDA, n, f"GPU-{n}", f"0000:0{n + 1}:00.0")
    for n in range(2)
)

# One line of each kind, from a CUDA start of two cards with window layers; the timings in front are the engine's.
TWO_CARDS = """\
0.00.812.001 I llama_prepare_model_devices: using device CUDA0 (NVIDIA GeForce RTX 3090) (0000:01:00.0) - 23871 MiB free
0.00.812.009 I llama_prepare_model_devices: using device CUDA1 (NVIDIA GeForce RTX 3090) (0000:02:00.0) - 23871 MiB free
0.00.899.520 I load_tensors:   CPU_Mapped model buffer size =   306.00 MiB
0.00.899.521 I load_tensors:        CUDA0 model buffer size =   243.76 MiB
0.00.899.522 I load_tensors:        CUDA1 model buffer size =   518.78 MiB
0.01.218.357 I llama_context:  CUDA_Host  output buffer size =     4.00 MiB
0.01.218.542 I llama_kv_cache:      CUDA0 KV buffer size =     8.00 MiB
0.01.219.844 I llama_kv_cache:      CUDA0 KV buffer size =    30.00 MiB
0.01.220.100 I llama_memory_recurrent:      CUDA1 RS buffer size =   149.62 MiB
0.01.231.094 I sched_reserve:      CUDA0 compute buffer size =    90.00 MiB
0.01.231.098 I sched_reserve:      CUDA1 compute buffer size =    82.07 MiB
0.01.231.099 I sched_reserve:  CUDA_Host compute buffer size =    30.58 MiB
0.01.331.094 I sched_reserve:      CUDA0 compute buffer size =    82.07 MiB
0.01.431.094 I alloc_compute_meta:      CUDA0 compute buffer size =   121.25 MiB
""".splitlines()

# b10068 on the processor, a model of 0.1 MB and weights laid out anew.
ON_HOST = """\
0.00.010.705 I load_tensors:   CPU_Mapped model buffer size =     0.09 MiB
0.00.010.709 I load_tensors:   CPU_REPACK model buffer size =     1.50 MiB
0.00.011.644 I llama_context:        CPU  output buffer size =     0.25 MiB
0.00.011.803 I llama_kv_cache:        CPU KV buffer size =     0.03 MiB
0.00.014.467 I sched_reserve:        CPU compute buffer size =     0.32 MiB
""".splitlines()


def mib(footprint: DeviceFootprint) -> tuple[float, float, float, float]:
    """Weights, cache, state and compute."""
    parts = (
        footprint.weights_bytes,
        footprint.kv_bytes,
        footprint.recurrent_bytes,
        footprint.compute_bytes,
    )
    return tuple(round(size / MIB, 2) for size in parts)  # type: ignore[return-value]  # four of four


def test_buffers_are_told_by_device_and_component() -> None:
    """Two caches of one card add up, a context reserved anew does not, the projector's compute is nobody's here."""
    first, second = allocations(TWO_CARDS, CARDS, ("CUDA0", "CUDA1"))
    assert (first.device, second.device) == ("gpu0", "gpu1")
    assert mib(first) == (243.76, 38.0, 0.0, 82.07)
    assert mib(second) == (518.78, 0.0, 149.62, 82.07)


def test_on_the_host_all_buffers_count() -> None:
    """Mapped and repacked weights; the logits with what is computed in."""
    (host,) = allocations(ON_HOST, (HOST,), ())
    assert mib(host) == (1.59, 0.03, 0.0, 0.57)


@pytest.mark.parametrize("lines", [(), ["load_tensors: offloaded 33/33 layers to GPU"], ON_HOST])
def test_an_engine_that_says_nothing_of_the_devices_is_no_fault(lines: list[str]) -> None:
    """Nothing is allocated, as far as is known: not nothing at all."""
    assert allocations(lines, CARDS[:1], ("CUDA0",)) == ()


def test_P5_what_a_model_calls_itself_breaks_nothing() -> None:
    """An engine prints a file's own words too, and a figure in them may be one that no number can hold."""
    line = f"print_info: general.name = x: CUDA0 model buffer size = {'9' * 400}.0 MiB"
    assert allocations([line], CARDS[:1], ("CUDA0",)) == ()


def test_other_engines_words_are_read_alike() -> None:
    """Vulkan with its own number, Metal with mapped weights."""
    vulkan = ["load_tensors:      Vulkan3 model buffer size =   334.98 MiB"]
    metal = ["I load_tensors:  MTL0_Mapped model buffer size =   159.35 MiB"]
    assert mib(allocations(vulkan, CARDS[:1], ("Vulkan3",))[0])[0] == 334.98
    assert mib(allocations(metal, CARDS[:1], ("MTL0",))[0])[0] == 159.35


def test_D8_an_engine_on_another_card_than_planned_is_found_out() -> None:
    """By the address in its log; four digits of a domain are eight; no address is no objection."""
    names = ("CUDA0", "CUDA1")
    assert misplaced(TWO_CARDS, CARDS, names) is None
    assert misplaced([line.replace("(0000:01", "(00000000:01") for line in TWO_CARDS], CARDS, names) is None
    assert misplaced([line.replace("(0000:01:00.0)", "(unknown id)") for line in TWO_CARDS], CARDS, names) is None
    assert misplaced(ON_HOST, (HOST,), ()) is None
    crossed = misplaced(TWO_CARDS, CARDS, names[::-1])
    assert crossed == "the engine's CUDA0 is the card at 0000:01:00.0, and gpu1 is at 0000:02:00.0"


def test_only_lines_about_memory_are_set_aside() -> None:
    """Every line of a process's life is asked."""
    assert all(map(is_of_interest, (*TWO_CARDS, *ON_HOST)))
    assert not is_of_interest("slot print_timing: id  0 | task 4 | total time = 0.23 ms / 4 tokens")


def test_the_level_is_asked_for_where_the_help_knows_it() -> None:
    """As b10068's help has it; an older one counts otherwise."""
    late = (
        "-lv,   --verbosity, --log-verbosity N   Set the verbosity threshold\n  - 3: info\n  - 4: trace (more info)\n"
    )
    assert level_in(late) == "4"
    assert level_in("-lv, --verbosity N   Set the verbosity threshold.") == ""


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("warning: no usable GPU found, --gpu-layers option will be ignored", ("CUDA0",)),
        ("warning: no usable GPU found, --gpu-layers option will be ignored", ("Vulkan3", "Vulkan4")),
        ("ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected", ("CUDA0",)),
        ("ggml_cuda_init: failed to initialize ROCm: unknown error", ("ROCm1",)),
        ("ggml_vulkan: No devices found.", ("Vulkan0",)),
    ],
)
def test_B16_an_engine_that_says_it_found_no_card_computes_on_the_processor(line: str, names: tuple[str, ...]) -> None:
    """With its own words; on the host, and of a backend that nothing was planned on, they are no news."""
    assert is_of_interest(line)
    sentence = misplaced(["load_tensors: CPU model buffer size = 1.00 MiB", line], CARDS[: len(names)], names)
    assert sentence is not None
    assert line in sentence
    assert misplaced([line], (HOST,), ()) is None
    if "usable" not in line:
        assert misplaced([line], CARDS[:1], ("SYCL0",)) is None
