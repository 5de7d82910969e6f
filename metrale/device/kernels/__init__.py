"""Kernels of the engine: the torch reference, and what every backend must offer."""
