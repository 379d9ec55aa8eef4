"""Calibrated probabilities: isotonic regression on minibatches, against scikit-learn's on all data.

python examples/calibration.py    # a few seconds

Naive Bayes says whether a digit is even, and is far too sure of itself. Its scores are cut into 40 bins, and x_k is the
probability of "even" in bin k: minimise the mean of (x_k - even)² over 0 ≤ x_1 ≤ … ≤ x_40 ≤ 1, which is `sets.Ordered`.
Prints the Brier score on other digits before and after (0.27 and 0.12), and how far x is from scikit-learn's isotonic
regression: 0.016 at most.
"""

import torch
from sklearn.datasets import load_digits
from sklearn.isotonic import IsotonicRegression
from sklearn.naive_bayes import GaussianNB

from superadam import SuperAdam, sets

BINS = 40


def scores(seed=0):
    """Log-odds and labels of the digits to calibrate with, and of those to test on."""
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(seed)).numpy()
    images, even = images[order], digits[order] % 2 == 0
    model = GaussianNB().fit(images[:600], even[:600])
    log_p = model.predict_log_proba(images[600:])
    odds, label = torch.tensor(log_p[:, 1] - log_p[:, 0]), torch.tensor(even[600:], dtype=torch.float64)
    return (odds[:700], label[:700]), (odds[700:], label[700:])


def main(steps=2000, batch=100):
    (odds, label), (new_odds, new_label) = scores()
    edges = odds.quantile(torch.arange(1, BINS, dtype=torch.float64) / BINS)
    which, new_which = torch.bucketize(odds, edges), torch.bucketize(new_odds, edges)
    x = torch.full((BINS,), 0.5, dtype=torch.float64, requires_grad=True)
    opt = SuperAdam([x], lr=0.01, matrix="SecondMoment", schedule="Paper", constraint=sets.Ordered(low=0.0, high=1.0))
    order = torch.Generator().manual_seed(1)
    for _ in range(steps):
        rows = torch.randint(len(label), (batch,), generator=order)
        opt.zero_grad()
        (x[which[rows]] - label[rows]).square().mean().backward()
        opt.step()
    x = x.detach()
    isotonic = IsotonicRegression(y_min=0, y_max=1).fit(which.numpy(), label.numpy())
    exact = torch.from_numpy(isotonic.predict(torch.arange(BINS).numpy()))
    distance = (x - exact).abs().max().item()
    gap = ((x - exact)[which].square()).mean().item()
    brier = {
        "naive Bayes": (torch.sigmoid(new_odds) - new_label).square().mean().item(),
        "calibrated": (x[new_which] - new_label).square().mean().item(),
        "scikit-learn": (exact[new_which] - new_label).square().mean().item(),
    }
    for name, score in brier.items():
        print(f"{name:13s} Brier score {score:.4f}")
    print(f"from isotonic regression by at most {distance:.4f}, outside of the set by {opt.feasibility():.0e}")
    curves = x.tolist(), exact.tolist()
    return {"brier": brier, "distance": distance, "gap": gap, "violation": opt.feasibility(), "curves": curves}


if __name__ == "__main__":
    main()
