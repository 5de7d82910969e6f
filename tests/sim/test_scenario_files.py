"""Scenario files: every key's range at both ends, and errors that name file, table, key and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrale.sim.scenario import (
    DeviceTable,
    RequestTable,
    Scenario,
    ScenarioError,
    SchedulerTable,
    load_scenario,
    parse_scenario,
    scenario_from,
)

TOP = 2**63 - 1
ONE = {"id": 1, "prompt_len": 5, "tokens": [10, 63]}


def build(table: str | None = None, **keys: Any) -> Scenario:
    tables: dict[str, Any] = {"name": "n", "request": [dict(ONE)]}
    if table == "request":
        tables["request"][0].update(keys)
    elif table is not None:
        tables[table] = keys
    else:
        tables.update(keys)
    return scenario_from(tables, "dir/case.toml")


def error(table: str | None = None, **keys: Any) -> str:
    with pytest.raises(ScenarioError) as caught:
        build(table, **keys)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("dir/case.toml: ")
    return text.removeprefix("dir/case.toml: ")


RANGES: list[tuple[str, str, int, int]] = [
    ("device", "vocab", 2, 2**20),
    ("device", "block_size", 1, 1024),
    ("device", "total_blocks", 0, 2**24),
    ("device", "ring_slots", 0, 64),
    ("device", "dflash_gamma", 0, TOP),
    ("device", "slot_draft_capacity", 0, TOP),
    ("device", "event_lag", 0, TOP),
    ("device", "event_query_fault_at", 1, TOP),
    ("device", "spill_capacity", 1, TOP),
    ("scheduler", "max_batch_size", 1, 4096),
    ("scheduler", "max_prefill_tokens", 0, TOP),
    ("scheduler", "max_batch_tokens", 0, TOP),
    ("scheduler", "max_seq_len", 0, TOP),
    ("scheduler", "num_drafts", 1, 31),
    ("scheduler", "swap_space_gb", 0, TOP),
    ("scheduler", "slai_deadline_ms", 1, TOP),
    ("scheduler", "think_start_token", 0, TOP),
    ("scheduler", "think_end_token", 0, TOP),
    ("scheduler", "close_inbox_at_tick", 1, TOP),
    ("request", "id", 0, TOP),
    ("request", "prompt_len", 0, 2**20),
    ("request", "max_tokens", 0, TOP),
    ("request", "min_tokens", 0, TOP),
    ("request", "top_logprobs", 0, 255),
    ("request", "num_beams", 1, 64),
    ("request", "draft_wrong_every", 0, TOP),
    ("request", "cancel_at", 0, TOP),
    ("request", "arrive_at_tick", 1, TOP),
    ("request", "cancel_at_tick", 1, TOP),
    ("request", "deadline_at_tick", 1, TOP),
    ("request", "drop_reader_after", 0, TOP),
    ("request", "stall_reader", 0, TOP),
]
LISTS = [
    ("device", "kv_exhaust_at"), ("device", "fatal_at"), ("device", "device_lost_at"), ("device", "spill_fail_at"),
    ("device", "restore_fail_at"), ("scheduler", "boundary_tokens"), ("request", "tokens"), ("request", "prompt"),
    ("request", "stop_tokens"), ("request", "beam_hyp"),
]  # fmt: skip
FLAGS = [
    ("device", k)
    for k in (
        "has_proposer", "has_self_speculative", "supports_beam", "has_ssm_layers", "twophase_ok", "can_batch_verify",
        "device_token_feed", "reversed_completion",
    )
] + [
    ("scheduler", k)
    for k in (
        "use_speculative", "dflash", "self_speculative", "ngram_speculative", "dflash_unified_ctx",
        "dflash_serial_append", "loop_watchdog",
    )
] + [("request", k) for k in ("streaming", "expired_deadline", "grammar_active", "vision_pads")]  # fmt: skip
TABLE_NAME = {"device": "[device]", "scheduler": "[scheduler]", "request": "[[request]] number 1"}


def shown(low: int, high: int) -> str:
    return f"{low} to 2^63-1" if high == TOP else f"{low} to {high}"


@pytest.mark.parametrize(("table", "key", "low", "high"), RANGES, ids=[f"{t}.{k}" for t, k, _, _ in RANGES])
def test_d22_d31_ranges(table: str, key: str, low: int, high: int) -> None:
    """Both ends are in, both neighbours are out, by name; no float, boolean or text passes for a number."""
    for value in (low, high):
        made = build(table, **{key: value})
        holder = made.request[0] if table == "request" else getattr(made, table)
        assert getattr(holder, key) == value
    for value in (low - 1, high + 1):
        assert error(table, **{key: value}) == f"{TABLE_NAME[table]}: key {key} must be {shown(low, high)}, not {value}"
    for value, text in ((1.0, "1.0"), (True, "true"), ("1", "'1'")):
        assert error(table, **{key: value}) == f"{TABLE_NAME[table]}: key {key} must be a whole number, not {text}"


@pytest.mark.parametrize("key", ["held_blocks", "reclaimable"])
def test_d22_blocks_within_the_pool(key: str) -> None:
    """0 to total_blocks, the default total included."""
    assert getattr(build("device", total_blocks=7, **{key: 7}).device, key) == 7
    assert error("device", total_blocks=7, **{key: 8}) == f"[device]: key {key} must be 0 to total_blocks (7)"
    assert error("device", **{key: 1001}) == f"[device]: key {key} must be 0 to total_blocks (1000)"
    assert error("device", **{key: -1}).startswith(f"[device]: key {key} must be 0 to ")


@pytest.mark.parametrize(("table", "key"), LISTS, ids=[f"{t}.{k}" for t, k in LISTS])
def test_d31_lists_of_whole_numbers(table: str, key: str) -> None:
    """Entries 0 to 2^63-1; the message names the entry; a scalar is no list."""
    good = [0, TOP] if key != "prompt" else [0, TOP, 5, 5, 5]
    build(table, **{key: good})
    bad = [0, -1] if key != "prompt" else [0, -1, 5, 5, 5]
    assert error(table, **{key: bad}) == f"{TABLE_NAME[table]}: key {key}[1] must be 0 to 2^63-1, not -1"
    assert f"key {key}[0] must be a whole number, not 0.5" in error(table, **{key: [0.5]})
    assert f"key {key}[0] must be 0 to 2^63-1, not {TOP + 1}" in error(table, **{key: [TOP + 1]})
    assert error(table, **{key: 5}) == f"{TABLE_NAME[table]}: key {key} must be a list, not 5"


@pytest.mark.parametrize(("table", "key"), FLAGS, ids=[f"{t}.{k}" for t, k in FLAGS])
def test_flags_are_true_or_false(table: str, key: str) -> None:
    """Nothing is coerced."""
    for value in (True, False):
        build(table, **{key: value})
    for value, text in ((1, "1"), ("true", "'true'")):
        assert error(table, **{key: value}) == f"{TABLE_NAME[table]}: key {key} must be true or false, not {text}"


@pytest.mark.parametrize(
    ("key", "allowed"),
    [("policy", ("fifo", "slai")), ("deadline_scope", ("active", "all")), ("router", ("sync", "async"))],
)
def test_choices(key: str, allowed: tuple[str, str]) -> None:
    """The message lists what is allowed."""
    for value in allowed:
        build("scheduler", **{key: value})
    text = error("scheduler", **{key: "other"})
    assert text == f"[scheduler]: key {key} must be one of '{allowed[0]}' or '{allowed[1]}', not 'other'"


def test_tokens_need_at_least_one_id() -> None:
    assert error("request", tokens=[]) == "[[request]] number 1: key tokens must be a list of 1 or more, not []"


@pytest.mark.parametrize("value", [0, 0.0, -0.0, 1e-7, 0.1 + 0.2, 2, 1e300])
def test_case_17_temperatures_that_are_fine(value: float) -> None:
    assert build("request", temperature=value).request[0].temperature == value


@pytest.mark.parametrize("value", [-0.1, -1, float("nan"), float("inf"), float("-inf"), True, "0.7", [0.7], 10**400])
def test_case_17_temperatures_that_are_not(value: object) -> None:
    """Named by table and key; finite and at least 0."""
    assert error("request", temperature=value).startswith("[[request]] number 1: key temperature must be ")


def test_case_17_floats_in_toml() -> None:
    """1e400 overflows to infinity in a TOML reader; nan and inf are TOML words."""
    for text in ("1e400", "nan", "inf", "-inf"):
        data = f'name = "n"\n[[request]]\nid = 1\nprompt_len = 1\ntokens = [1]\ntemperature = {text}\n'.encode()
        with pytest.raises(ScenarioError, match=r"^f\.toml: \[\[request\]\] number 1: key temperature must be finite"):
            parse_scenario(data, "f.toml")


@pytest.mark.parametrize(
    ("table", "model"),
    [("device", DeviceTable), ("scheduler", SchedulerTable), ("request", RequestTable), (None, Scenario)],
)
def test_unknown_keys_list_what_is_allowed(table: str | None, model: type) -> None:
    """Every key of the table, in the order of the documentation."""
    text = error(table, total_block=1)
    place = TABLE_NAME[table] if table else "top level"
    assert text == f"{place}: key total_block is unknown; allowed: {', '.join(model.model_fields)}"


def test_missing_keys() -> None:
    """name, id, tokens, and a prompt of one kind or the other."""

    def broken(tables: dict[str, Any]) -> str:
        with pytest.raises(ScenarioError) as caught:
            scenario_from(tables, "f")
        return str(caught.value)

    assert broken({}) == "f: top level: key name is missing"
    assert broken({"name": ""}) == "f: top level: key name must be non-empty text, not ''"
    for key in ("id", "tokens"):
        entry = {k: v for k, v in ONE.items() if k != key}
        text = broken({"name": "n", "request": [ONE, entry]})
        assert text == f"f: [[request]] number 2: key {key} is missing"
    entry = {"id": 1, "tokens": [1]}
    text = broken({"name": "n", "request": [entry]})
    assert text == "f: [[request]] number 1: key prompt_len is missing: give prompt_len or prompt"


def test_d22_prompt_and_prompt_len_together_only_if_they_agree() -> None:
    assert build("request", prompt=[1, 2, 3, 4, 5]).request[0].prompt_tokens == [1, 2, 3, 4, 5]
    text = error("request", prompt=[1, 2])
    assert text == "[[request]] number 1: key prompt_len must agree with prompt, which has 2 tokens"


def test_default_prompts() -> None:
    """Position 0 is the id, position i > 0 is 2 + (i mod 7)."""

    def prompt(id: int, length: int) -> list[int]:
        return build("request", id=id, prompt_len=length).request[0].prompt_tokens

    assert prompt(9, 0) == []
    assert prompt(9, 1) == [9]
    assert prompt(9, 10) == [9, 3, 4, 5, 6, 7, 8, 2, 3, 4]
    assert prompt(3, 1000) == [3, *(2 + i % 7 for i in range(1, 1000))]


@pytest.mark.parametrize("key", ["cancel_at", "cancel_at_tick", "drop_reader_after", "stall_reader"])
def test_d12_keys_that_need_a_stream(key: str) -> None:
    """A blocking request has no cancel flag and no reader."""
    build("request", **{key: 3})
    text = error("request", streaming=False, **{key: 3})
    assert text.startswith(f"[[request]] number 1: key {key} is for streaming requests only: a blocking request ")
    build("request", streaming=False, deadline_at_tick=3)


def test_exhaust_at_names_calls() -> None:
    """One list of indices per call name; an unknown call is named with those that exist."""
    made = build("device", exhaust_at={"prefill_chunk": [1], "decode_batch": [0]})
    assert made.device.exhaust_at == {"prefill_chunk": [1], "decode_batch": [0]}
    text = error("device", exhaust_at={"prefil": [1]})
    assert text.startswith("[device]: key exhaust_at.prefil must be one of 'prefill', 'prefill_chunk'")
    assert "exhaust_at.prefill[0] must be 0 to 2^63-1, not -1" in error("device", exhaust_at={"prefill": [-1]})
    assert error("device", exhaust_at=[1]) == "[device]: key exhaust_at must be a table, not [1]"


def test_wrong_kinds_of_tables() -> None:
    """A table where a list belongs, a list where a table belongs."""
    assert error(device=[1]) == "[device]: must be a table, not [1]"
    assert error(request={"id": 1}).startswith("[[request]]: must be a list, not ")
    assert error(request=[5]) == "[[request]] number 1: must be a table, not 5"
    assert error(name=5) == "top level: key name must be text in quotes, not 5"


@pytest.mark.parametrize("name", ["a\nb", "a\tb", "a\u2028b", "a\x7fb"])
def test_names_stay_on_one_line(name: str) -> None:
    """The name is the trace's first line."""
    assert "must be text without control characters" in error(name=name)


@pytest.mark.parametrize("name", ["a(b", "a)b", "a,b", "a\nb", ""])
def test_adapter_names_fit_their_trace_line(name: str) -> None:
    assert error("scheduler", lora_rotation=name).startswith("[scheduler]: key lora_rotation must be ")


def test_several_problems_say_how_many_more() -> None:
    """One line, the first problem, and a count."""
    assert error("device", vocab=1, block_size=0).endswith(", not 1 (and 1 more)")


def test_long_values_are_cut_short() -> None:
    """The message stays readable."""
    text = error("device", vocab=10**100)
    assert len(text) < 150


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", 'f: the file is empty; a scenario needs at least name = "..."'),
        (b" \n\t\n", 'f: the file is empty; a scenario needs at least name = "..."'),
        (b"\x7fELF\x00\x01", "f: not a text file (NUL byte at offset 4); a scenario is TOML"),
        (b'name = "\xff"', "f: not UTF-8 (byte 8); a scenario is TOML in UTF-8"),
    ],
)
def test_files_that_are_no_scenarios(data: bytes, text: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(data, "f")
    assert str(caught.value) == text


def test_toml_errors_keep_their_place() -> None:
    """Line and column of the TOML reader; a cut file; absurd nesting."""
    for data in (b"name = ", b'name = "a"\nname = "b"', b"[device\nvocab = 1", b"a = " + b"[" * 5000):
        with pytest.raises(ScenarioError, match=r"^f: not valid TOML: .+"):
            parse_scenario(data, "f")


def test_crlf_and_a_bom_are_read() -> None:
    """A scenario written on another system is the same scenario."""
    data = b'name = "n"\n[[request]]\nid = 1\nprompt_len = 2\ntokens = [1]\n'
    assert parse_scenario(b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n")) == parse_scenario(data)


def test_load_scenario(tmp_path: Path) -> None:
    """Missing file, folder, good file; the path is the name in the message."""
    with pytest.raises(ScenarioError, match=r"nothing\.toml: cannot be read: No such file"):
        load_scenario(tmp_path / "nothing.toml")
    with pytest.raises(ScenarioError, match="cannot be read: Is a directory"):
        load_scenario(tmp_path)
    good = tmp_path / "good.toml"
    good.write_text('name = "n"\n')
    assert load_scenario(good).name == "n"
    good.write_text('name = "n"\nx = 1\n')
    with pytest.raises(ScenarioError) as caught:
        load_scenario(good)
    assert str(caught.value).startswith(f"{good}: top level: key x is unknown")


def test_files_that_are_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metrale.sim.scenario.MAX_FILE_BYTES", 10)
    big = tmp_path / "big.toml"
    big.write_text('name = "long enough"\n')
    with pytest.raises(ScenarioError, match="larger than"):
        load_scenario(big)


def _problem(call: Callable[[], object]) -> str:
    """The text of the ScenarioError, or nothing when the scenario is fine; any other exception fails the test."""
    try:
        call()
    except ScenarioError as error:
        return str(error)
    return ""


@given(st.binary(max_size=60))
def test_any_bytes_give_a_scenario_or_one_line(data: bytes) -> None:
    """Never another exception."""
    text = _problem(lambda: parse_scenario(data, "f"))
    assert "\n" not in text
    assert not text or text.startswith("f: ")


_VALUES = st.recursive(
    st.one_of(
        st.integers(-3, 70), st.integers(2**62, 2**64), st.booleans(), st.text(max_size=3), st.floats(), st.none()
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
    max_leaves=4,
)


@given(
    st.sampled_from(["device", "scheduler", "request"]).flatmap(
        lambda table: st.tuples(
            st.just(table),
            st.sampled_from(
                sorted(
                    {"device": DeviceTable, "scheduler": SchedulerTable, "request": RequestTable}[table].model_fields
                )
            ),
        )
    ),
    _VALUES,
)
def test_any_value_under_any_key_gives_a_scenario_or_names_the_key(place: tuple[str, str], value: object) -> None:
    """One line with table and key."""
    table, key = place
    text = _problem(lambda: build(table, **{key: value}))
    assert "\n" not in text
    if text:
        assert TABLE_NAME[table] in text
        blamed = {"prompt": "prompt_len", "total_blocks": "blocks", "streaming": "streaming"}.get(key, key)
        assert key in text or blamed in text
        assert "must " in text or "is " in text
