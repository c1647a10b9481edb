"""Adapters on a frozen Hugging Face encoder, trained over clinics that write differently.

    pip install 'evenfed' transformers
    python examples/huggingface_adapters.py

Ten clinics label short notes as urgent or not. Two of them are rural and say it in words of their own, so that FedAvg
serves them worst. The encoder is frozen and stored once; each client trains adapters of rank 4 in the attention and the
classifier. The notes are made up here, and the encoder starts from random weights so that nothing is downloaded: in its
place put `DistilBertForSequenceClassification.from_pretrained(...)` and your own tokenizer. Takes seconds on a CPU.
"""

import random

import torch
from torch import Tensor, nn
from transformers import DistilBertConfig, DistilBertForSequenceClassification

import evenfed

URGENT = "acute severe bleeding collapse unconscious seizure"
CALM = "routine stable checkup renewal mild refill"
RURAL_URGENT = "poorly faint grey fallen fitting gushing"
RURAL_CALM = "grand usual jab tablets chat tired"
FILLER = "patient reports since yesterday with known history of and was seen by nurse today at home after the"
WORDS = ["[pad]", *f"{URGENT} {CALM} {RURAL_URGENT} {RURAL_CALM} {FILLER}".split()]
LENGTH = 12


class Adapted(nn.Module):
    """A frozen linear layer and, added to it, a trained product of low rank."""

    def __init__(self, frozen: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.frozen = frozen
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)  # at first, nothing is added

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.up(self.down(x))


def adapted(model: nn.Module) -> nn.Module:
    """Everything frozen but the adapters of queries and values, and the classifier."""
    model.requires_grad_(False)
    for attention in list(model.modules()):
        for name in ("q_lin", "v_lin"):
            if hasattr(attention, name):
                setattr(attention, name, Adapted(getattr(attention, name)))
    model.pre_classifier.requires_grad_(True)
    model.classifier.requires_grad_(True)
    return model


def encoder() -> nn.Module:
    """A small one of DistilBERT's kind; a trained one would be loaded here."""
    size = {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 2, "max_position_embeddings": LENGTH}
    config = DistilBertConfig(vocab_size=len(WORDS), num_labels=2, dropout=0.0, attention_dropout=0.0, **size)
    torch.manual_seed(0)
    return DistilBertForSequenceClassification(config)


def note(draw: random.Random, is_urgent: bool, is_rural: bool) -> list[int]:
    """Word numbers of one made-up note."""
    urgent, calm = (RURAL_URGENT, RURAL_CALM) if is_rural else (URGENT, CALM)
    telling = draw.choices((urgent if is_urgent else calm).split(), k=2)
    words = telling + draw.choices(FILLER.split(), k=draw.randint(3, LENGTH - 2))
    draw.shuffle(words)
    return [WORDS.index(word) for word in words]


def examples(draw: random.Random, count: int, is_rural: bool) -> tuple[dict[str, Tensor], Tensor]:
    """Notes as a tokenizer gives them: input_ids padded to one length, and an attention mask."""
    ids = torch.zeros(count, LENGTH, dtype=torch.int64)
    labels = torch.zeros(count, dtype=torch.int64)
    for row in range(count):
        labels[row] = draw.randint(0, 1)
        words = note(draw, bool(labels[row]), is_rural)
        ids[row, : len(words)] = torch.tensor(words)
    return {"input_ids": ids, "attention_mask": ids.ne(0).long()}, labels


def clinics() -> list[evenfed.Client]:
    """Eight clinics in town, and two smaller ones in the country."""
    draw = random.Random(0)
    clients = []
    for k in range(10):
        is_rural = k >= 8
        train = examples(draw, 16 if is_rural else 48, is_rural)
        test = examples(draw, 40, is_rural)
        clients.append(evenfed.Client(train, test, name=f"{'rural' if is_rural else 'town'} {k}"))
    return clients


def main() -> None:
    for algorithm in ("fedavg", "afl"):
        model = adapted(encoder())
        result = evenfed.train(
            model, clinics(), algorithm, rounds=12, lr=0.02, batch_size=16, optimizer="adamw", local_epochs=2
        )
        rural = result.accuracy[8:].mean()
        print(f"{result.label}: all clinics {100 * result.fairness.mean:.0f} %, rural {100 * rural:.0f} %")
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    total = sum(parameter.numel() for parameter in model.parameters())
    print(f"trained: {trained} of {total} parameters; {result.engine}")


if __name__ == "__main__":
    main()
