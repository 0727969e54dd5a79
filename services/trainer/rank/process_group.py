"""The default process group of the ranks: its store, its network interface, its mesh."""

import os

import psutil
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from services.trainer.collectives import LONGEST_WAIT
from services.trainer.config import TrainerConfig


def open_store(address: str) -> TCPStore:
    """The rendezvous store of a group, on a free port of rank 0's node."""
    return TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=LONGEST_WAIT)


def join_group(config: TrainerConfig, rank: int, store: TCPStore, address: str) -> None:
    """Make the default process group of the ranks.

    Gloo takes the interface of the default group from its own environment variable only;
    without it, it looks the hostname up, which fails on some machines.
    """
    interface = interface_of(address)
    if interface is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    torch.set_num_threads(config.threads_per_rank)
    if config.device == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group(
        backend="gloo" if config.device == "cpu" else "cpu:gloo,cuda:nccl",
        store=store,
        rank=rank,
        world_size=config.world_size,
        timeout=LONGEST_WAIT,
    )


def interface_of(address: str) -> str | None:
    """Name of the network interface with this IP address, None if there is none."""
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, held in interfaces for one in held if one.address == address), None)


def make_mesh(config: TrainerConfig) -> DeviceMesh:
    """All ranks, or copies of the model by shards of a copy; gradients are averaged over all."""
    if config.model_copies == 1:
        return init_device_mesh(config.device, (config.shards,))
    shape = config.model_copies, config.shards
    return init_device_mesh(config.device, shape, mesh_dim_names=("copy", "shard"))
