"""The device that training runs on, or several processes that share a batch."""

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
    """The device of that name; auto is a GPU if there is one, else the CPU."""
    there = torch.cuda.is_available()
    require(name != "cuda" or there, "device is cuda but PyTorch sees no GPU; use --device cpu")
    return torch.device("cuda" if name != "cpu" and there else "cpu")


def cores() -> int:
    """The number of CPU cores that this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def build_fabric(name: Device, devices: int, batch: int) -> "Fabric":
    """A Fabric for `devices` processes on that kind of device, not yet launched."""
    from lightning_fabric import Fabric  # slow to import; only training needs it

    kind = choose_device(name).type
    most = torch.cuda.device_count() if kind == "cuda" else cores()
    require(1 <= devices <= most, f"devices is {devices}; give 1 to {most}, as many as this machine has of {kind}")
    machines = _machines(devices)
    every = devices * machines
    require(batch % every == 0, f"batch is {batch}; {every} devices cannot share it evenly")
    # On a GPU it would advise using TF32, which `tuned` sets already.
    logging.getLogger("lightning_fabric.utilities.rank_zero").setLevel(logging.WARNING)
    return Fabric(accelerator=kind, devices=devices, num_nodes=machines)


def _machines(devices: int) -> int:
    """Number of machines if torchrun started this process, else 1."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return 1
    here, every = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    require(
        here == devices, f"devices is {devices}, but torchrun has started {here} processes here; give --devices {here}"
    )
    return every // here


@contextmanager
def tuned() -> Iterator[None]:
    """Fast arithmetic on a GPU within this context, for training; scores are computed in full precision.

    TF32 is used, since the noise of the codes is far coarser. cuDNN searches for the fastest convolutions, since shapes
    stay the same for thousands of updates.
    """
    searching = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        with float32_products("high"):
            yield
    finally:
        torch.backends.cudnn.benchmark = searching
