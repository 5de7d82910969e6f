"""Prefill: from an admitted request to an active row (S2)."""
