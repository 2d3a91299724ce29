"""Where a model lives: the device of its tensors, and the dtype of its activations there."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from engine.errors import InputError
from engine.ops.functional import PackedInt4, PackedNvfp4, PackedQ4_1, PackedQ8_0, Weight
from engine.ops.placement import OLDEST_CARD, kernels_on, load_kernels


@dataclass(frozen=True, slots=True)
class ModelDevice:
    """A device and the activations that its ops take: float32 on the CPU, float16 for the SM70 kernels."""

    device: torch.device
    activations: torch.dtype

    @property
    def runs_kernels(self) -> bool:
        """Whether the SM70 kernels run the model, on a card or, emulated, on CPU tensors."""
        return self.activations is torch.float16

    def zeros(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Zeros there; activations unless ``dtype`` says otherwise."""
        return torch.zeros(shape, dtype=dtype or self.activations, device=self.device)

    def vector(self, tensor: torch.Tensor) -> torch.Tensor:
        """A norm, bias or table there; its dtype stays."""
        return tensor.to(self.device)

    def weight(self, weight: Weight) -> Weight:
        """A matrix there. The kernels take dense weights in float16, the packed formats as they are."""
        if isinstance(weight, torch.Tensor):
            return self.matrix(weight)
        if isinstance(weight, PackedQ4_1 | PackedQ8_0):
            return replace(weight, data=weight.data.to(self.device))
        if isinstance(weight, PackedInt4):
            return replace(weight, codes=weight.codes.to(self.device), params=weight.params.to(self.device))
        assert isinstance(weight, PackedNvfp4)  # the last of the formats that `Weight` names
        return replace(weight, codes=weight.codes.to(self.device), scales=weight.scales.to(self.device))

    def matrix(self, tensor: torch.Tensor) -> torch.Tensor:
        """A dense matrix there, float16 where the kernels run."""
        return tensor.to(self.device, torch.float16 if self.runs_kernels else tensor.dtype)


HOST = ModelDevice(torch.device("cpu"), torch.float32)


def open_device(name: str) -> ModelDevice:
    """``cpu``, ``cuda`` or ``cuda:N``, ready to run; loads the kernels (seconds where the driver compiles PTX).

    Raises ``InputError`` where there is no such device or the card is older than the kernels.
    """
    if name == "cpu":
        return HOST
    if kernels_on() == "cpu":
        return ModelDevice(torch.device("cpu"), torch.float16)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = int(name.partition(":")[2] or 0)
    if index >= count:
        seen = f"{count} CUDA devices" if count else "no CUDA device, or a torch that was built without CUDA"
        raise InputError(f"device is {name!r}, there is {seen}; allowed here: cpu{_cards(count)}")
    device = torch.device("cuda", index)
    card = torch.cuda.get_device_capability(device)
    if card < OLDEST_CARD:
        raise InputError(f"{name} has compute capability {card[0]}.{card[1]}; allowed: 7.0 and newer")
    load_kernels(device)
    return ModelDevice(device, torch.float16)


def _cards(count: int) -> str:
    return "".join(f", cuda:{index}" for index in range(count))
