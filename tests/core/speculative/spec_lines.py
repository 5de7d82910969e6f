"""Lines of the speculative lanes, built from the few numbers that vary (S4 sections 8, 10, 11)."""

from __future__ import annotations

from testkit import START, Bench, gate, marker, whole

PROPOSER = {"has_proposer": True}


def capacities(*slots: int) -> list[str]:
    """The capacity calls that open a step of the MTP lane."""
    return [f"mtp_slot_draft_capacity({slot})" for slot in slots]


def propose(sid: str, length: int, token: int, n: int, drafts: list[int], mask: str = "false") -> str:
    """One propose; ``sid`` is ``"s1@0"``."""
    where = f"token={token}, pos={length}, n={n}, {sid}:len={length}"
    return f"run_mtp_propose_multi({where}, stream=0, mask={mask}) -> {drafts}"


def bootstrap(sid: str, length: int, fed: int, pick: int, n: int, drafts: list[int]) -> list[str]:
    """A serial greedy bootstrap; ``length`` is the length after its decode."""
    slot = sid.split("@")[1]
    return [
        f"ep_broadcast_cmd_for_seq(seq={slot}, cmd={fed:#x})",
        f"decode(token={fed}, {sid}:len={length}, stream=0)",
        f"argmax_on_device(row=0, stream=0) -> {pick}",
        "save_hidden_for_mtp(0, stream=0)",
        propose(sid, length, pick, n, drafts),
        f"start_checkpoint_async({sid}:len={length})",
    ]


def head(sid: str, base: int, rows: list[int], picks: list[int], call: str | None = None) -> list[str]:
    """The common head of a serial verify at ``base``: sync, words, forward, result."""
    count = len(rows)
    slot = sid.split("@")[1]
    suffix = "" if count == 2 else f"_k{count}"
    accepted = 0
    while accepted < count - 1 and rows[accepted + 1] == picks[accepted]:
        accepted += 1
    return [
        "sync_secondary()",
        f"ep_broadcast_cmd_for_seq(seq={slot}, cmd={0xFFFFFFF0 + count:#x})",
        *[f"ep_broadcast_cmd({token:#x})" for token in rows],
        f"{call or 'decode_verify_graphed' + suffix}(tokens={rows}, {sid}:len={base + count}) -> {picks}",
        f"ep_broadcast_cmd({accepted:#x})",
    ]


def commit(sid: str, length: int, na: int, k: int) -> str:
    """Keep ``na`` of ``k`` rows."""
    return f"commit_accepted_prefix({sid}:len={length}, na={na}, k={k})"


def trim(sid: str, length: int, na: int) -> str:
    """The drafter drops what was not accepted."""
    return f"trim_proposer_state({sid}:len={length}, na={na}, stream=0)"


def save(row: int) -> str:
    """The drafter's input row."""
    return f"save_hidden_for_mtp({row}, stream=0)"


def opening(*prefills: tuple[int, int, int]) -> list[str]:
    """Start-up and tick 1 up to the first tokens: (id, prompt length, first token) per request, slots in order."""
    lines = [*START, *gate(len(prefills)), *marker(1000, 1)]
    for slot, (ident, length, first) in enumerate(prefills):
        lines += whole(ident, slot, length, first)
    return lines


def last_tick(bench: Bench) -> list[str]:
    """The lines of one more tick, after its marker."""
    before = len(bench.calls)
    bench.tick()
    lines = bench.calls[before:]
    return lines[next(index for index, line in enumerate(lines) if line.startswith("-- tick")) + 1 :]
