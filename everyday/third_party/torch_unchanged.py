"""Like PyTorch's MNIST example: epochs over a DataLoader, evaluations, saves. No line of it knows otel_goodput."""

import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from everyday.chores import MS
from everyday.witness import EVALUATION, LOAD, SAVE, STEP, witness


class Images(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(1 * MS)
        return torch.rand(784), index % 10


def watched(loader):
    """The batches, and what happened between them, for the witness."""
    batches = iter(loader)
    while True:
        with witness.of(LOAD):
            batch = next(batches, None)
        if batch is None:
            return
        witness.number += 1
        key = witness.begin(STEP)
        yield batch
        witness.end(key)


def main():
    loader, held_out = DataLoader(Images(160), batch_size=8, shuffle=True), DataLoader(Images(40), batch_size=8)
    model = torch.nn.Sequential(torch.nn.Linear(784, 600), torch.nn.ReLU(), torch.nn.Linear(600, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(4):
        model.train()
        for x, y in watched(loader):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            time.sleep(40 * MS)
            optimizer.step()
        with witness.of(EVALUATION):
            model.eval()
            with torch.no_grad():
                for x, _ in held_out:
                    model(x).argmax(1)
                    time.sleep(20 * MS)
        with witness.of(SAVE):
            torch.save(model.state_dict(), Path("model.pt"))


if __name__ == "__main__":
    with witness.life(of_process=True):
        main()
