"""metrale: deterministic simulation and trace verification for LLM inference schedulers."""

__version__ = "0.1.0"
