"""Resources of nodes and containers: memory, virtual cores, GPUs with shares of one, and any others by name."""

from __future__ import annotations

from typing import NamedTuple

GPU_MILLI = 1000
"""Thousandths of a whole GPU."""
MOST = 2**63 - 1
"""The largest amount of any type, as in YARN. Shares of larger ones could not be computed as floats."""


class Resource(NamedTuple):
    """The request of a container or the capacity of a node, in integers >= 0.

    `gpus` counts devices, and `gpu_milli` is the share of *each* of them (1..1000). For example, `gpus=1,
    gpu_milli=460` takes 0.46 of one device, and two halves of different devices don't satisfy it. A node's capacity has
    `gpu_milli=1000`. A sum of several has one device with all their thousandths in `gpu_milli`, and `gpu_milli_total`
    is right for both.

    `others` are further resource types: (name, amount) with amounts > 0, sorted by name, as `named` makes them.
    """

    memory_mb: int
    vcores_milli: int
    gpus: int = 0
    gpu_milli: int = GPU_MILLI
    others: tuple[tuple[str, int], ...] = ()

    @property
    def gpu_milli_total(self) -> int:
        """Thousandths of a GPU, over all devices."""
        return self.gpus * self.gpu_milli

    def other(self, name: str) -> int:
        """Return the amount of a further resource type, or 0."""
        for type_, amount in self.others:
            if type_ == name:
                return amount
        return 0

    def is_possible(self) -> bool:
        """Whether a container can have this size on a sufficiently large node, and a node this capacity."""
        return (
            0 <= self.memory_mb <= MOST
            and 0 <= self.vcores_milli <= MOST
            and 0 <= self.gpus <= MOST
            and 0 < self.gpu_milli <= GPU_MILLI
            and (not self.others or all(0 <= amount <= MOST for _, amount in self.others))
        )

    def smaller_of(self, other: Resource) -> Resource:
        """Return the lesser amount of each type, with the GPUs of this one."""
        others = {name: min(amount, other.other(name)) for name, amount in self.others}
        return self._replace(
            memory_mb=min(self.memory_mb, other.memory_mb),
            vcores_milli=min(self.vcores_milli, other.vcores_milli),
            others=named(others),
        )

    def __str__(self) -> str:
        vcores = f"{self.vcores_milli / 1000:g}" if abs(self.vcores_milli) <= MOST else shown(self.vcores_milli // 1000)
        text = f"<memory:{shown(self.memory_mb)} MB, vCores:{vcores}"
        if self.gpu_milli > GPU_MILLI:  # the sum of several
            text += f", GPUs:{self.gpu_milli_total / GPU_MILLI:g}"
        elif self.gpus:
            share = "" if self.gpu_milli == GPU_MILLI else f" x {self.gpu_milli / GPU_MILLI:g}"
            text += f", GPUs:{shown(self.gpus)}{share}"
        for name, amount in self.others:
            text += f", {name}:{shown(amount)}"
        return text + ">"


def shown(number: int) -> str:
    """Of any size: Python refuses to write an integer of more than a few thousand digits."""
    return str(number) if number.bit_length() < 1_000 else f"a number of {number.bit_length()} bits"


NOTHING = Resource(0, 0)


class MaximumAllocation(NamedTuple):
    """The largest container that a queue or the cluster takes; None: no maximum. Other types have none."""

    memory_mb: int | None = None
    vcores_milli: int | None = None

    def takes(self, resource: Resource) -> bool:
        return (self.memory_mb is None or resource.memory_mb <= self.memory_mb) and (
            self.vcores_milli is None or resource.vcores_milli <= self.vcores_milli
        )

    def within(self, other: MaximumAllocation) -> MaximumAllocation:
        """What both take."""
        return MaximumAllocation(_least(self.memory_mb, other.memory_mb), _least(self.vcores_milli, other.vcores_milli))

    def __str__(self) -> str:
        memory = "any" if self.memory_mb is None else f"{self.memory_mb} MB"
        vcores = "any" if self.vcores_milli is None else f"{self.vcores_milli / 1000:g}"
        return f"<memory:{memory}, vCores:{vcores}>"


def _least(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)


def named(amounts: dict[str, int]) -> tuple[tuple[str, int], ...]:
    """`Resource.others` from amounts by name, without zeros.

    >>> named({"fpga": 2, "disk": 0})
    (('fpga', 2),)
    """
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount))
