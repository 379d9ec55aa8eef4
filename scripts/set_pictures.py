"""Pictures of sets whose points are curves and plans: `Ordered` and `DoublyStochastic`.

Drawn by `python scripts/pictures.py ordered birkhoff transport`.
"""

import torch
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

import style
from superadam import SuperAdam, sets


def _numbers(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ordered():
    """The nearest increasing and the nearest convex curve to noisy points, where large ones weigh more."""
    n = 40
    t = torch.linspace(0, 1, n, dtype=torch.float64)
    d = 10 ** (1.2 * torch.rand(n, generator=torch.Generator().manual_seed(2), dtype=torch.float64) - 0.6)
    noise = 0.12 * _numbers(1, n) / d.sqrt()
    curves = {
        'Ordered("increasing", 0, 1)': (sets.Ordered(low=0.0, high=1.0), torch.sigmoid(9 * (t - 0.55)) + noise),
        'Ordered("convex")': (sets.Ordered("convex"), 3.2 * (t - 0.4).square() - 0.05 + noise),
    }
    fig, panels = style.panels(1, 2, 2.7)
    for panel, (name, (part, y)) in zip(panels, curves.items(), strict=True):
        x, euclidean = part.argmin(y, d), part.argmin(y, 1.0)
        panel.scatter(t, y, s=14 * d, color=style.GREY, alpha=0.6, linewidth=0)
        (plain,) = panel.plot(t, euclidean, "--", color=style.RED, linewidth=1.2)
        (exact,) = panel.plot(t, x, color=style.GREEN, linewidth=2.2)
        panel.set_title(name)
        panel.set(xticks=[], yticks=[0, 1])
    shown = ["nearest in the metric d (the size of the points)", "nearest in the Euclidean one"]
    fig.legend([exact, plain], shown, loc="outside lower center", ncols=2, fontsize=8.5)
    style.save(fig, style.IMG / "ordered.svg")


def assignment(shown=(0, 12, 300)):
    """Doubly stochastic matrices on the way to a permutation: the pairs with the least total cost, from noisy costs."""
    n = 12
    cost = torch.rand(n, n, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    P = torch.full((n, n), 1 / n, dtype=torch.float64, requires_grad=True)
    opt = SuperAdam([P], lr=0.03, constraint=sets.DoublyStochastic())
    seen = {}
    for step in range(max(shown) + 1):
        if step in shown:
            seen[step] = P.detach().clone()
        P.grad = cost + 0.1 * _numbers(100 + step, n, n)
        opt.step()
    return cost, seen


def birkhoff():
    _, seen = assignment()
    fig, panels = style.panels(1, 3, 2.3)
    for panel, (step, P) in zip(panels, seen.items(), strict=True):
        _tiles(panel, P)
        panel.set_title(f"after {step} steps" if step else "at the start")
    style.save(fig, style.IMG / "birkhoff.svg")


def _tiles(panel, P):
    """Squares as dark as the elements are large: clear on light and on dark pages."""
    n, m = P.shape
    for i, j in torch.cartesian_prod(torch.arange(n), torch.arange(m)).tolist():
        if (share := float(P[i, j])) > 1e-3:
            panel.add_patch(Rectangle((j, i), 1, 1, facecolor=(*to_rgb(style.GREEN), min(share, 1.0)), linewidth=0))
    panel.set(xlim=(0, m), ylim=(n, 0), aspect="equal", xticks=[], yticks=[])
    panel.grid(False)
    for side in panel.spines.values():
        side.set_visible(True)


def plans():
    """Masses a and places with shares b in the plane: their costs, the plan that goes everywhere, and a cheap one."""
    places = torch.rand(2, 14, 2, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    a, b = (torch.softmax(0.8 * _numbers(seed, 14), 0) for seed in (8, 9))
    cost = (places[0, :, None] - places[1]).square().sum(-1)
    P = (a[:, None] * b).requires_grad_()
    start = P.detach().clone()
    opt = SuperAdam([P], lr=0.01, constraint=sets.DoublyStochastic(a, b))
    for _ in range(300):
        P.grad = cost.clone()
        opt.step()
    return places, a, b, cost, start, P.detach()


def transport():
    places, a, b, cost, *both = plans()
    fig, panels = style.panels(1, 2, 3.0)
    for panel, name, plan in zip(panels, ("at the start", "after 300 steps"), both, strict=True):
        for i, j in torch.cartesian_prod(torch.arange(14), torch.arange(14)).tolist():
            if plan[i, j] > 1e-4:
                ends = torch.stack([places[0, i], places[1, j]]).T
                panel.plot(*ends, color=style.GREEN, linewidth=60 * float(plan[i, j]), alpha=0.7, zorder=1)
        for points, mass, color, label in ((places[0], a, style.RED, "masses"), (places[1], b, style.BLUE, "places")):
            dots = panel.scatter(*points.T, s=600 * mass, color=color, label=label, zorder=2, linewidth=0)
            dots.set_alpha(0.9)
        panel.set_title(f"{name}: cost {float((plan * cost).sum()):.3f}")
        panel.set(xticks=[], yticks=[])
    handles, labels = panels[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=2, markerscale=0.5)
    style.save(fig, style.IMG / "transport.svg")
