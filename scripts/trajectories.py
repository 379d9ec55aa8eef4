"""Paths in the plane: several compositions on two functions, and the exact step against Euclidean projection."""

import torch
from matplotlib.patches import Circle, Polygon

import style
from exact_step import EXACT, PROJECTED, Quadratic, tuned
from superadam import SuperAdam, create, sets

# ------------------------------------------------------------------------------------------------ several compositions

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
    style.save(fig, "trajectories")


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


# ------------------------------------------------------------------------------------------------ on a set

STEPS = 500
# A point of the simplex in the plane: the corners of a triangle with sides of length 1.
CORNERS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 0.75**0.5]], dtype=torch.float64)


def doubles(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def draw_constrained():
    fig, (left, right) = style.panels(1, 2, 3.5)
    ball, f = sets.L2Ball(1.0), Quadratic(doubles(10.0, 0.3), doubles(0.9, 1.5))
    left.set(title="on the l2 ball", xlim=(-1.1, 1.3), ylim=(-1.1, 1.65))
    left.add_patch(Circle((0, 0), 1, facecolor="none", edgecolor=style.INK, linewidth=1.2))
    contours(left, f, (-1.1, 1.3, -1.1, 1.65))
    left.plot(*f.a, "x", color=style.INK, markersize=7)
    race(left, f, ball, doubles(-0.9, -0.3), torch.eye(2, dtype=torch.float64))

    simplex, f = sets.Simplex(), Quadratic(doubles(10.0, 1.0, 0.1), doubles(0.3, 0.9, 1.5))
    right.set(title="on the simplex, in three dimensions", xlim=(-0.05, 1.05), ylim=(-0.13, 1.0))
    triangle = right.add_patch(Polygon(CORNERS, facecolor="none", edgecolor=style.INK, linewidth=1.2))
    to_simplex = torch.linalg.inv(torch.cat([CORNERS, torch.ones(3, 1, dtype=torch.float64)], 1))

    def on_triangle(p):
        return f(torch.cat([p, torch.ones(len(p), 1, dtype=torch.float64)], 1) @ to_simplex)

    contours(right, on_triangle, (0.0, 1.0, 0.0, 0.87)).set_clip_path(triangle)
    race(right, f, simplex, doubles(0.85, 0.05, 0.1), CORNERS)
    fig.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    style.save(fig, "constrained")


def race(panel, f, constraint, x_1, plane):
    """Both methods from x_1, in the plane that the columns of `plane` lead to."""
    print(panel.get_title())
    best = f.minimiser(constraint)
    for method, color in ((EXACT, style.GREEN), (PROJECTED, style.RED)):
        gamma, points = tuned(method, f, constraint, STEPS, x_1=x_1)
        points = torch.cat([x_1[None], points])
        panel.plot(*(points @ plane).T, color=color, linewidth=1.4, label=method)
        panel.plot(*(points[-1] @ plane), "o", color=color, markersize=6)
        print(f"  {method}: γ = {gamma:g}, f - f* at the end {f(points[-1]) - f(best):.2g}")
    marked(panel, x_1 @ plane, best @ plane)
    bare(panel)
    panel.set_aspect("equal")
