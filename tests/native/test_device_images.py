"""Reading ptxas' log and PTX, and knowing when an image must be made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from native.device_images import KernelResources, build_images, included_files, launch_bounds, parse_ptxas, source_key
from native.toolchain import BuildError, CudaPackages, find_cuda_packages

LOG = """\
ptxas info    : 0 bytes gmem, 24 bytes cmem[4]
ptxas info    : Compiling entry function 'b_kernel' for 'sm_70'
ptxas info    : Function properties for b_kernel
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 1024 bytes smem, 400 bytes cmem[0], 8 bytes cmem[2]
ptxas info    : Compiling entry function 'a_kernel' for 'sm_70'
ptxas info    : Function properties for a_kernel
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, 352 bytes cmem[0]
"""
PTX = """\
.visible .entry a_kernel(
	.param .u64 a_kernel_param_0
)
.maxntid 64
{
	ret;
}
.visible .entry b_kernel(
	.param .u64 b_kernel_param_0
)
.maxntid 32, 4, 2
.minnctapersm 2
{
	ret;
}
"""
PACKAGES = CudaPackages(Path("/nvrtc"), Path("/ptxas"), (), (("nvidia-cuda-nvrtc-cu12", "12.8.93"),))


def test_a_row_a_kernel_in_order() -> None:
    assert parse_ptxas(LOG, "image", PTX) == (
        KernelResources("a_kernel", "image", 8, 0, 0, 0, 0, 352, 64),
        KernelResources("b_kernel", "image", 40, 8, 4, 12, 1024, 408, 256),
    )


def test_launch_bounds_multiply() -> None:
    assert launch_bounds(PTX) == {"a_kernel": 64, "b_kernel": 256}


def test_a_kernel_without_a_launch_bound_is_refused() -> None:
    with pytest.raises(BuildError, match="kernel b_kernel has no __launch_bounds__"):
        parse_ptxas(LOG, "image", PTX.replace(".maxntid 32, 4, 2\n", ""))


def test_a_kernel_without_figures_is_refused() -> None:
    with pytest.raises(BuildError, match="no resource figures for kernel a_kernel"):
        parse_ptxas(LOG.replace("Used 8 registers", ""), "image", PTX)


def test_includes_are_followed_and_foreign_ones_are_not(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text('#include "b.cuh"\n#include <cuda_fp16.h>\n#include "elsewhere.h"\n')
    (tmp_path / "b.cuh").write_text('#include "c.h"\n')
    (tmp_path / "c.h").write_text('#include "b.cuh"\n')
    found = included_files(tmp_path / "a.cu", (tmp_path,))
    assert [path.name for path in found] == ["b.cuh", "c.h"]


def test_the_key_follows_the_source_its_includes_and_the_tools(tmp_path: Path) -> None:
    source, header, other = tmp_path / "a.cu", tmp_path / "b.cuh", tmp_path / "c.cuh"
    source.write_text('#include "b.cuh"\n')
    header.write_text("// one\n")
    other.write_text("// not included\n")
    key = source_key(source, (tmp_path,), PACKAGES)
    other.write_text("// changed\n")
    assert source_key(source, (tmp_path,), PACKAGES) == key
    header.write_text("// two\n")
    changed = source_key(source, (tmp_path,), PACKAGES)
    assert changed != key
    newer = CudaPackages(PACKAGES.nvrtc, PACKAGES.ptxas, (), (("nvidia-cuda-nvrtc-cu12", "12.9.0"),))
    assert source_key(source, (tmp_path,), newer) != changed


@pytest.fixture
def packages() -> CudaPackages:
    found = find_cuda_packages()
    if not isinstance(found, CudaPackages):
        pytest.skip(found)
    return found


def test_an_image_is_made_once_and_again_only_when_it_changed(tmp_path: Path, packages: CudaPackages) -> None:
    source = tmp_path / "one.cu"
    source.write_text('extern "C" __global__ void __launch_bounds__(32) one(int* x) { x[0] = 1; }\n')
    said: list[str] = []
    first = build_images([source], (), packages, tmp_path / "out", said.append)
    assert said == ["device image 1/1: one.cu"]
    assert build_images([source], (), packages, tmp_path / "out", said.append) == first
    assert len(said) == 1
    (tmp_path / "out" / "one.cubin").write_bytes(b"damaged")
    assert build_images([source], (), packages, tmp_path / "out", said.append) == first
    assert len(said) == 2
    source.unlink()
    assert build_images([], (), packages, tmp_path / "out", said.append) == ()
    assert not list((tmp_path / "out").iterdir())


def test_what_nvrtc_refuses_is_shown(tmp_path: Path, packages: CudaPackages) -> None:
    source = tmp_path / "bad.cu"
    source.write_text('extern "C" __global__ void __launch_bounds__(32) bad() { undeclared = 1; }\n')
    with pytest.raises(BuildError, match=r"bad.cu: NVRTC refused it(?s:.*)undeclared"):
        build_images([source], (), packages, tmp_path / "out", lambda _line: None)


def test_one_name_in_two_files_is_refused(tmp_path: Path, packages: CudaPackages) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.cu").write_text('extern "C" __global__ void __launch_bounds__(32) same() {}\n')
    with pytest.raises(BuildError, match=r"kernel same is defined in one.cu and two.cu"):
        build_images(tmp_path.glob("*.cu"), (), packages, tmp_path / "out", lambda _line: None)
