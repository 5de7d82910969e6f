"""The real engine behind the contract of :mod:`metrale.core.io`."""
