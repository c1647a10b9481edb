"""Federated averaging as users write it: a DataLoader each, plain fp32 torch, client after client."""

import copy
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

Data = tuple[torch.Tensor, torch.Tensor]


def round_seconds(model: nn.Module, clients: list[Data], lr: float, batch_size: int, device: str) -> float:
    """Seconds of one round: every client's loss, one local epoch each, and the average of the models."""
    model = model.to(device)
    loaders = [
        DataLoader(TensorDataset(*data), batch_size=batch_size, shuffle=True) for data in clients if len(data[0])
    ]
    one_round(model, loaders[:2], lr, device)  # warm up
    torch.cuda.synchronize()
    began = time.perf_counter()
    one_round(model, loaders, lr, device)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def one_round(model: nn.Module, loaders: list[DataLoader[Data]], lr: float, device: str) -> None:
    total = sum(len(loader.dataset) for loader in loaders)  # type: ignore[arg-type]
    average = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    for loader in loaders:
        model.eval()
        with torch.no_grad():
            sum(F.cross_entropy(model(x.to(device)), y.to(device), reduction="sum").item() for x, y in loader)
        local = copy.deepcopy(model).train()
        optimizer = torch.optim.SGD(local.parameters(), lr=lr)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(local(x.to(device)), y.to(device)).backward()
            optimizer.step()
        for name, value in local.state_dict().items():
            average[name] += value * (len(loader.dataset) / total)  # type: ignore[arg-type]
    model.load_state_dict(average)
