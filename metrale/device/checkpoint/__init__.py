"""Checkpoints on disk, read as data only: config.json, safetensors, tokenizer.json (no pickle, no code)."""

from .config import ModelConfig, RopeConfig, load_config
from .lora import LoraAdapter, load_lora
from .tensors import load_tensors
from .tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "LoraAdapter", "ModelConfig", "RopeConfig", "Tokenizer", "load_config", "load_lora", "load_tensors",
    "load_tokenizer",
]  # fmt: skip
