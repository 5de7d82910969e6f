"""The pure scheduler: decisions only. Every effect goes through the protocols of :mod:`metrale.core.io`."""
