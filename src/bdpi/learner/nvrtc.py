"""CUDA kernels that are compiled when they are first needed, for the sizes at hand."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

REMEDY = (
    "a GPU of compute capability 9.0 or newer with 227 KiB of shared memory per block (H100), and "
    'pip install "bdpi[cuda]"'
)
_LANES = 32  # threads of a warp
_SHARED_MEMORY = 227 * 1024  # bytes that a thread block may have: the kernels' need; GPUs for desktops have 99 KiB


def is_available() -> bool:
    """Whether there is a GPU with clusters of thread blocks, and memory for them, and NVIDIA's bindings to compile."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
        return False
    properties = torch.cuda.get_device_properties()
    if getattr(properties, "shared_memory_per_block_optin", _SHARED_MEMORY) < _SHARED_MEMORY:
        return False
    return can_compile()


@functools.cache
def can_compile() -> bool:
    """Whether NVIDIA's bindings are installed, and find the compiler that PyTorch for CUDA brings."""
    try:
        from cuda.bindings import nvrtc

        _check(nvrtc.nvrtcVersion())
    except Exception:  # bindings for another CUDA than PyTorch's, for example, say so in several ways
        return False
    return True


class CompiledKernels:
    """The kernels of one source file.

    :param source: what to compile; every size that is given to :meth:`launch` is a macro in it, and ONLY_ with the name
        of the kernel
    :param headers: what it may include
    """

    device_type = "cuda"

    def __init__(self, source: Path, headers: Sequence[Path] = ()) -> None:
        self._source, self._headers = source, headers
        self._functions: dict[tuple[Any, ...], tuple[Any, int]] = {}

    def launch(
        self, name: str, sizes: Mapping[str, Any], programs: int, arguments: Sequence[Any], crowd: int, outside: str
    ) -> None:
        """Start a kernel on PyTorch's current stream.

        :param name: of the kernel
        :param sizes: macros; one of them is WARPS, of a program
        :param programs: number of thread blocks
        :param arguments: ctypes values
        :param crowd: how many thread blocks there are with those of other launches, which may share the GPU
        :param outside: what the source includes as outside.hpp
        """
        from cuda.bindings import driver

        # Where there may be more programs than multiprocessors, two small ones share one: each has fewer registers, and
        # is a little slower, but while one waits, the other goes on.
        device = torch.cuda.current_device()
        sizes = {**sizes, "OCCUPANCY": 16 // sizes["WARPS"] if crowd > _multiprocessors(device) else 1}
        key = (device, name, outside, *sizes.items())
        if key not in self._functions:
            self._functions[key] = self._compile(name, sizes, outside)
        function, shared = self._functions[key]
        grid, block = (programs, 1, 1), (_LANES * sizes["WARPS"], 1, 1)
        values = tuple(argument.value or 0 for argument in arguments), tuple(type(argument) for argument in arguments)
        _check(
            driver.cuLaunchKernel(function, *grid, *block, shared, torch.cuda.current_stream().cuda_stream, values, 0)
        )

    def _compile(self, name: str, sizes: Mapping[str, Any], outside: str) -> tuple[Any, int]:
        """The kernel, and how many bytes of shared memory it needs."""
        from cuda.bindings import driver, nvrtc

        major, minor = torch.cuda.get_device_capability()
        options = [f"--gpu-architecture=sm_{major}{minor}", "--std=c++17"]
        options += [f"-DONLY_{name}", *(f"-D{macro}={value}" for macro, value in sizes.items())]
        headers = {path.name.encode(): path.read_bytes() for path in self._headers}
        headers[b"outside.hpp"] = f"{outside}\n".encode()
        contents = len(headers), list(headers.values()), list(headers)
        source = self._source.read_bytes(), self._source.name.encode(), *contents
        program = _check(nvrtc.nvrtcCreateProgram(*source))
        try:
            _check(nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options]))
        except RuntimeError as error:
            log = bytes(_check(nvrtc.nvrtcGetProgramLogSize(program)))
            _check(nvrtc.nvrtcGetProgramLog(program, log))
            raise RuntimeError(f"{self._source.name} does not compile: {log.decode(errors='replace')}") from error
        code = bytes(_check(nvrtc.nvrtcGetCUBINSize(program)))
        _check(nvrtc.nvrtcGetCUBIN(program, code))
        module = _check(driver.cuModuleLoadData(code))
        function = _check(driver.cuModuleGetFunction(module, name.encode()))
        address, _ = _check(driver.cuModuleGetGlobal(module, b"shared_bytes"))
        shared = ctypes.c_int()
        _check(driver.cuMemcpyDtoH(ctypes.addressof(shared), address, ctypes.sizeof(shared)))
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _check(driver.cuFuncSetAttribute(function, attribute, shared.value))
        return function, shared.value


@functools.cache
def _multiprocessors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _check(answer: tuple[Any, ...]) -> Any:
    """What a function of the bindings returned, unless it failed."""
    error, *rest = answer
    if int(error) != 0:
        raise RuntimeError(f"CUDA: {error!r}")
    return None if not rest else rest[0] if len(rest) == 1 else rest
