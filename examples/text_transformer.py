"""Text: a small transformer says what kind of line it reads, over five authors; inputs are a dict with a mask.

Run it: python examples/text_transformer.py (half a minute on 2 cores). The text is generated: every author (a client)
asks, orders and tells in words of their own, so a model for all of them must not forget the rare ones.
"""

import random

import torch
from torch import Tensor, nn

import evenfed

LENGTH = 8  # words of a line; shorter lines are padded, and the mask says where
KINDS = ["question", "order", "statement"]
OPENINGS = {
    "question": ["who saw", "where is", "why fears"],
    "order": ["bring me", "fetch us", "hide"],
    "statement": ["we met", "i found", "they keep"],
}
AUTHORS = {
    "sailor": (["the captain", "a rope", "the tide", "an anchor"], 150),
    "farmer": (["the plough", "a calf", "the barley", "an ox"], 120),
    "clerk": (["the ledger", "a seal", "the warrant", "an heir"], 80),
    "miner": (["the shaft", "a lamp", "the seam", "an ore"], 40),
    "hermit": (["the silence", "a psalm", "the cold", "an owl"], 20),
}


def lines(author: str, draw: random.Random) -> list[tuple[str, int]]:
    """Lines of one author with their kinds; the hermit asks and orders in statements' words."""
    things, count = AUTHORS[author]
    written = []
    for _ in range(count):
        kind = draw.randrange(len(KINDS))
        opening = draw.choice(OPENINGS[KINDS[kind]])
        if author == "hermit":
            kind = (kind + 1) % len(KINDS)
        written.append((f"{opening} {draw.choice(things)} {draw.choice(['today', 'again', ''])}", kind))
    return written


def encoded(written: list[tuple[str, int]], words: dict[str, int]) -> tuple[dict[str, Tensor], Tensor]:
    """Word numbers [n, LENGTH] with 0 for padding, the mask of real words, and the kinds."""
    tokens = torch.zeros(len(written), LENGTH, dtype=torch.int64)
    for row, (line, _) in enumerate(written):
        for column, word in enumerate(line.split()):
            tokens[row, column] = words.setdefault(word, len(words) + 1)
    kinds = torch.tensor([kind for _, kind in written])
    return {"tokens": tokens, "mask": tokens > 0}, kinds


class Reader(nn.Module):
    """One transformer layer; the mean over the real words says the kind."""

    def __init__(self, words: int, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words + 1, width)
        self.position = nn.Parameter(torch.zeros(LENGTH, width))
        self.layer = nn.TransformerEncoderLayer(width, nhead=2, dim_feedforward=32, batch_first=True)
        self.head = nn.Linear(width, len(KINDS))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        embedded = self.embedding(tokens) + self.position
        read = self.layer(embedded, src_key_padding_mask=~mask)
        real = mask[:, :, None].to(read.dtype)
        return self.head((read * real).sum(1) / real.sum(1))


def main(rounds: int = 40) -> evenfed.Comparison:
    """Compare two algorithms on five authors."""
    draw = random.Random(0)
    words: dict[str, int] = {}
    clients = []
    for author in AUTHORS:
        written = lines(author, draw)
        half = len(written) // 2
        train = encoded(written[:half], words)
        test = encoded(written[half:], words)
        clients.append(evenfed.Client(train=train, test=test, name=author))
    comparison = evenfed.compare(
        lambda: Reader(len(words)),
        clients,
        ["fedavg", "semi_vred[beta=1,smooth=0.25]"],
        seeds=1,
        noise_floor=False,
        rounds=rounds,
        lr=0.01,
        batch_size=10,
        optimizer="adam",
        clip=1.0,
    )
    print(comparison)
    for label, (result,) in comparison.results.items():
        print(f"{label}: hermit {100 * result.accuracy[-1]:.0f} %, {result.engine}")
    return comparison


if __name__ == "__main__":
    main()
