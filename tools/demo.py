"""The two-minute demonstration behind ``make demo``: the golden suite, then a planted change and what it looks like.

The change is planted in a running copy of the scheduler, and the check of it works on copies of a few goldens in a
temporary folder; nothing of the project is touched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHOWN = ("plain_decode", "preempt_requeue", "spill_swap_out_in")

PLANTED = """
import sys
from metrale.core.decode import launch
from metrale.cli.main import run_cli

def choose_victim(s):
    return max(s.active, key=lambda row: row.seq.slot)

launch.choose_victim = choose_victim
sys.exit(run_cli(sys.argv[1:]))
"""


def main() -> int:
    """Run both parts; 0 if the suite passes and the planted change is found."""
    say("1. The golden suite: every scenario runs and must give the trace beside it, byte for byte.")
    suite = metrale(["-m", "metrale"], "check", "golden", cwd=ROOT)
    say("2. Somebody changes the scheduler: when the KV pool runs dry, the row with the highest slot is preempted.")
    with tempfile.TemporaryDirectory(prefix="metrale-demo-") as folder:
        for name in SHOWN:
            for suffix in (".toml", ".trace"):
                shutil.copy(ROOT / "golden" / f"{name}{suffix}", folder)
        changed = metrale(["-c", PLANTED], "check", *(f"{name}.toml" for name in SHOWN), cwd=Path(folder))
    if (suite, changed) != (0, 1):
        say(f"The demonstration went wrong: the suite ended with {suite} (0 expected), the change with {changed} (1).")
        return 1
    say("The change was found, with its tick and its arguments. README.md shows how to write a scenario of your own.")
    return 0


def metrale(program: list[str], *arguments: str, cwd: Path) -> int:
    """Run the program as a user would; its output goes where ours goes."""
    print(f"$ metrale {' '.join(arguments)}", flush=True)
    environment = {key: value for key, value in os.environ.items() if key != "CI"}
    command = [sys.executable, *program, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, check=False).returncode


def say(text: str) -> None:
    """A line of the demonstration itself."""
    print(f"\n{text}\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
