"""Paths in the plane: several compositions on two functions."""

import torch

import style
from superadam import SuperAdam, create

EVALUATIONS, BATCH = 200, 8
GRID = [10.0 ** (i / 3) for i in range(-9, 1)]
COMPOSITIONS = {
    "SGD with momentum": lambda x, lr: create("sgd", x, lr=lr),
    "Adam": lambda x, lr: create("adam", x, lr=lr),
    "case 1, τ = 0": lambda x, lr: SuperAdam(x, lr=lr, schedule="Paper"),
    "case 1, τ = 1": lambda x, lr: SuperAdam(x, lr=lr, schedule="Paper", tau=1.0),
}


class Rosenbrock:
    """(1 - x)² + 10 (y - x²)², without noise: a curved valley."""

    title, start, minimum = "Rosenbrock's function", (-1.2, 1.0), (1.0, 1.0)
    window = (-1.75, 1.6, -0.75, 2.3)

    def __call__(self, x, rows=slice(None)):
        return (1 - x[..., 0]) ** 2 + 10 * (x[..., 1] - x[..., 0] ** 2) ** 2

    def batch(self, generator):
        return slice(None)


class LeastSquares:
    """Two weights, two inputs that go together: curvatures of about 9 and 0.09. Batches of 8 rows of 200."""

    title, start, minimum = "least squares, batches of 8", (1.1, 1.5), (0.0, 0.0)
    window = (-1.2, 1.3, -1.1, 1.75)

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(200, 2, generator=generator, dtype=torch.float64)
        self.a = inputs @ torch.tensor([[3.0, 0.5], [0.0, 0.3]], dtype=torch.float64)
        noise = torch.randn(200, generator=generator, dtype=torch.float64)
        self.b = noise - self.a @ torch.linalg.lstsq(self.a, noise[:, None]).solution[:, 0]  # the best weights are 0

    def __call__(self, x, rows=slice(None)):
        return 0.5 * (x @ self.a[rows].T - self.b[rows]).square().mean(-1)

    def batch(self, generator):
        return torch.randint(len(self.b), (BATCH,), generator=generator)


def path(make, f, lr, seed, evaluations=EVALUATIONS):
    """The points after each step, for so many gradients: half as many steps if each takes two."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.nn.Parameter(torch.tensor(f.start, dtype=torch.float64))
    opt, points = make([x], lr), [x.detach().clone()]
    while opt.gradient_evaluations < evaluations:
        rows = f.batch(generator)

        def closure(rows=rows):
            opt.zero_grad()
            loss = f(x, rows)
            loss.backward()
            return loss

        opt.step(closure)
        points.append(x.detach().clone())
    opt.flush()
    return torch.stack([*points, x.detach()])


def best_path(make, f):
    """With the learning rate that has the smallest mean of f over the path, of those that stay in the picture; on other
    batches."""
    left, right, bottom, top = f.window

    def score(lr):
        points = path(make, f, lr, seed=1)
        x, y = points.T
        inside = ((left < x) & (x < right) & (bottom < y) & (y < top)).all()
        return f(points).mean().item() if inside else float("inf")

    lr = min(GRID, key=score)
    return lr, path(make, f, lr, seed=2)


def draw():
    fig, panels = style.panels(1, 2, 3.7)
    colors = (style.GREY, style.OCHRE, style.RED, style.GREEN)
    for panel, f in zip(panels, (Rosenbrock(), LeastSquares()), strict=True):
        contours(panel, f, f.window)
        print(f.title)
        for (name, make), color in zip(COMPOSITIONS.items(), colors, strict=True):
            lr, points = best_path(make, f)
            panel.plot(*points.T, color=color, linewidth=1.4, label=name)
            panel.plot(*points[-1], "o", color=color, markersize=5)
            print(f"  {name}: lr {lr:.3g}, f at the end {f(points[-1]).item():.3g}")
        marked(panel, f.start, f.minimum)
        panel.set(title=f.title, xlim=f.window[:2], ylim=f.window[2:])
        bare(panel)
    handles = panels[0].get_legend_handles_labels()
    fig.legend(*handles, loc="outside lower center", ncols=4, fontsize=9)
    style.save(fig, style.IMG / "trajectories.svg")


def contours(panel, f, window, count=14):
    x, y = (torch.linspace(*window[i : i + 2], 200, dtype=torch.float64) for i in (0, 2))
    X, Y = torch.meshgrid(x, y, indexing="xy")
    values = f(torch.stack([X, Y], -1).reshape(-1, 2)).reshape(X.shape)
    values = (values - values.min() + 1e-3).log()
    return panel.contour(X, Y, values, levels=count, colors=style.FAINT, linewidths=0.8, linestyles="solid", zorder=0)


def marked(panel, start, minimum):
    panel.plot(*start, "s", color=style.INK, markersize=5)
    panel.plot(*minimum, "*", color=style.INK, markersize=11, zorder=5)


def bare(panel):
    panel.grid(visible=False)
    panel.set(xticks=[], yticks=[])
    for side in ("left", "bottom"):
        panel.spines[side].set_visible(False)
