"""Scenario files: TOML tables checked against one model per table; errors name file, table, key and what is allowed."""

from __future__ import annotations

import errno
import math
import os
import re
import stat
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

U63 = 2**63 - 1
MAX_FILE_BYTES = 64 << 20
MAX_KEY_PARTS = 64
_PART = r"""(?:[\w-]++|"(?:[^"\\]|\\.)*+"|'[^']*+')"""
_KEY_OR_COMMENT = re.compile(rf"{_PART}(?:[ \t]*+\.[ \t]*+{_PART})*+|#.*")
_LONG_KEY = re.compile(rf"{_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MAX_KEY_PARTS},}}")
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
FORWARDS = (
    "prefill", "prefill_chunk", "prefill_batch_chunk", "decode", "decode_batch", "mixed_forward",
    "mixed_forward_batch", "decode_verify", "decode_verify_graphed", "decode_verify_graphed_k3",
    "decode_verify_graphed_k4", "decode_verify_dflash", "decode_and_verify_fused", "decode_verify_batched",
)  # fmt: skip


def whole(low: int, high: int = U63) -> Any:
    """A whole number from ``low`` to ``high``; booleans and floats are not numbers here."""
    return Annotated[int, Field(strict=True, ge=low, le=high)]


TokenId = whole(0)
Count = whole(0)
Tick = whole(1)
Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(strict=True)]
Name = Annotated[str, Field(strict=True, min_length=1, pattern=r"^[^\x00-\x1f\x7f\u2028\u2029]+$")]
AdapterName = Annotated[str, Field(strict=True, min_length=1, pattern=r"^[^\x00-\x1f\x7f\u2028\u2029(),]+$")]


class Table(BaseModel):
    """Unknown keys are errors; values are never coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DeviceTable(Table):
    """Facts and faults of the mock device (S1 section 2)."""

    vocab: whole(2, 2**20) = 64
    block_size: whole(1, 1024) = 16
    total_blocks: whole(0, 2**24) = 1000
    held_blocks: Count = 0
    reclaimable: Count = 0
    has_proposer: Flag = False
    has_self_speculative: Flag = False
    supports_beam: Flag = False
    has_ssm_layers: Flag = False
    ring_slots: whole(0, 64) = 0
    dflash_gamma: Count = 0
    twophase_ok: Flag = False
    can_batch_verify: Flag = True
    slot_draft_capacity: Count = 8
    device_token_feed: Flag = True
    event_lag: Count = 0
    reversed_completion: Flag = False
    event_query_fault_at: whole(1) | None = None
    kv_exhaust_at: list[Count] = []
    exhaust_at: dict[Literal[FORWARDS], list[Count]] = {}
    fatal_at: list[Count] = []
    device_lost_at: list[Count] = []
    spill_fail_at: list[Count] = []
    restore_fail_at: list[Count] = []
    spill_capacity: whole(1) | None = None

    @model_validator(mode="after")
    def _within_the_pool(self) -> DeviceTable:
        for key in ("held_blocks", "reclaimable"):
            if getattr(self, key) > self.total_blocks:
                raise KeyProblem(key, f"must be 0 to total_blocks ({self.total_blocks})")
        return self


class SchedulerTable(Table):
    """The scheduler's knobs (S1 section 4)."""

    max_batch_size: whole(1, 4096) = 8
    max_prefill_tokens: Count = 0
    max_batch_tokens: Count = 8192
    max_seq_len: Count = 4096
    use_speculative: Flag = False
    num_drafts: whole(1, 31) = 1
    dflash: Flag = False
    self_speculative: Flag = False
    ngram_speculative: Flag = False
    dflash_unified_ctx: Flag = True
    dflash_serial_append: Flag = False
    swap_space_gb: Count = 0
    policy: Literal["fifo", "slai"] = "fifo"
    slai_deadline_ms: whole(1) = 1_000_000
    loop_watchdog: Flag = False
    boundary_tokens: list[TokenId] = []
    think_start_token: TokenId | None = None
    think_end_token: TokenId | None = None
    lora_rotation: AdapterName | None = None
    deadline_scope: Literal["active", "all"] = "active"
    router: Literal["sync", "async"] = "sync"
    close_inbox_at_tick: Tick | None = None


_PROMPT_PERIOD = [2 + i for i in range(7)]


class RequestTable(Table):
    """One request (S1 section 3)."""

    id: Count
    prompt_len: whole(0, 2**20) | None = None
    prompt: list[TokenId] | None = None
    tokens: Annotated[list[TokenId], Field(min_length=1)]
    max_tokens: Count | None = None
    min_tokens: Count = 0
    streaming: Flag = True
    temperature: Annotated[float, Field(ge=0)] = 0.0
    top_logprobs: whole(0, 255) | None = None
    num_beams: whole(1, 64) = 1
    beam_hyp: list[TokenId] | None = None
    stop_tokens: list[TokenId] = []
    draft_wrong_every: Count = 0
    cancel_at: Count | None = None
    expired_deadline: Flag = False
    arrive_at_tick: Tick | None = None
    grammar_active: Flag = False
    vision_pads: Flag = False
    cancel_at_tick: Tick | None = None
    deadline_at_tick: Tick | None = None
    drop_reader_after: Count | None = None
    stall_reader: Count | None = None

    @field_validator("temperature", mode="before")
    @classmethod
    def _finite(cls, value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError("must be a number")
        if isinstance(value, int) and abs(value) > 2**1000:
            raise ValueError("must be finite and 0 or more")
        if not math.isfinite(value):
            raise ValueError("must be finite and 0 or more")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> RequestTable:
        if self.prompt is None and self.prompt_len is None:
            raise KeyProblem("prompt_len", "is missing: give prompt_len or prompt")
        if self.prompt is not None and self.prompt_len not in (None, len(self.prompt)):
            raise KeyProblem("prompt_len", f"must agree with prompt, which has {len(self.prompt)} tokens")
        if self.prompt is not None and len(self.prompt) > 2**20:
            raise KeyProblem("prompt", "must have at most 1048576 tokens")
        if not self.streaming:
            for key in ("cancel_at", "cancel_at_tick"):
                if getattr(self, key) is not None:
                    raise KeyProblem(key, "is for streaming requests only: a blocking request has no cancel flag")
            for key in ("drop_reader_after", "stall_reader"):
                if getattr(self, key) is not None:
                    raise KeyProblem(key, "is for streaming requests only: a blocking request reads one answer")
        return self

    @property
    def prompt_tokens(self) -> list[int]:
        """The explicit prompt, or the default one: the id, then 2 + (i mod 7)."""
        if self.prompt is not None:
            return list(self.prompt)
        count = self.prompt_len or 0
        return [self.id, *(_PROMPT_PERIOD * (count // 7 + 1))[1:count]][:count]


class Scenario(Table):
    """One scenario file."""

    name: Name
    about: Text = ""
    device: DeviceTable = DeviceTable()
    scheduler: SchedulerTable = SchedulerTable()
    request: list[RequestTable] = []


class KeyProblem(ValueError):
    """A problem of one key, found by looking at several."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


class ScenarioError(Exception):
    """A scenario file that cannot be used; the text is one line that names file, place and remedy."""


def load_scenario(path: str | Path) -> Scenario:
    """Read and check a scenario file. Raises ScenarioError."""
    where = str(path)
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise ScenarioError(f"{where}: is no regular file; a scenario is a small TOML file")
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ScenarioError(f"{where}: {_unreadable(path, error)}") from error
    return parse_scenario(data, where)


def _unreadable(path: str | Path, error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "is a symlink in a loop of symlinks"
    if error.errno == errno.ENOENT and os.path.islink(path):
        return f"is a symlink to {os.readlink(path)}, which does not exist"
    return f"cannot be read: {error.strerror or error}"


def parse_scenario(data: bytes, where: str = "<scenario>") -> Scenario:
    """Check the bytes of a scenario file. Raises ScenarioError."""
    if len(data) > MAX_FILE_BYTES:
        raise ScenarioError(f"{where}: larger than {MAX_FILE_BYTES >> 20} MiB; a scenario is a small TOML file")
    if not data.strip():
        raise ScenarioError(f'{where}: the file is empty; a scenario needs at least name = "..."')
    if b"\0" in data:
        raise ScenarioError(f"{where}: not a text file (NUL byte at offset {data.index(0)}); a scenario is TOML")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{where}: not UTF-8 (byte {error.start}); a scenario is TOML in UTF-8") from error
    return scenario_from(_tables(text.removeprefix("\ufeff").replace("\r\n", "\n"), where), where)


def _tables(text: str, where: str) -> dict[str, Any]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") >= MAX_KEY_PARTS and _has_long_key(line):
            raise ScenarioError(f"{where}: line {number}: a key has more than {MAX_KEY_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ScenarioError(f"{where}: not valid TOML: nested too deeply") from error
    except ValueError as error:
        text = _short(str(error), 200)
        if "set_int_max_str_digits" in str(error):
            text = "a number has too many digits; numbers go up to 2^63-1"
        raise ScenarioError(f"{where}: not valid TOML: {text}") from error


def _has_long_key(line: str) -> bool:
    """Whether a dotted key, outside text and comments, has more parts than tomllib can take in a short time."""
    for found in _KEY_OR_COMMENT.finditer(line):
        if found[0].startswith("#"):
            return False
        if _LONG_KEY.fullmatch(found[0]):
            return True
    return False


def scenario_from(tables: dict[str, Any], where: str = "<scenario>") -> Scenario:
    """Check tables that are already parsed. Raises ScenarioError."""
    try:
        return Scenario.model_validate(tables)
    except ValidationError as error:
        problems = error.errors()
        first = _problem_text(problems[0])
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ScenarioError(f"{where}: {first}{more}") from error


def _problem_text(problem: Any) -> str:
    """One pydantic error in the words of the file: place, then what is allowed."""
    place = list(problem["loc"])
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, KeyProblem):
        place.append(cause.key)
    return f"{_place(place)} {_remedy(problem, place, cause)}"


def _place(loc: list[str | int]) -> str:
    """``[[request]] 2, key tokens[3]`` and the like."""
    parts = [
        part for part in loc if not (isinstance(part, str) and part.startswith(("list[", "constrained", "literal")))
    ]
    if not parts:
        return "the file"
    table = "top level"
    if parts[0] in ("device", "scheduler"):
        table, parts = f"[{parts[0]}]", parts[1:]
    elif parts[0] == "request":
        table, parts = "[[request]]", parts[1:]
        if parts and isinstance(parts[0], int):
            table, parts = f"[[request]] number {parts[0] + 1}", parts[1:]
    if not parts:
        return f"{table}:"
    names = [p if isinstance(p, int) else _short(p) for p in parts if p != "[key]"]
    key = str(names[0]) + "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in names[1:])
    return f"{table}: key {key}"


def _remedy(problem: Any, place: list[str | int], cause: object) -> str:
    kind, context = problem["type"], problem.get("ctx", {})
    if isinstance(cause, Exception):
        return str(cause)
    if kind == "extra_forbidden":
        return f"is unknown; allowed: {', '.join(_allowed_keys(place))}"
    if kind == "missing":
        return "is missing"
    if kind in ("greater_than_equal", "less_than_equal"):
        low, high = _bounds(place)
        bounds = f"{low} to {high}" if high is not None and high != U63 else f"{low} or more"
        if high == U63:
            bounds = f"{low} to 2^63-1"
        return f"must be {bounds}, not {_shown(problem['input'])}"
    wanted = _WANTED.get(kind)
    if kind == "literal_error":
        wanted = f"one of {context['expected']}"
    if kind == "too_short":
        wanted = "a list of 1 or more"
    if kind == "string_pattern_mismatch":
        plain = "text without control characters"
        wanted = f"{plain}, parentheses and commas" if place[-1] == "lora_rotation" else plain
    if wanted is None:
        return str(problem["msg"]).lower()
    return f"must be {wanted}, not {_shown(problem['input'])}"


_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number up to 2^63-1",
    "bool_type": "true or false",
    "string_type": "text in quotes",
    "string_too_short": "non-empty text",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "float_type": "a number",
    "finite_number": "a finite number",
}


def _table_of(place: list[str | int]) -> type[Table]:
    match place:
        case ["device", *_]:
            return DeviceTable
        case ["scheduler", *_]:
            return SchedulerTable
        case ["request", int(), *_]:
            return RequestTable
        case _:
            return Scenario


def _allowed_keys(place: list[str | int]) -> Iterable[str]:
    return _table_of(place).model_fields


def _bounds(place: list[str | int]) -> tuple[int | float | None, int | None]:
    """Lowest and highest value of the number at ``place``, from the table's own schema."""
    keys = [part for part in place if isinstance(part, str) and part in _table_of(place).model_fields]
    if not keys:
        return 0, U63
    found: dict[str, Any] = {}

    def search(node: Any) -> None:
        if isinstance(node, dict):
            if "minimum" in node:
                found.update(node)
            for value in node.values():
                search(value)
        elif isinstance(node, list):
            for value in node:
                search(value)

    search(_table_of(place).model_json_schema()["properties"][keys[-1]])
    return found.get("minimum"), found.get("maximum")


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return _short(text.lower() if isinstance(value, bool) else text)


def _short(text: str, most: int = 60) -> str:
    """``text`` in one line, without its middle if it is long."""
    if len(text) > most:
        text = f"{text[: most - 20]}...{text[-17:]}"
    return _UNSAFE.sub(lambda found: ascii(found[0])[1:-1], text)
