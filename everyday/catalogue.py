"""Which programs there are, and how each is used."""

from __future__ import annotations

import signal

from everyday.trial import Program
from everyday.witness import EVALUATION, LOAD, PREPARE

PROGRAMS: dict[str, Program] = {
    "plain": Program("programs/plain.py", untold=(LOAD, PREPARE)),
    "epochs": Program("programs/epochs.py", untold=(PREPARE, EVALUATION)),
    "counted": Program("programs/counted.py", untold=(LOAD,)),
    "max steps": Program("programs/max_steps.py", untold=(EVALUATION,)),
    "left at the head": Program("programs/left_at_the_head.py"),
    "evaluated": Program("programs/evaluated.py"),
    "killed and resumed": Program("programs/resumed.py", endings=((signal.SIGKILL, 50),)),
    "interrupted": Program("programs/interrupted.py", endings=((signal.SIGINT, 40),), left_is_done=False),
    "notebook": Program("programs/notebook.py", untold=(PREPARE,), apart=True),
    "prefetched": Program("programs/prefetched.py"),
    "spawned workers": Program("programs/spawned.py"),
    "donated, loss never read": Program("programs/donated.py", ("0",)),
    "donated, loss read every 50": Program("programs/donated.py", ("50",)),
    "donated, loss read each step": Program("programs/donated.py", ("1",)),
    "one behind": Program("programs/one_behind.py", untold=(LOAD,)),
    "dispatched evaluation": Program("programs/dispatched_evaluation.py"),
    "slow loader": Program("programs/slow_loader.py"),
    "changed in place": Program("programs/mutated.py", untold=(LOAD,)),
}
