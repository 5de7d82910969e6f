"""An interpreter for the PTX of our kernels: it runs on a CPU, and it checks every access, barrier and shuffle."""
