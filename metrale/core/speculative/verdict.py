"""The verdict on one verify window, the same for every lane: what is accepted, and in which order that is told
(S4 sections 5, 10 and 15)."""

from __future__ import annotations

from contextlib import suppress

from ..decode.readback import LOGIT_BYTES
from ..io import DeviceError
from ..row import Row
from ..sampling.pick import pick_window, window_records
from ..state import State
from .emit import Records, emit_run


class Window:
    """One verified window: ``base`` is the length before it, ``drafts`` the inputs after the first, ``picks`` one
    answer per row. ``accepted`` counts the leading drafts that equal their picks, ``rows`` the verified rows: the
    pending input and every draft."""

    __slots__ = ("accepted", "base", "drafts", "picks", "records", "rows")

    def __init__(self, base: int, drafts: list[int], picks: list[int], records: Records | None = None) -> None:
        self.base = base
        self.drafts = drafts
        self.picks = picks
        self.records = records
        self.rows = len(drafts) + 1
        self.accepted = leading_matches(drafts, picks)

    @property
    def full(self) -> bool:
        """Whether every draft was accepted."""
        return self.accepted + 1 == self.rows

    @property
    def kept(self) -> list[int]:
        """The accepted drafts."""
        return self.drafts[: self.accepted]

    @property
    def extra(self) -> int:
        """The bonus after a full accept, the correction otherwise."""
        return self.picks[self.accepted]

    @property
    def tokens(self) -> list[int]:
        """What the client gets: accepted drafts, which equal their picks, then the extra token."""
        return self.picks[: self.accepted + 1]


def leading_matches(drafts: list[int], picks: list[int]) -> int:
    """How many drafts in a row are right."""
    count = 0
    for draft, pick in zip(drafts, picks, strict=False):
        if draft != pick:
            break
        count += 1
    return count


def read_window(
    s: State, row: Row, base: int, drafts: list[int], answers: list[int], first_row: int, raw: bool = False
) -> Window:
    """The window behind a verify's ``answers``: picks, then logprob records (S4 section 5). ``raw``: the picks are the
    answers, whatever the request says. Raises DeviceError."""
    if row.device_pick and not row.think.inside and row.request.sampling.neutral:
        return Window(base, drafts, answers)
    picks = answers if raw else window_picks(s, row, answers, first_row)
    return Window(base, drafts, picks, _window_logprobs(s, row, picks, first_row))


def window_picks(s: State, row: Row, answers: list[int], first_row: int) -> list[int]:
    """Picks of a window's rows: the device's answers for a plain greedy row, else host picks (S4 section 5.1). Raises
    DeviceError."""
    params = row.request.sampling
    if params.temperature == 0.0 and not row.request.grammar and not row.think.inside and params.neutral:
        return answers
    return pick_window(_copy(s, first_row, len(answers)), len(answers), row, s.config)


def _window_logprobs(s: State, row: Row, picks: list[int], first_row: int) -> Records | None:
    """One record per row if the request asks for logprobs; the rows are copied once more (S4 section 5.2)."""
    wanted = row.request.top_logprobs
    if wanted is None:
        return None
    return window_records(_copy(s, first_row, len(picks)), picks, wanted)


def _copy(s: State, first_row: int, count: int) -> bytes:
    return s.device.copy_logits_to_host(first_row, 0, count * LOGIT_BYTES * s.device.facts.vocab_size)


def count_verified(s: State, window: Window) -> None:
    """Tell the telemetry, if it listens."""
    if s.io.telemetry.enabled:
        s.io.telemetry.spec_verified(len(window.drafts), window.accepted)


def commit_dflash_context(s: State, row: Row, window: Window, first_row: int = 0) -> None:
    """Hand the kept rows to the DFlash drafter's context; a failure is only a matter for a log."""
    if s.modes.dflash and s.config.dflash_unified_ctx:
        try:
            s.device.commit_ctx(row.seq, window.accepted + 1, window.base, first_row)
        except DeviceError:
            return


def judge(s: State, row: Row, window: Window, serial: bool) -> bool:
    """Carry out the verdict on one window; whether the row is alive. Raises DeviceError from the commit.

    Full accept: emit, commit, (save), trim. Anything less: rewind, trim, commit, emit, (save). ``serial``: the window
    had a forward of its own, so the drafter's input row is saved here, and an accepted pair feeds the eagle head.
    """
    seq, accepted, rows, tokens = row.seq, window.accepted, window.rows, window.tokens
    count_verified(s, window)
    if accepted + 1 == rows:
        if serial:
            commit_dflash_context(s, row, window)
        if not emit_run(s, row, tokens, window.records):
            return False
        row.last_token = tokens[-1]
        s.device.commit_accepted_prefix(seq, rows, rows)
        if serial and rows == 2:
            with suppress(DeviceError):
                s.device.dflash_eagle_accept_append(seq)
        if serial and not save_hidden(s, accepted):
            return False
        trim(s, row, accepted)
        return True
    seq.rewind(rows - 1 - accepted)
    if serial:
        commit_dflash_context(s, row, window)
    trim(s, row, accepted)
    s.device.commit_accepted_prefix(seq, accepted + 1, rows)
    if not emit_run(s, row, tokens, window.records):
        return False
    row.last_token = tokens[-1]
    return not serial or save_hidden(s, accepted)


def save_hidden(s: State, row: int) -> bool:
    """Keep hidden row ``row`` for the drafter; False: the sequence goes on without drafts."""
    try:
        s.device.save_hidden_for_mtp(row, 0)
    except DeviceError:
        return False
    return True


def trim(s: State, row: Row, accepted: int) -> None:
    """Drop from the drafter what was not accepted; a failure is only a matter for a log."""
    try:
        s.device.trim_proposer_state(row.seq, accepted, 0)
    except DeviceError:
        return


def propose(s: State, row: Row, count: int) -> None:
    """Ask for ``count`` drafts after ``last_token``; an empty or failed answer leaves the row without."""
    with suppress(DeviceError):
        row.drafts = s.device.run_mtp_propose_multi(
            row.last_token, row.seq.seq_len, count, row.seq, 0, row.request.grammar
        )


def under_grammar(row: Row, count: int) -> int:
    """The drafts that may be asked for: one at most under a grammar."""
    return min(1, count) if row.request.grammar else count
