"""What the clients saw against what the device was asked to do (S1 section 20, S5 section 2.8)."""

from __future__ import annotations

from collections.abc import Sequence

from metrale.trace import records as r

from .base import Invariant, plural
from .ghost import UNKNOWN, Life

TERMINAL = (r.Done, r.Error, r.Response, r.Err, r.Dropped)
EARLY = ("cancelled", "timeout")


class Clients(Invariant):
    """See ``sentence``."""

    name = "clients"
    sentence = (
        "Each request gets exactly one terminal event, behind exactly the tokens that were picked for it, "
        "and its counts and reason fit them."
    )

    def finish(self) -> None:
        g = self.g
        outs: dict[int, list[tuple[int, r.Out]]] = {}
        for line, out in g.outs:
            g.line = line
            self._form(out)
            outs.setdefault(out.id, []).append((line, out))
        self.streamed = {event.id for _, out in g.outs for event in out.events if hasattr(event, "id")}
        self.streamed.update(
            *(event.tokens for _, out in g.outs for event in out.events if isinstance(event, r.Response))
        )
        self.thinks = any(getattr(event, "think", 0) for _, out in g.outs for event in out.events)
        self.hypotheses = [
            life.hypothesis for lives in g.lives.values() for life in lives if life.hypothesis is not None
        ]
        for id_, lives in g.lives.items():
            if id_ == 0 and id_ not in outs and not lives[0].prefilled:
                continue
            self._answers(id_, lives, outs.pop(id_, []))
        for entries in outs.values():
            for line, out in entries:
                self._never_ran(line, out)

    # -- the events of one client

    def _form(self, out: r.Out) -> None:
        events = out.events
        ends = [index for index, event in enumerate(events) if isinstance(event, TERMINAL)]
        if not ends:
            self.fail(f"the stream of s{out.id} has no terminal event")
            return
        if len(ends) > 1 or ends[0] != len(events) - 1:
            self.fail(f"the stream of s{out.id} goes on after its terminal event")
        widths = {event.k for event in events if isinstance(event, r.TokenLogprobs)}
        if len(widths) > 1:
            self.fail(f"the tokens of s{out.id} carry {sorted(widths)} log-probabilities: it must be one number")
        end = events[-1]
        if isinstance(end, r.Done):
            if (end.reason == "timeout") != (end.guard == "request_timeout"):
                self.fail(f"s{out.id}: reason {end.reason} does not go with guard {end.guard}")
            if end.guard is not None and end.reason in ("cancelled", "tool_calls"):
                self.fail(f"s{out.id}: reason {end.reason} does not go with guard {end.guard}")

    def _never_ran(self, line: int, out: r.Out) -> None:
        self.g.line = line
        if not out.events:
            return
        end = out.events[-1]
        if isinstance(end, r.Error | r.Err | r.Dropped) and len(out.events) == 1:
            return
        if isinstance(end, r.Done) and len(out.events) == 1 and end.reason in EARLY and end.n == end.acc == 0:
            return
        if isinstance(end, r.Response) and end.reason in EARLY and not end.tokens:
            return
        self.fail(f"s{out.id} was answered, but no sequence ever ran for it")

    # -- lives against answers

    def _answers(self, id_: int, lives: list[Life], outs: list[tuple[int, r.Out]]) -> None:
        """Several requests of one id run one after the other (D18); their answers stand in file order."""
        outs = sorted(outs, key=lambda entry: -_told(entry[1]))
        problems = [[self._compare(life, out) for _, out in outs] for life in lives]
        taken: dict[int, int] = {}
        for index in range(len(lives)):
            _assign(index, problems, taken, set())
        answered = {life: at for at, life in taken.items()}
        left = [at for at in range(len(outs)) if at not in taken]
        for index, life in enumerate(lives):
            if index in answered:
                continue
            if left:
                at = left.pop(0)
                self.g.line = outs[at][0]
                self.fail(f"s{id_}: {problems[index][at]}", life.born, life.ended)
            else:
                self.g.line = life.ended or life.born
                self.fail(f"a sequence ran for s{id_}, but no answer to it is in the log", life.born)
        for at in left:
            self._never_ran(*outs[at])

    def _compare(self, life: Life, out: r.Out) -> str | None:
        if not out.events:
            return "its stream is empty"
        end = out.events[-1]
        if not isinstance(end, TERMINAL):
            return "its stream has no terminal event"
        failed = isinstance(end, r.Error | r.Err)
        if life.end is None:
            return None
        if failed and getattr(end, "message", "").startswith("refused: "):
            return "it was refused, but a sequence ran for it"
        if life.end == "finish_sequence":
            if failed or isinstance(end, r.Dropped):
                return "its sequence was released as finished, but the client was told of a failure"
            return self._finished(life, out, end)
        if life.end == "send_error":
            if not failed:
                return "its sequence was released for an error that the client was not told"
            return self._stream(life, out, None)
        if isinstance(end, r.Dropped):
            return "nobody answered it"
        if failed:
            return self._stream(life, out, None)
        if getattr(end, "reason", "") not in EARLY:
            return f"its sequence went as `{life.end}`, which does not end a request normally"
        return self._finished(life, out, end) if life.end != "direct" else self._empty(out, end)

    def _empty(self, out: r.Out, end: r.Event) -> str | None:
        counted = len(end.tokens) if isinstance(end, r.Response) else getattr(end, "n", 0)
        if counted or len(out.events) > 1:
            return "it was ended before its first token, but tokens are reported"
        return None

    def _finished(self, life: Life, out: r.Out, end: r.Event) -> str | None:
        if isinstance(end, r.Response):
            return self._response(life, end)
        assert isinstance(end, r.Done)
        return self._stream(life, out, end) or self._counts(life, end.acc, end.cached, end.n, end.reason, end.guard)

    def _counts(self, life: Life, acc: int, cached: int, n: int, reason: str, guard: str | None) -> str | None:
        if acc != life.accepted:
            return f"{life.accepted} drafts were accepted, the client is told {acc}"
        if cached and cached >= life.prompt:
            return f"{cached} prompt tokens came from the cache, the prompt has {life.prompt}"
        if cached and not any(other.born < life.born for lives in self.g.lives.values() for other in lives):
            return f"{cached} prompt tokens came from the cache, but nothing was cached before"
        if cached and life.prompt < self.g.pool.low:
            return f"{cached} prompt tokens came from the cache, but the prompt fills no block"
        if life.budget is not None and life.hypothesis is None:
            most = life.budget - life.prompt
            if n > most:
                return f"at most {most} tokens were asked for, {n} are counted"
            counted = n >= life.outputs
            if reason == "length" and n < most and guard is None and counted and self._ceiling_unlikely(life):
                return f"it ends by length after {n} tokens of {most}"
        return None

    def _ceiling_unlikely(self, life: Life) -> bool:
        """The context ceiling is not in the log; a sequence that outgrew this one shows that it is not here."""
        length = life.end_length
        others = (one for lives in self.g.lives.values() for one in lives)
        outgrown = any(one.prefilled and one.prompt <= length and one.end_length > length + 1 for one in others)
        return outgrown and not life.dropped and not self.g.uses_drafts

    def _stream(self, life: Life, out: r.Out, end: r.Done | None) -> str | None:
        """The streamed tokens, then n and reason; ``end`` is None for a stream that failed."""
        sent = [event.id for event in out.events if isinstance(event, r.Token | r.TokenLogprobs)]
        if isinstance(out.events[-1], r.Response | r.Err):
            return None
        if life.hypothesis is not None and end is not None:
            return None if end.n == len(life.hypothesis) and not sent else "a beam request streams nothing"
        logprobs = [isinstance(event, r.TokenLogprobs) for event in out.events if hasattr(event, "id")]
        if any(logprobs) and not life.host_picks:
            return "its tokens carry log-probabilities, but no logits were copied for it"
        if any(logprobs) and False in logprobs[logprobs.index(True) :]:
            return "a token lacks its log-probabilities"
        kept, run = list(life.kept), life.run if life.run_at_end else []
        if end is None:
            hidden = self._hidden(sent, kept + run)
            if self._may_hide and _is_within(sent, kept + run):
                return None
            most = [token for token in kept + run if token not in hidden]
            least = len(kept) - (1 if sent else 2)
            return None if _is_start(sent, most) and len(sent) >= least else _first_difference(sent, most)
        if end.think or life.rewound or end.guard == "think_skip_watchdog":
            return self._thinking(life, sent, kept + run, end)
        if run:
            return self._cut_run(life, sent, kept, run, end)
        return self._plain(life, sent, kept, end)

    def _thinking(self, life: Life, sent: list[int], picked: list[int], end: r.Done) -> str | None:
        unseen = len(picked) - len(sent) + len(life.dropped) - (life.ended_by_drop and end.reason == "stop")
        if end.think > max(0, unseen):
            return f"{end.think} tokens are said to be thinking, {max(0, unseen)} were picked and not sent"
        if end.n < len(sent) or (end.think and end.n > len(sent) + end.think + 1 + len(picked)):
            return f"{len(sent)} tokens were sent, n={end.n} cannot be"
        return None

    def _cut_run(self, life: Life, sent: list[int], kept: list[int], run: list[int], end: r.Done) -> str | None:
        """A finish inside the tokens of a speculative step withdraws what lies behind it."""
        most = kept + run
        if self._may_hide and (len(sent) < len(kept) or not _is_start(sent, most)):
            return self._thought_between(sent, most, end)
        hidden = self._hidden(sent, most)
        if hidden:
            most = [token for token in most if token not in hidden]
            kept = [token for token in kept if token not in hidden]
        if not _is_start(sent, most) or len(sent) < len(kept) - (2 if self._may_lose(life) else 0):
            return _first_difference(sent, most)
        extra = end.n - len(sent)
        ended_by_eos = end.reason == "stop" and end.guard is None
        if extra == 0 or (extra == 1 and ended_by_eos and end.n <= len(most)):
            return None
        if extra <= 2 and len(sent) <= extra:
            return None
        if extra == 1 and ((end.reason == "length" and end.n <= len(most)) or (hidden and ended_by_eos)):
            return None
        return f"{len(sent)} tokens were sent, but n={end.n}"

    @property
    def _may_hide(self) -> bool:
        """Whether a pick may be neither sent nor counted: think ids where nothing is checkpointed."""
        knobs = self.g.scenario.scheduler if self.g.scenario is not None else None
        if knobs is not None:
            return knobs.think_start_token is not None or knobs.think_end_token is not None
        return self.thinks or self.g.uses_drafts

    def _thought_between(self, sent: list[int], picked: list[int], end: r.Done) -> str | None:
        """Think ids lie between what was sent; the count must be that of what was sent."""
        if not _is_within(sent, picked) or end.n > len(picked) + 1:
            return _first_difference(sent, picked)
        if end.n - len(sent) not in (0, 1) and not (not sent and end.n == 2):
            return f"{len(sent)} tokens were sent, but n={end.n}"
        return None

    def _hidden(self, sent: list[int], picked: list[int]) -> set[int]:
        """Ids that no client ever sees (think tokens): picked, but neither sent nor counted anywhere."""
        if _is_start(sent, picked):
            return set()
        if self.thinks:
            return set(picked) - set(sent) - {UNKNOWN}
        return {token for token in picked if token not in self.streamed and token != UNKNOWN}

    def _plain(self, life: Life, sent: list[int], kept: list[int], end: r.Done) -> str | None:
        eos = 1 if life.ended_by_drop and end.reason == "stop" else 0
        if len(kept) == 1 and not sent and end.reason == "stop" and end.n == 1 and not life.dropped:
            return None
        if self._may_hide and sent != kept:
            return self._thought_between(sent, kept, end)
        hidden = self._hidden(sent, kept)
        kept = [token for token in kept if token not in hidden]
        if not _is_start(sent, kept):
            return _first_difference(sent, kept)
        lost = len(kept) - len(sent)
        gone = (
            self._may_lose(life)
            and end.reason in ("stop", "length")
            and ((lost == 1 and not (eos and sent)) or (lost == 2 and not sent))
        )
        if lost and not gone and not (lost == len(kept) == 1 and self._may_lose(life)):
            return f"{plural(len(kept), 'token')} were kept for it, {len(sent)} were sent"
        if hidden and end.n == len(sent) + 1:
            return None
        held_back = life.dropped[:-1] if life.ended_by_drop else life.dropped
        if end.n != len(kept) + eos and not (held_back and eos and end.n == len(kept)):
            return f"{plural(len(kept), 'token')} were kept for it{' and an EOS' if eos else ''}, but n={end.n}"
        if end.reason == "stop" and not eos and not lost and not life.dropped and not life.host_picks:
            return self._stops_without_eos(life, end)
        if end.reason == "length" and life.ended_by_drop and not life.dropped[:-1] and end.guard is None:
            return "its last pick was not kept, so it stopped by EOS, not by length"
        return None

    def _may_lose(self, life: Life) -> bool:
        """A reader that goes away loses tokens; only the scenario says whose reader does."""
        scenario = self.g.scenario
        if scenario is None:
            return True
        own = (one for one in scenario.request if one.id == life.id)
        return any(one.drop_reader_after is not None or one.stall_reader is not None for one in own)

    def _stops_without_eos(self, life: Life, end: r.Done) -> str | None:
        if self.g.uses_drafts:
            return None
        return "it is said to have stopped, but its last token was kept and sent"

    # -- blocking clients

    def _response(self, life: Life, end: r.Response) -> str | None:
        tokens = end.tokens
        if life.hypothesis is not None:
            if tokens not in self.hypotheses:
                return f"the beam search did not give {list(tokens)}"
            counts = end.logprobs or end.think or end.acc or end.cached
            return (
                "a beam request has neither thoughts, drafts, cached tokens nor log-probabilities" if counts else None
            )
        if end.logprobs and not life.host_picks:
            return "log-probabilities are counted, but no logits were copied for it"
        if end.think and not life.dropped and not self.g.uses_drafts:
            return "no token was picked and held back, so none was thinking"
        problem = self._counts(life, end.acc, end.cached, len(tokens), end.reason, "a blocking client is told no guard")
        if problem or end.think or life.rewound:
            return problem
        run = life.run if life.run_at_end else []
        most = [*life.kept, *run]
        if not run and life.ended_by_drop and life.dropped:
            most.append(life.dropped[-1])
        short = len(tokens) < len(life.kept)
        if (self._may_hide or (len(life.kept) == 1 and end.reason in EARLY)) and (short or not _is_start(tokens, most)):
            return None if _is_within(tokens, most) else _first_difference(list(tokens), most)
        hidden = self._hidden(list(tokens), most)
        most = [token for token in most if token not in hidden]
        least = len(most) - len(run)
        if not _is_start(tokens, most):
            return _first_difference(list(tokens), most)
        if len(tokens) < least - (life.ended_by_drop and end.reason in EARLY):
            return f"{plural(least, 'token')} were picked for it, {len(tokens)} are given"
        if end.reason == "length" and life.ended_by_drop and len(life.dropped) == 1 and not run:
            return "its last pick was not kept, so it stopped by EOS, not by length"
        if end.logprobs not in (0, len(tokens) - (not hidden)) and not self.g.uses_drafts and not life.dropped[:-1]:
            return f"{len(tokens)} tokens have {len(tokens) - 1} log-probability entries, not {end.logprobs}"
        return None


def _assign(life: int, problems: list[list[str | None]], taken: dict[int, int], tried: set[int]) -> bool:
    """Give a life an answer that fits it, moving earlier ones along if need be (augmenting paths)."""
    for at, problem in enumerate(problems[life]):
        if problem is None and at not in tried:
            tried.add(at)
            if at not in taken or _assign(taken[at], problems, taken, tried):
                taken[at] = life
                return True
    return False


def _told(out: r.Out) -> int:
    """How many tokens an answer reports: the longest that fits a life is its own."""
    return sum(len(event.tokens) if isinstance(event, r.Response) else 1 for event in out.events)


def _is_start(sent: Sequence[int], picked: Sequence[int]) -> bool:
    """Whether ``sent`` is the beginning of ``picked``; a host pick is any token."""
    if len(sent) > len(picked):
        return False
    return all(a == b or b == UNKNOWN for a, b in zip(sent, picked, strict=False))


def _is_within(sent: Sequence[int], picked: Sequence[int]) -> bool:
    """Whether ``sent`` is ``picked`` with tokens left out; a host pick is any token."""
    left = iter(picked)
    return all(any(b in (a, UNKNOWN) for b in left) for a in sent)


def _first_difference(sent: list[int], picked: list[int]) -> str:
    for index, (a, b) in enumerate(zip(sent, picked, strict=False)):
        if a != b != UNKNOWN:
            return f"token {index} that it was sent is {a}, picked was {b}"
    if len(sent) > len(picked):
        return f"{len(sent)} tokens were sent, {len(picked)} were picked for it"
    return f"{len(picked)} tokens were picked for it, {len(sent)} were sent"
