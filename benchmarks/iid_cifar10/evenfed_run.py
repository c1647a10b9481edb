"""pfl's CIFAR-10 IID benchmark in evenfed. It also measures each drawn user's training loss in every round."""

import numpy as np
import task as iid
import torch

import evenfed


def main() -> None:
    """Run the rounds and report."""
    clock = iid.Clock()
    task = iid.Task.parse()
    data = iid.load(task)
    count = len(data.users)
    # the test set is dealt to the users; its accuracy is the mean over all of it
    test_images = np.array_split(np.arange(len(data.test[1])), count)
    clients = []
    for examples, rows in zip(data.users, test_images, strict=True):
        part = torch.from_numpy(rows)
        test = (data.test[0][part], data.test[1][part])
        clients.append(evenfed.Client(examples, test))
    sizes = np.array([len(rows) for rows in test_images])
    accuracies = {}

    def after_round(progress: evenfed.Progress) -> None:
        clock.tick()
        per_user = progress.record.accuracy
        if per_user is not None:
            known = sizes > 0
            accuracies[len(clock.ends)] = round(float(np.average(per_user[known], weights=sizes[known])), 4)

    result = evenfed.train(
        iid.initial_model(),
        clients,
        "fedavg",
        rounds=task.rounds,
        lr=task.lr,
        batch_size=task.batch,
        participation=task.cohort,
        evaluate_every=task.test_every,
        device=task.device,
        precision=task.precision,
        callbacks=[after_round],
    )
    system = f"evenfed, {result.engine}"
    iid.report(system, evenfed.__version__, task, count, clock, accuracies)


if __name__ == "__main__":
    main()
