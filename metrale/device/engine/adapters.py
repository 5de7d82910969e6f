"""LoRA adapters on the device: slots, references, the active one (S6 section 3.8)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from metrale.core.io import DeviceError

from ..checkpoint.lora import LoraAdapter


@dataclass(slots=True)
class AdapterSlot:
    """One resident adapter; ``generation`` changes whenever the slot is loaded anew."""

    adapter: LoraAdapter
    references: int = 0
    generation: int = 1


class AdapterTable:
    """Resident adapters by slot number. ``active`` is the slot that -1 means, or None for the base model."""

    def __init__(self) -> None:
        self.slots: list[AdapterSlot] = []
        self.active: int | None = None

    def load(self, adapter: LoraAdapter) -> int:
        """A new slot for ``adapter``; its number."""
        self.slots.append(AdapterSlot(adapter))
        return len(self.slots) - 1

    def resolve(self, slot: int) -> int:
        """-1 is the active slot; a slot without an adapter is the base model: -1."""
        if slot == -1:
            return -1 if self.active is None else self.active
        return slot if 0 <= slot < len(self.slots) else -1

    def identity(self, slot: int) -> int:
        """0 for the base model, else a number that names the weights."""
        slot = self.resolve(slot)
        if slot < 0:
            return 0
        entry = self.slots[slot]
        digest = hashlib.sha256(f"{entry.adapter.name}\0{entry.generation}\0{slot}".encode()).digest()
        return int.from_bytes(digest[:8], "little") | 1

    def acquire(self, slot: int) -> int:
        """Resolve and take a reference; -1 when nothing is held."""
        slot = self.resolve(slot)
        if slot >= 0:
            self.slots[slot].references += 1
        return slot

    def release(self, slot: int) -> None:
        """Give a reference back."""
        if 0 <= slot < len(self.slots) and self.slots[slot].references > 0:
            self.slots[slot].references -= 1

    def activate(self, name: str) -> None:
        """Make a resident adapter the active one. Raises DeviceError, and nothing changes."""
        found = next((i for i, entry in enumerate(self.slots) if entry.adapter.name == name), None)
        if found is None:
            raise DeviceError(f"no adapter {name!r} is resident")
        if self.active is not None and self.slots[self.active].references:
            raise DeviceError(f"adapter {self.slots[self.active].adapter.name!r} is in use")
        self.active = found

    def of(self, slot: int) -> LoraAdapter | None:
        """The weights of an acquired slot."""
        return self.slots[slot].adapter if 0 <= slot < len(self.slots) else None
