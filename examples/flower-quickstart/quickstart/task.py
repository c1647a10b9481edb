"""Model, data and training: plain PyTorch, nothing of evenfed."""

from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A small network on 8 x 8 images."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x):
        return self.layers(x)


digits = cache(load_digits)  # read once


@cache
def partitions(count):
    """Row numbers of each client: the digits fall unequally over clients (Dirichlet, 0.2)."""
    targets = digits().target
    draw = np.random.default_rng(7)
    rows = [[] for _ in range(count)]
    for digit in range(10):
        of_digit = draw.permutation(np.flatnonzero(targets == digit))
        shares = draw.dirichlet([0.2] * count)
        cuts = (np.cumsum(shares)[:-1] * len(of_digit)).astype(int)
        for client, part in enumerate(np.split(of_digit, cuts)):
            rows[client].extend(part.tolist())
    return [np.random.default_rng(client).permutation(r) for client, r in enumerate(rows)]


def load_data(partition_id, num_partitions, batch_size):
    """Loaders for 75 % of a client's images, and for the others."""
    images = torch.tensor(digits().data / 16, dtype=torch.float32)
    labels = torch.tensor(digits().target)
    rows = partitions(num_partitions)[partition_id]
    cut = 3 * len(rows) // 4
    train = TensorDataset(images[rows[:cut]], labels[rows[:cut]])
    test = TensorDataset(images[rows[cut:]], labels[rows[cut:]])
    return DataLoader(train, batch_size=batch_size, shuffle=True), DataLoader(test, batch_size=batch_size)


def train(net, trainloader, epochs, lr):
    """Train, and return the loss averaged over the batches on the way."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for images, labels in trainloader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (epochs * len(trainloader))


def test(net, testloader):
    """Loss and accuracy on a client's test images."""
    net.eval()
    correct, loss = 0, 0.0
    with torch.no_grad():
        for images, labels in testloader:
            outputs = net(images)
            loss += nn.functional.cross_entropy(outputs, labels, reduction="sum").item()
            correct += (outputs.argmax(1) == labels).sum().item()
    return loss / len(testloader.dataset), correct / len(testloader.dataset)
