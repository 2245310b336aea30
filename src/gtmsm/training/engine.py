"""Where training runs: a device, or several processes that share a batch."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from gtmsm.config import Device, require
from gtmsm.kernels.precision import float32_products

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def choose_device(name: Device) -> torch.device:
    """The device that is meant: auto takes a GPU where there is one."""
    there = torch.cuda.is_available()
    require(name != "cuda" or there, "device is cuda but PyTorch sees no GPU; use --device cpu")
    return torch.device("cuda" if name != "cpu" and there else "cpu")


def build_fabric(name: Device, devices: int, batch: int) -> "Fabric":
    """The engine on that device, not yet launched."""
    from lightning_fabric import Fabric  # takes seconds, which only training waits for

    kind = choose_device(name).type
    most = torch.cuda.device_count() if kind == "cuda" else os.cpu_count() or 1
    require(1 <= devices <= most, f"devices is {devices}; give 1 to {most}, as many as this machine has of {kind}")
    machines = _machines(devices)
    every = devices * machines
    require(batch % every == 0, f"batch is {batch}; {every} devices cannot share it evenly")
    # On a GPU it would begin by advising TF32, which `tuned` has thought of.
    logging.getLogger("lightning_fabric.utilities.rank_zero").setLevel(logging.WARNING)
    return Fabric(accelerator=kind, devices=devices, num_nodes=machines)


def _machines(devices: int) -> int:
    """How many there are, where torchrun has started this process."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return 1
    here, every = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    require(
        here == devices, f"devices is {devices}, but torchrun has started {here} processes here; give --devices {here}"
    )
    return every // here


@contextmanager
def tuned() -> Iterator[None]:
    """Fast arithmetic on a GPU, as long as training lasts; scores are computed in full precision.

    TF32: the codes' own noise is far coarser. And the best convolution is looked for, since shapes stay the same for
    thousands of updates.
    """
    searching = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        with float32_products("high"):
            yield
    finally:
        torch.backends.cudnn.benchmark = searching
