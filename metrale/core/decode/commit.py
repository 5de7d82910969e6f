"""One decoded token of the plain path, step by step (S3 sections 6 and 7)."""

from __future__ import annotations

from ..config import SPONTANEOUS_THINK_BUDGET, WATCHDOG
from ..io import HostLogits, StepError
from ..retire import fail_all
from ..row import Row
from ..sampling.record import LogprobRecord
from ..state import State
from ..watchdog import content_loop_due, fuzzy_repetition_at, roll_back, snapshot_boundary, thinking_loop
from .readback import mask_hit, pick_rows


def commit_rows(s: State, rows: list[Row], result: list[int] | HostLogits, skip: list[bool] | None = None) -> None:
    """Turn a settled step into client tokens: all picks first, then row after row. ``skip`` marks rows to leave out.

    A device pick that hits a think id of a row past thinking sends the whole batch to the host (S3 section 4.3).
    """
    if not isinstance(result, HostLogits) and mask_hit(s, rows, result):
        try:
            result = s.router.read_logits(len(rows))
        except StepError as error:
            fail_all(s, error.text)
            return
    now = s.io.clock.now()
    records: list[LogprobRecord | None] | None = None
    if isinstance(result, HostLogits):
        tokens, records = pick_rows(s, rows, result, skip)
    else:
        tokens = result
        if skip is None:
            if s.modes.plain_tokens:
                _commit_plain_tokens(s, rows, tokens, now)
            else:
                _commit_device_tokens(s, rows, tokens, now)
            return
    for index, row in enumerate(rows):
        if skip is None or not skip[index]:
            commit_token(s, row, tokens[index], records[index] if records else None, now)


def _commit_plain_tokens(s: State, rows: list[Row], tokens: list[int], now: int) -> None:
    """:func:`commit_token` with every rule left out that needs think tokens, a watchdog, a boundary ring or logprobs.

    A floor cannot hold an EOS back here: such a batch is picked on the host.
    """
    ceiling = s.config.max_seq_len or 1 << 62
    checkpoint = s.router.marconi_checkpoint
    for row, token in zip(rows, tokens, strict=True):
        row.last_token = token
        row.last_token_time = now
        left = row.remaining
        if left > 0:
            left -= 1
            row.remaining = left
        else:
            row.finished = True
        row.content_tokens += 1
        row.outputs.append(token)
        if token in row.eos:
            row.finished = True
            continue
        seq = row.seq
        checkpoint(seq)
        if not row.request.sink.token(token) or left == 0 or seq.seq_len + 1 >= ceiling:
            row.finished = True


def _commit_device_tokens(s: State, rows: list[Row], tokens: list[int], now: int) -> None:
    """:func:`commit_token` for device picks; the ordinary content token takes a short way, everything else the long
    one: think ids, tokens inside thinking, every sixteenth token under a watchdog, boundaries, stops."""
    config = s.config
    think_ids, boundaries = (config.think_start_token, config.think_end_token), config.boundary_tokens
    watched, stride = config.loop_watchdog, WATCHDOG.content_stride
    ceiling = config.max_seq_len or 1 << 62
    checkpoint = s.router.marconi_checkpoint
    for row, token in zip(rows, tokens, strict=True):
        think, left, counted = row.think, row.remaining - 1, row.content_tokens + 1
        if (
            think.inside
            or left <= 0
            or token in think_ids
            or token in row.eos
            or token in boundaries
            or (watched and counted % stride == 0)
        ):
            commit_token(s, row, token, None, now)
            continue
        row.last_token = token
        row.last_token_time = now
        if think.over:
            think.stray_ends = 0
        think.just_ended = False
        row.remaining = left
        row.content_tokens = counted
        row.outputs.append(token)
        checkpoint(row.seq)
        if not row.request.sink.token(token) or row.seq.seq_len + 1 >= ceiling:
            row.finished = True
        elif watched:
            _watch_repetition(s, row)


def commit_token(s: State, row: Row, token: int, record: LogprobRecord | None, now: int) -> None:
    """Everything that one token of one row causes, in the order of S3 section 6."""
    think = row.think
    row.last_token = token
    row.last_token_time = now
    if think_id_outside(s, row, token, max(SPONTANEOUS_THINK_BUDGET >> min(think.loop_fires, 4), 8)):
        return
    if think.inside:
        _thinking_token(s, row, token)
    else:
        _content_token(s, row)
    if record is not None:
        row.logprobs.append(record)
    if token in row.eos:
        if not _eos_held_back(s, row):
            row.outputs.append(token)
            row.finished = True
        return
    _keep(s, row, token)


def think_id_outside(s: State, row: Row, token: int, budget: int) -> bool:
    """A think id outside thinking: a start opens a thought of at most ``budget`` tokens, an end counts as a stray one.
    True: the token is not recorded, streamed or paid for (S3 section 6 steps 3 to 5, S4 section 4 steps 3 to 5)."""
    think = row.think
    if think.inside:
        return False
    if token == s.config.think_start_token:
        think.inside = True
        think.over = False
        think.emitted_after = 0
        think.stray_ends = 0
        think.budget = budget
        return True
    if token == s.config.think_end_token:
        think.stray_ends += 1
        if think.stray_ends >= WATCHDOG.stray_think_ends:
            row.finished = True
            row.guard = "think_skip_watchdog"
        return True
    if think.over:
        think.stray_ends = 0
    return False


def spend_budget(row: Row) -> None:
    """One unit of the completion budget; one that is not there ends the row (S3 section 6.1)."""
    if row.remaining > 0:
        row.remaining -= 1
    else:
        row.finished = True


def at_ceiling(s: State, row: Row) -> bool:
    """The context stop: the next token would reach the ceiling (never with a ceiling of 0)."""
    return 0 < s.config.max_seq_len <= row.seq.seq_len + 1


def close_thinking(row: Row) -> None:
    """The think-end token inside thinking: from here on it counts as outside."""
    think = row.think
    think.inside = False
    think.force_end = False
    think.deferrals = 0
    think.confident_run = 0
    think.over = True
    think.just_ended = True


def spend_thinking(row: Row) -> None:
    """One thinking token; reaching the budget arms the forced end."""
    think = row.think
    think.tokens += 1
    if think.budget is not None and think.tokens >= think.budget and not think.force_end:
        think.force_end = True
        think.deferrals = 0


def _thinking_token(s: State, row: Row, token: int) -> None:
    """S3 section 6.3; the thinking-loop watchdog looks at the outputs without this token."""
    spend_budget(row)
    if token == s.config.think_end_token:
        close_thinking(row)
        return
    spend_thinking(row)
    think = row.think
    if (
        not think.force_end
        and think.tokens >= WATCHDOG.thinking_min_tokens
        and think.tokens % WATCHDOG.thinking_stride == 0
        and thinking_loop(row.outputs)
    ):
        think.force_end = True
        think.deferrals = 0
        think.loop_fires += 1


def _content_token(s: State, row: Row) -> None:
    """S3 section 6.2. The token itself is handled on, whether the watchdog rolled back or ended the row."""
    spend_budget(row)
    row.content_tokens += 1
    row.think.just_ended = False
    if content_loop_due(s, row) and not roll_back(s, row, WATCHDOG.content_min_drop):
        row.guard = "content_loop_watchdog"
        row.finished = True


def _eos_held_back(s: State, row: Row) -> bool:
    """An EOS below the floor, or inside thinking short of a hard ceiling, is dropped (S3 section 6.4)."""
    if len(row.outputs) < row.floor:
        return True
    return row.think.inside and row.remaining > 0 and not at_ceiling(s, row)


def _keep(s: State, row: Row, token: int) -> None:
    """A token that counts (S3 section 7): record, snapshot, checkpoint, stream, length tests, fuzzy watchdog."""
    row.outputs.append(token)
    inside = row.think.inside
    if not inside:
        snapshot_boundary(s, row)
        s.router.marconi_checkpoint(row.seq)
    if not stream_token(row, token):
        row.finished = True
    if row.remaining == 0 or (not row.finished and at_ceiling(s, row)):
        row.finished = True
    if s.config.loop_watchdog and not row.finished and not inside:
        _watch_repetition(s, row)


def _watch_repetition(s: State, row: Row) -> None:
    """The fuzzy watchdog: roll back, or end the row (S3 section 7 step 8)."""
    period = fuzzy_repetition_at(row)
    if period is not None and not roll_back(s, row, 3 * period):
        row.guard = "fuzzy_repetition"
        row.finished = True


def stream_token(row: Row, token: int) -> bool:
    """Send the token, with the newest logprob record if the row has any; False: the reader is gone. Thinking tokens
    of a request that did not ask for thinking are not sent."""
    request = row.request
    if row.think.inside and not request.thinking:
        return True
    if row.logprobs:
        return request.sink.token_logprobs(token, row.logprobs[-1])
    return request.sink.token(token)
