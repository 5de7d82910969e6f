"""Do the two readers agree? Damaged lines for the tests, and a long run from the command line:

python tests/trace/reader_agreement.py 1000000 [SEED]
"""

from __future__ import annotations

import random
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from metrale.trace import LineError, format_record, parse_line
from metrale.trace.diagnose import diagnose
from metrale.trace.fast import fast_reader
from metrale.trace.records import Record

sys.path.insert(0, str(Path(__file__).parent))
from trace_samples import SAMPLES

GOLDEN = Path(__file__).parents[2] / "golden"

_LETTERS = list("0123456789abcfklnostxTLPDE_ ,.:;-=@#/'\"()[]{}<>\\\t\n\r\0é٣\u2028")
_TEXTS = ["00", "-1", "-0", "0x", "0X1F", "[]", "[[]]", "None", "True", " -> ERR x", ") -> ERR ", " -> ", ", ", "  "]


def lines() -> list[str]:
    """The samples and every line of the goldens, each once."""
    found = dict.fromkeys(SAMPLES)
    for path in sorted(GOLDEN.glob("*.trace")):
        found.update(dict.fromkeys(path.read_bytes().decode().split("\n")[:-1]))
    return list(found)


def damaged(source: list[str], count: int, seed: int) -> Iterator[str]:
    """``count`` lines, each a line of ``source`` with one to three small changes."""
    rng = random.Random(seed)
    for _ in range(count):
        line = rng.choice(source)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            line = _damage(line, rng.choice(source), rng)
        yield line


def _damage(line: str, other: str, rng: random.Random) -> str:
    at = rng.randrange(len(line) + 1)
    numbers = [match.span() for match in re.finditer("[0-9]+", line)]
    match rng.randrange(9):
        case 0:
            return line[:at] + line[at + 1 :]
        case 1:
            return line[:at] + rng.choice(_LETTERS) + line[at:]
        case 2:
            return line[:at] + rng.choice(_LETTERS) + line[at + 1 :]
        case 3:
            return line[:at] + rng.choice(_TEXTS) + line[at:]
        case 4:  # another number: longer, shorter, with a leading zero, too large
            if not numbers:
                return line
            start, stop = rng.choice(numbers)
            value = rng.choice(("0", "7", "007", str(2**64 - 1), str(10**20), str(10**19), str(rng.randrange(9999))))
            return line[:start] + value + line[stop:]
        case 5:  # the head of one line, the tail of another
            return line[:at] + other[rng.randrange(len(other) + 1) :]
        case 6:  # a piece twice
            end = rng.randrange(at, len(line) + 1)
            return line[:end] + line[at:end] + line[end:]
        case 7:  # a piece less
            return line[:at] + line[rng.randrange(at, len(line) + 1) :]
        case _:  # one more or one fewer item of a list
            return line.replace(", ", rng.choice(("", ",", ", 1, ", ",  ")), 1)


def verdict(line: str) -> bool:
    """Whether ``line`` is a trace line, by both readers; AssertionError if they differ in anything."""
    fast = fast_reader().read(line)
    kind = fast_reader().kind(line)
    record: Record | LineError
    try:
        record = parse_line(line)
    except LineError as error:
        record = error
    if isinstance(record, LineError):
        assert fast is None, f"only the fast reader takes {line!r}"
        assert kind is None, line
        assert 1 <= diagnose(record).column <= len(line) + 1, line
        return False
    assert fast is not None, f"only Lark takes {line!r}"
    assert type(fast) is type(record) is kind, line
    assert fast == record, line
    assert format_record(record) == line
    return True


def main() -> None:
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    start = time.perf_counter()
    taken = sum(map(verdict, damaged(lines(), count, seed)))
    seconds = time.perf_counter() - start
    print(f"{count} lines, {taken} taken, {count - taken} refused, no disagreement; {seconds:.0f} s")


if __name__ == "__main__":
    main()
