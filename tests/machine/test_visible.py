"""The variables that choose visible GPUs, read as CUDA, ROCm and Level Zero read them."""

import pytest

from numa_launch.machine.gpu import Gpu
from numa_launch.machine.vendors import visible_gpus

EIGHT = [
    Gpu(f"0000:{i}0:00.0", "nvidia", uuid=f"GPU-{i}{i}aa", mig=("MIG-cc0", "MIG-cd1") if i == 3 else ())
    for i in range(8)
]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("3,6,0", (3, 6, 0)),
        (" 3 , 6 ", (3, 6)),
        ("", ()),
        ("-1", ()),
        ("0,1,-1,2", (0, 1)),
        ("0,8,1", (0,)),
        ("0,,1", (0,)),
        ("0,x,1", (0,)),
        ("NoDevFiles", ()),
        ("0,99999999999999999999", (0,)),
        ("1,1", ()),
        ("1,2,1", ()),
        ("GPU-55aa,GPU-00aa", (5, 0)),
        ("GPU-77", (7,)),
        ("gpu-77", ()),
        ("GPU-77AA", (7,)),
        ("GPU-", ()),
        ("GPU-9", ()),
        ("2,GPU-22", ()),
        ("MIG-cc0", (3,)),
        ("MIG-cd", (3,)),
        ("MIG-c", ()),
        ("MIG-cc0,MIG-cd1", (3,)),
        ("MIG-cc0,MIG-cc0", ()),
        ("MIG-GPU-44aa/1/0", (4,)),
        ("MIG-GPU-44aa/1/0,MIG-cc0", (4,)),
        ("MIG-xx", ()),
        ("1,MIG-cc0", (1, 3)),
        ("3,MIG-cc0", ()),
        ("٣", ()),
    ],
)
def test_cuda(text: str, seen: tuple[int, ...]) -> None:
    visible = visible_gpus(EIGHT, {"CUDA_VISIBLE_DEVICES": text})
    assert visible.positions == seen
    assert visible.by == "CUDA_VISIBLE_DEVICES"


def test_unset_means_all() -> None:
    assert visible_gpus(EIGHT, {}) == (tuple(range(8)), None, ())


def test_an_ambiguous_prefix_names_nothing() -> None:
    gpus = [Gpu(None, "nvidia", uuid="GPU-ab1"), Gpu(None, "nvidia", uuid="GPU-ab2")]
    assert visible_gpus(gpus, {"CUDA_VISIBLE_DEVICES": "GPU-ab"}).positions == ()
    assert visible_gpus(gpus, {"CUDA_VISIBLE_DEVICES": "GPU-ab2"}).positions == (1,)


def test_a_whole_uuid_that_starts_another_is_not_ambiguous() -> None:
    gpus = [Gpu(None, "nvidia", uuid="GPU-ab"), Gpu(None, "nvidia", uuid="GPU-ab2")]
    assert visible_gpus(gpus, {"CUDA_VISIBLE_DEVICES": "GPU-ab"}).positions == (0,)


def test_a_uuid_that_no_gpu_is_known_to_have_is_warned_about() -> None:
    unknown = [gpu._replace(uuid=None) for gpu in EIGHT]
    notes = visible_gpus(unknown, {"CUDA_VISIBLE_DEVICES": "GPU-55aa"}).notes
    assert [note.code for note in notes] == ["visible-device-unknown"]
    assert visible_gpus(EIGHT, {"CUDA_VISIBLE_DEVICES": "0,-1"}).notes == ()


@pytest.mark.parametrize(
    ("environ", "seen"),
    [
        ({"ROCR_VISIBLE_DEVICES": "0,5,6", "HIP_VISIBLE_DEVICES": "1,0"}, (5, 0)),
        ({"ROCR_VISIBLE_DEVICES": "0,5,6", "CUDA_VISIBLE_DEVICES": "2"}, (6,)),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "2"}, (1,)),
        ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "2"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, (2, 3)),
        ({"ROCR_VISIBLE_DEVICES": "GPU-33,1"}, (3, 1)),
        ({"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "2"}, ()),
        ({"ZE_AFFINITY_MASK": "0"}, tuple(range(8))),
    ],
)
def test_amd(environ: dict[str, str], seen: tuple[int, ...]) -> None:
    assert visible_gpus([gpu._replace(vendor="amd") for gpu in EIGHT], environ).positions == seen


@pytest.mark.parametrize(
    ("mask", "seen"),
    [
        ("2,0", (0, 2)),
        ("0.1,2.0,2.1", (0, 2)),
        ("1,9", (1,)),
        ("9", ()),
        ("", tuple(range(8))),
        ("x,1", (1,)),
        ("1,1", (1,)),
    ],
)
def test_intel(mask: str, seen: tuple[int, ...]) -> None:
    gpus = [gpu._replace(vendor="intel") for gpu in EIGHT]
    assert visible_gpus(gpus, {"ZE_AFFINITY_MASK": mask, "CUDA_VISIBLE_DEVICES": "7"}).positions == seen


def test_intel_under_the_flat_hierarchy_is_warned_about() -> None:
    gpus = [Gpu(None, "intel")] * 2
    flat = {"ZE_AFFINITY_MASK": "0", "ZE_FLAT_DEVICE_HIERARCHY": "FLAT"}
    assert [note.code for note in visible_gpus(gpus, flat).notes] == ["ze-flat-hierarchy"]
    assert visible_gpus(gpus, {"ZE_AFFINITY_MASK": "0"}).notes == ()


@pytest.mark.parametrize(
    ("names", "devices", "order", "warned"),
    [
        (("A100", "H100"), ("1", "1"), None, True),
        (("A100", "H100"), ("1", "1"), "FASTEST_FIRST", True),
        (("A100", "H100"), ("1", "1"), "PCI_BUS_ID", False),
        (("H100", "H100"), ("1", "2"), None, False),
        ((None, "H100"), ("1", "1"), None, False),
        ((None, None), ("1", "2"), None, True),
    ],
)
def test_different_models_may_be_counted_in_another_order(
    names: tuple[str | None, ...], devices: tuple[str, ...], order: str | None, warned: bool
) -> None:
    gpus = [Gpu(None, "nvidia", name=name, device=device) for name, device in zip(names, devices, strict=True)]
    notes = visible_gpus(gpus, {"CUDA_DEVICE_ORDER": order} if order else {}).notes
    assert [note.code for note in notes] == ["cuda-device-order"] * warned
