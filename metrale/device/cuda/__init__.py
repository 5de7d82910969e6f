"""The kernels in Numba-CUDA, for a GPU and for Numba's simulator on the CPU.

:mod:`.backend` offers them to an engine under the reference's names. docs/kernels.md tells how they are built and
what they use. Importing this package imports neither numba nor torch.
"""
