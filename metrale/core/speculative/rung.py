"""How many drafts a batch width deserves (S4 sections 7.1 and 7.2)."""

from __future__ import annotations


class RungController:
    """Stub."""
