"""PyTorch with a device that a package registers, as for TPUs and NPUs: the order of its work is unknown."""

import time

import torch
from torch.utils import backend_registration

import otel_goodput as goodput
from everyday.chores import MS, Batches
from everyday.witness import witness

register = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
if register is None:  # PyTorch before 2.10 registers no backend in Python, but gives its device a name
    torch.utils.rename_privateuse1_backend("made_up")
else:
    register("made_up")
goodput.configure("torch-registered")
with witness.life(), goodput.job():
    for _ in goodput.steps(Batches(20)):
        time.sleep(5 * MS)
print(goodput.report())
