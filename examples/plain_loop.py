"""A plain training loop, as with any torch optimizer: digits, an MLP, a learning rate that falls as a cosine.

python examples/plain_loop.py    # a few seconds

With τ = 0 (the default) nothing is special: `lr` means what it means in Adam (without it, 1e-3).
Prints the loss on the training batches and the accuracy on images that were not trained on, for every fifth epoch:

    epoch 20: training loss 0.04, test accuracy 98.0%
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from superadam import SuperAdam


def digits():
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]
    return TensorDataset(x[:1297], y[:1297]), (x[1297:], y[1297:])


def main(epochs=20):
    torch.manual_seed(0)
    train_set, (x_test, y_test) = digits()
    loader = DataLoader(train_set, batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
    opt = SuperAdam(model, lr=1e-2, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs * len(loader))

    losses, accuracies = [], []
    for epoch in range(1, epochs + 1):
        model.train()
        total = 0.0
        for x, y in loader:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            scheduler.step()
            total += loss.item()
        model.eval()
        with torch.no_grad():
            accuracies.append((model(x_test).argmax(1) == y_test).float().mean().item())
        losses.append(total / len(loader))
        if epoch % 5 == 0:
            print(f"epoch {epoch}: training loss {losses[-1]:.2f}, test accuracy {accuracies[-1]:.1%}")
    return {"losses": losses, "accuracies": accuracies}


if __name__ == "__main__":
    main()
