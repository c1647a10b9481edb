"""pfl's CIFAR-10 IID benchmark as users write it: a DataLoader each, plain torch, user after user."""

import copy

import task as iid
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    """Run the rounds and report."""
    clock = iid.Clock()
    task = iid.Task.parse()
    data = iid.load(task)
    model = iid.initial_model().to(task.device)
    test = (data.test[0].to(task.device), data.test[1].to(task.device))
    loaders = []
    for examples in data.users:
        dataset = TensorDataset(*examples)
        loaders.append(DataLoader(dataset, batch_size=task.batch, shuffle=True))
    draw = torch.Generator().manual_seed(0)
    accuracies = {}
    for done in range(1, task.rounds + 1):
        cohort = torch.randperm(len(loaders), generator=draw)[: task.cohort].tolist()
        average = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
        for user in cohort:
            local = copy.deepcopy(model).train()
            optimizer = torch.optim.SGD(local.parameters(), lr=task.lr)
            for x, y in loaders[user]:
                optimizer.zero_grad()
                outputs = local(x.to(task.device))
                F.cross_entropy(outputs, y.to(task.device)).backward()
                optimizer.step()
            for name, value in local.state_dict().items():
                average[name] += value / len(cohort)
        model.load_state_dict(average)
        if done % task.test_every == 0:
            accuracies[done] = round(iid.accuracy(model, test), 4)
        if task.device == "cuda":
            torch.cuda.synchronize()
        clock.tick()
    iid.report("naive code", torch.__version__, task, len(loaders), clock, accuracies)


if __name__ == "__main__":
    main()
