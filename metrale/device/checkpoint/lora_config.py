"""adapter_config.json: what may be in it, and the rank and scale that it gives a module."""

from __future__ import annotations

import math
import re

from .fields import Fields

MAX_RANK = 1 << 14
MAX_REPEATS = 2

UNSUPPORTED = (
    "use_dora", "lora_bias", "use_qalora", "use_bdlora", "arrow_config", "kasa_config", "monteclora_config",
    "alora_invocation_tokens", "layer_replication", "megatron_config", "modules_to_save", "trainable_token_indices",
)  # fmt: skip
"""Settings with which the answer is no longer that of plain LoRA."""
CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Ways to start a training that also change the base model's weights; the adapter does not fit the published ones."""


class LoraSettings:
    """The checked settings of one adapter. Raises ModelError."""

    def __init__(self, f: Fields) -> None:
        f.word("peft_type", ("LORA",))
        for key in UNSUPPORTED:
            if f.values.get(key):
                raise f.fail(key, "nothing; this engine reads plain LoRA")
        if f.values.get("bias") not in (None, "none"):
            raise f.fail("bias", "none")
        start = f.values.get("init_lora_weights")
        if isinstance(start, str) and start.lower().startswith(CHANGED_BASE):
            raise f.fail("init_lora_weights", "a start that keeps the base model's weights; convert it to plain LoRA")
        self.rooted = f.flag("use_rslora", False)
        self._alphas, self._ranks = Pattern(f, "alpha_pattern", "lora_alpha"), Pattern(f, "rank_pattern", "r")
        parameters = f.values.get("target_parameters") or []
        if not isinstance(parameters, list) or not all(isinstance(name, str) for name in parameters):
            raise f.fail("target_parameters", "a list of names")
        self._parameters = tuple(f".{name}" for name in parameters)

    def scale(self, module: str, rank: int) -> float:
        """alpha / rank, or alpha / sqrt(rank)."""
        alpha = self._alphas.of(self._key(module), 0.0, 1e6, 8.0)
        return alpha / (math.sqrt(rank) if self.rooted else rank)

    def rank(self, module: str, stored: int) -> int:
        """The rank that the settings give a module; ``stored`` where they say nothing."""
        return int(self._ranks.of(self._key(module), 1, MAX_RANK, stored))

    def _key(self, module: str) -> str:
        """A module adapted through its parameter is known by the parameter's name."""
        whole = f"{module}.weight"
        return whole if self._parameters and whole.endswith(self._parameters) else module


class Pattern:
    """``rank_pattern`` or ``alpha_pattern``: values of the modules whose name, or its end after a dot, a key matches.

    Keys are regular expressions; the first that matches counts. Those that could take very long even on a short name
    are refused: a repeated group, or more than two repetitions.
    """

    def __init__(self, f: Fields, key: str, general: str) -> None:
        self.f, self.general = f, general
        self.inner = f.inner(key) or Fields({}, f.where)
        self._keys = [(name, self._compiled(name)) for name in self.inner.values]

    def _compiled(self, name: str) -> re.Pattern[str]:
        allowed = f"names of modules, as regular expressions of at most 500 characters with {MAX_REPEATS} repetitions"
        if len(name) > 500 or len(re.findall(r"[*+?{]", name)) > MAX_REPEATS or re.search(r"\)\s*[*+?{]", name):
            raise self.inner.fail(name, allowed)
        try:
            return re.compile(rf"(.*\.)?({name})$")
        except (re.error, RecursionError, OverflowError) as error:
            raise self.inner.fail(name, allowed) from error

    def of(self, module: str, low: float, high: float, default: float) -> float:
        """The value for ``module``: of the first key that matches, else the general one."""
        for name, pattern in self._keys:
            if pattern.match(module):
                return self.inner.real(name, low, high)
        return self.f.real(self.general, low, high, default)
