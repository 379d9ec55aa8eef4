"""Paths in the plane on a disc and on a triangle: the exact step against Euclidean projection.

python -m research.pictures paths    # draws paths.svg, and prints where they end
"""

import torch
from matplotlib.patches import Circle, Polygon

import style
from research.exact_step.exact_step import EXACT, HERE, PROJECTED, Quadratic, tuned
from superadam import sets
from trajectories import bare, contours, marked

STEPS = 500
# A point of the simplex in the plane: the corners of a triangle with sides of length 1.
CORNERS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 0.75**0.5]], dtype=torch.float64)


def doubles(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def draw():
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
    style.save(fig, HERE / "paths.svg")


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
