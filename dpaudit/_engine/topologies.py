"""Compiles programs for accelerators that the machine lacks, to show their memory, loops and collectives.

    chips = machine("v5e:2x2")                       # or "h100:1x2x4": two hosts of four; "v5e", "h100": one device
    with chips.traced():
        program = chips.compiled(jax.jit(f).lower(*chips.shapes(arguments)))

XLA makes real executables for a TPU or an H100 on a machine that has neither. Nothing runs, so nothing is timed.
It needs the wheels of ``make accelerators``, beside a jax that runs on a CPU.
"""

import os
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib import metadata, util
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.errors import JaxRuntimeError
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from packaging.requirements import Requirement

from dpaudit import _platform, _validate
from dpaudit._engine import memory

GIB = 1 << 30
MEMORY = {"v4": 32 * GIB, "v5e": 16 * GIB, "v5p": 95 * GIB, "v6e": 32 * GIB, "h100": 84_942_979_072}  # bytes a device
ONE = {"v4": "2x2x1", "v5e": "2x2", "v5p": "2x2x1", "v6e": "2x2", "h100": "1x1x1"}  # the smallest machine with one
TPU = {
    "TPU_SKIP_MDS_QUERY": "1",  # libtpu would otherwise query the cloud's metadata server
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_LOG_DIR": "disabled",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # two processes at once
}
GPU_OPTIONS = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}  # autotuning would need the device
H100 = """gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84942979072 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
runtime_version { major: 12 minor: 8 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


class Machine(NamedTuple):
    """Accelerators of one kind.

    Attributes:
      name: as given to :func:`machine`.
      chip: its kind, such as "v5e".
      devices: that programs are compiled for.
      mesh: of all devices, with one axis; None for one device.
    """

    name: str
    chip: str
    devices: Sequence[Any]
    mesh: Mesh | None

    def traced(self) -> AbstractContextManager[None]:
        """Returns a context in which programs are traced for these devices."""
        return _platform.named(self.devices[0].platform, memory_bytes=MEMORY[self.chip])

    def shapes(self, tree: Any, *, cut: bool = False) -> Any:
        """Returns the shapes of a pytree's arrays, replicated on every device, or with their rows divided."""
        placed: Any = SingleDeviceSharding(self.devices[0])
        if self.mesh is not None:
            placed = NamedSharding(self.mesh, PartitionSpec(self.mesh.axis_names) if cut else PartitionSpec())
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), _dtype(leaf), sharding=placed), tree)

    def compiled(self, lowered: Any, *, reduce: str = "the size of the work") -> Any:
        """Compiles what ``jax.jit(f).lower(*shapes)`` returned, and returns the executable.

        Args:
          lowered: for these devices.
          reduce: the argument that the message advises to lower if memory is too small.

        Raises:
          InputError: a program that does not fit into a device's memory.
        """
        room = MEMORY[self.chip]
        try:
            found = lowered.compile(GPU_OPTIONS if self.devices[0].platform == "gpu" else None)
        except (JaxRuntimeError, ValueError) as error:
            if not memory.ran_out(error):
                raise
            raise self._too_small(_wanted(str(error)), reduce) from None
        plan = found.memory_analysis()
        wanted = plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes
        wanted -= plan.alias_size_in_bytes
        if wanted > room:
            raise self._too_small(wanted, reduce)
        return found

    def _too_small(self, wanted: float | None, reduce: str) -> _validate.InputError:
        room = MEMORY[self.chip]
        much = "more" if wanted is None else f"{wanted / GIB:.2f} GiB, {(wanted - room) / GIB:.2f} GiB more"
        most = f"expected a program of at most {room / GIB:.2f} GiB on one {self.chip}"
        return _validate.InputError(f"memory: {most}, got {much}; lower {reduce}")


def machine(name: str) -> Machine:
    """Returns the accelerators of a name, which the machine need not have.

    Args:
      name: a chip, for one device, or ``chip:topology``: ``v5e:2x2``, ``v6e:2x2``, ``v5p:8x16x16``, or
        ``h100:1x2x4`` for one partition of two hosts of four.

    Raises:
      InputError: a chip or a topology that the wheels do not know; wheels that are missing or of another jax.
    """
    chip, _, topology = name.partition(":")
    if chip not in MEMORY:
        raise _validate.expected("machine", f"one of {', '.join(MEMORY)}, alone or with :topology", name)
    settings: dict[str, Any] = {"topology_name": f"{chip}:{topology or ONE[chip]}", "platform": "tpu"}
    if chip == "h100":
        refuse_unfit("jax-cuda12-plugin", "jax_cuda12_plugin", "cuda12-local")
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
        settings = {"topology": topology or ONE[chip], "target_config": H100, "platform": "cuda"}
    else:
        refuse_unfit("libtpu", "libtpu", "tpu")
        for variable, value in TPU.items():
            os.environ.setdefault(variable, value)
        found: Any = util.find_spec("libtpu")
        os.environ.setdefault("TPU_LIBRARY_PATH", os.path.join(os.path.dirname(found.origin), "libtpu.so"))
    if jax.config.values["jax_platforms"] is None:
        jax.config.update("jax_platforms", "cpu")
    try:
        devices = topologies.get_topology_desc(**settings).devices
    except Exception as error:  # of several types, with the wheels
        wanted = f"a topology of {chip} that the installed wheels know, such as {chip}:{ONE[chip]}"
        raise _validate.expected("machine", wanted, f"{name} ({_validate.one_line(str(error), 150)})") from None
    if not topology:
        return Machine(name, chip, devices[:1], None)
    return Machine(name, chip, devices, Mesh(np.array(devices), ("devices",)))


def refuse_unfit(package: str, module: str, extra: str) -> None:
    """Refuses wheels that are missing, or of another version than the installed jax asks for.

    Raises:
      InputError: one of these.
    """
    version = metadata.version("jax")
    asked = [Requirement(line) for line in metadata.requires("jax") or []]
    (fitting,) = (
        one
        for one in asked
        if one.name == package and one.marker is not None and one.marker.evaluate({"extra": extra})
    )
    wanted = f"{package}{fitting.specifier}, as jax {version} asks for"
    try:
        installed = metadata.version(package)
    except metadata.PackageNotFoundError:
        installed = None
    if installed is None or util.find_spec(module) is None:
        raise _validate.expected("wheels", wanted, "none: run `make accelerators`")
    if not fitting.specifier.contains(installed):
        raise _validate.expected("wheels", wanted, installed)


def _wanted(error: str) -> float | None:
    """Returns the bytes that XLA says a program wanted, or None."""
    units = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    found = re.search(r"Used ([\d.]+)([KMGT]?) of", error)
    return None if found is None else float(found[1]) * units[found[2]]


def _dtype(leaf: Any) -> Any:
    return leaf.dtype if hasattr(leaf, "dtype") else jax.dtypes.result_type(leaf)
