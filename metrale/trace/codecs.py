"""How the terminals of the grammar become Python values and text again.

A codec's ``read`` is given text that its terminal matched, so it cannot fail; ``write`` gives the one canonical
spelling back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from .records import Event, Node, PromptLogprobs, Token, TokenLogprobs
from .values import Ints, Lists, Pairs, Readback, SeqId, Seqs, Slice, Slices


class Codec(NamedTuple):
    """``text`` describes the values in a message, ``sign`` stands for one in a call's signature."""

    read: Callable[[str], Any]
    write: Callable[[Any], str]
    text: str
    sign: str


def _read_ints(text: str) -> Ints:
    return tuple(map(int, text[1:-1].split(", "))) if len(text) > 2 else ()


def _write_ints(values: Ints) -> str:
    return str(list(values))


def _read_lists(text: str) -> Lists:
    return tuple(map(tuple, json.loads(text)))


def _write_lists(values: Lists) -> str:
    return str([list(value) for value in values])


def _read_drafts(text: str) -> Lists | None:
    return None if text == "declined" else _read_lists(text)


def _write_drafts(values: Lists | None) -> str:
    return "declined" if values is None else _write_lists(values)


def _read_pairs(text: str) -> Pairs:
    return tuple(map(tuple, json.loads(text.replace("(", "[").replace(")", "]"))))


def _write_pairs(values: Pairs) -> str:
    return str(list(values))


def _read_seq(text: str) -> SeqId:
    hash_, _, rest = text[1:].partition("@")
    slot, _, length = rest.partition(":len=")
    return SeqId(int(hash_), int(slot), int(length))


_SEQ = re.compile(r"s(\d+)@(\d+):len=(\d+)")


def _read_seqs(text: str) -> Seqs:
    return tuple([SeqId(int(h), int(s), int(n)) for h, s, n in _SEQ.findall(text)])


def _read_slice(text: str) -> Slice:
    seq, start, length, last = text.split(" ")
    return Slice(_read_seq(seq), int(start[6:]), int(length[4:]), last == "last=true")


def _read_slices(text: str) -> Slices:
    return tuple(map(_read_slice, text[2:-2].split('", "'))) if len(text) > 2 else ()


def _write_quoted(values: Seqs | Slices) -> str:
    return "[" + ", ".join([f'"{value}"' for value in values]) + "]"


def _read_readback(text: str) -> Readback:
    kind, brace, masks = text.partition("{n=")
    return Readback(kind, int(masks[:-1]) if brace else None)


def _read_option(text: str) -> str | None:
    return None if text == "None" else text[6:-2]


def _write_option(value: str | None) -> str:
    return "None" if value is None else f'Some("{value}")'


def _read_token(text: str) -> Event:
    if text.startswith("TL"):
        token, _, k = text[2:].partition(":")
        return TokenLogprobs(int(token), int(k))
    return Token(int(text[1:])) if text[0] == "T" else PromptLogprobs(int(text[2:]))


def _read_tokens(text: str) -> tuple[Event, ...]:
    return tuple(map(_read_token, text.split(" ")))


def write_token(event: Node) -> str:
    """The text of a token event."""
    match event:
        case Token(token):
            return f"T{token}"
        case TokenLogprobs(token, k):
            return f"TL{token}:{k}"
        case PromptLogprobs(n):
            return f"PL{n}"
    raise TypeError(f"not a token event: {event!r}")


def _write_tokens(events: tuple[Event, ...]) -> str:
    return " ".join(map(write_token, events))


def _word(text: str, sign: str) -> Codec:
    return Codec(str, str, text, sign)


_NUMBER = Codec(int, str, "a whole number", "<n>")
_OPTION = Codec(_read_option, _write_option, '`None` or `Some("...")`', "<name or None>")
_SEQ_TEXT = "a sequence `s<hash>@<slot>:len=<n>`"

CODECS: dict[str, Codec] = {
    "NAT": _NUMBER,
    "COUNT": _NUMBER._replace(text="a whole number from 1"),
    "INT": _NUMBER._replace(text="a whole number or a negative one"),
    "HEX": Codec(lambda text: int(text, 16), "{:#x}".format, "a lower-case hex word `0x...`", "<0x..>"),
    "BOOL": Codec("true".__eq__, {True: "true", False: "false"}.__getitem__, "`true` or `false`", "<bool>"),
    "INTS": Codec(_read_ints, _write_ints, "a list `[1, 2]`", "[<n>, ..]"),
    "LISTS": Codec(_read_lists, _write_lists, "a list of lists `[[1, 2], [3]]`", "[[<n>, ..], ..]"),
    "DRAFTS": Codec(_read_drafts, _write_drafts, "a list of lists or `declined`", "[[<n>, ..], ..]"),
    "PAIRS": Codec(_read_pairs, _write_pairs, "a list of pairs `[(0, 0), (4, 2)]`", "[(<n>, <n>), ..]"),
    "MASKS": Codec(_read_lists, _write_lists, "a list of id pairs `[[1, 2], [3, 4]]`", "[[<id>, <id>], ..]"),
    "SEQ": Codec(_read_seq, str, _SEQ_TEXT, "<seq>"),
    "SEQS": Codec(_read_seqs, _write_quoted, "a list of quoted sequences", '["<seq>", ..]'),
    "SLICE": Codec(_read_slice, str, "`<seq> start=<n> len=<n> last=<bool>`", "<slice>"),
    "SLICES": Codec(_read_slices, _write_quoted, "a list of quoted slices", '["<slice>", ..]'),
    "CTX": _word("`None`, `Unified` or `SerialAppend`", "<ctx>"),
    "READBACK": Codec(_read_readback, str, "`Argmax`, `HostLogits` or `ArgmaxMasked{n=<n>}`", "<readback>"),
    "WHAT": _word("`finish_sequence`, `preempt_requeue`, `spill_out_sequence` or `send_error`", "<what>"),
    "REASON": _word("`stop`, `length`, `timeout`, `cancelled` or `tool_calls`", "<reason>"),
    "GUARD": _OPTION._replace(text='`None` or `Some("<guard>")`'),
    "OPTION": _OPTION,
    "TOKENS": Codec(_read_tokens, _write_tokens, "token events `T<id>`, `TL<id>:<k>`, `PL<n>`", "T<id> .."),
    "NAME": _word("a name without blanks at its ends", "<name>"),
    "ERROR": _word("an error text without blanks at its ends", "<text>"),
    "LABEL": _word("a name without `(`, `)` and `,`", "<name>"),
    "TEXT": Codec(lambda text: text[:-1], "{})".format, "a text that ends with `)`", "<text>)"),
}
