"""Resources of nodes and containers: memory, virtual cores and GPUs, with shares of one GPU."""

from __future__ import annotations

from typing import NamedTuple

GPU_MILLI = 1000
"""Thousandths of one GPU that make a whole one."""


class Resource(NamedTuple):
    """What a container asks for or a node has. Immutable and hashable; all numbers are whole and >= 0.

    `gpus` counts devices, and `gpu_milli` says how much of *each* of them (1..1000): a container that asks for
    `gpus=1, gpu_milli=460` takes 0.46 of one device, and two halves of different devices do not serve it.
    A node's capacity has `gpu_milli=1000`.
    """

    memory_mb: int
    vcores_milli: int
    gpus: int = 0
    gpu_milli: int = GPU_MILLI

    def __str__(self) -> str:
        text = f"<memory:{self.memory_mb} MB, vCores:{self.vcores_milli / 1000:g}"
        if self.gpus:
            share = "" if self.gpu_milli == GPU_MILLI else f" x {self.gpu_milli / GPU_MILLI:g}"
            text += f", GPUs:{self.gpus}{share}"
        return text + ">"
