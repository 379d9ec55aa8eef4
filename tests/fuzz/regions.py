"""Random sets and penalties with the points that they are tried on. They are drawn so that none is empty."""

import math

import torch
from hypothesis import strategies as st

from superadam import penalties, sets


class Sizes:
    """Random numbers of a tensor's shape, and the length r that a set has."""

    def __init__(self, shape, r, dim, seed):
        self.shape, self.r, self.dim = shape, r, dim
        self.gen = torch.Generator().manual_seed(seed)
        self.square = len(shape) == 2 and shape[0] == shape[1]

    def normal(self, *shape):
        return torch.randn(shape or self.shape, generator=self.gen, dtype=torch.float64)

    def uniform(self, *shape):
        return torch.rand(shape or self.shape, generator=self.gen, dtype=torch.float64)

    def along(self):
        """Return the number of elements of a slice."""
        return math.prod(self.shape) if self.dim is None else self.shape[self.dim]

    def rows(self, n):
        return self.normal(n, math.prod(self.shape))


SETS = {
    "Box": lambda s: sets.Box(-s.r * s.uniform(), s.r * s.uniform()),
    "Box from below": lambda s: sets.Box(lo=-s.r),
    "NonNegative": lambda s: sets.NonNegative(),
    "LInfBall": lambda s: sets.LInfBall(s.r),
    "L1Ball": lambda s: sets.L1Ball(s.r, dim=s.dim),
    "L2Ball": lambda s: sets.L2Ball(s.r, center=s.r * s.normal(), dim=s.dim),
    "Simplex": lambda s: sets.Simplex(s.r, dim=s.dim),
    "CappedSimplex": lambda s: sets.CappedSimplex(s.r, 1.5 * s.r / s.along(), dim=s.dim, low=0.2 * s.r / s.along()),
    "BoxSection": lambda s: sets.BoxSection(s.normal(), 0.0, -s.r, 2 * s.r, dim=s.dim),
    "Ordered": lambda s: sets.Ordered("decreasing", -s.r, dim=-1),
    "GroupL1Ball": lambda s: sets.GroupL1Ball(s.r, group=-1),
    "L1InfBall": lambda s: sets.L1InfBall(s.r, group=-1),
    "SecondOrderCone": lambda s: sets.SecondOrderCone(dim=-1),
    "Halfspace": lambda s: sets.Halfspace(s.normal(), s.r * float(s.normal(1))),
    "Hyperplane": lambda s: sets.Hyperplane(s.normal(), s.r * float(s.normal(1))),
    "Sphere": lambda s: sets.Sphere(s.r, dim=s.dim),
    "Affine": lambda s: sets.Affine(s.rows(2), s.r * s.normal(2)),
    "Polyhedron": lambda s: sets.Polyhedron(s.rows(3), s.r * s.uniform(3)),
    "DoublyStochastic": lambda s: sets.DoublyStochastic(s.r),
    "SpectralBall": lambda s: sets.SpectralBall(s.r),
    "NuclearBall": lambda s: sets.NuclearBall(s.r),
    "PSD": lambda s: sets.PSD(),
    "Spectrahedron": lambda s: sets.Spectrahedron(s.r),
    "Correlation": lambda s: sets.Correlation(),
    "Intersection": lambda s: sets.Intersection(sets.L1Ball(2 * s.r), sets.L2Ball(s.r)),
    "Intersection of three": lambda s: sets.Intersection(
        sets.Simplex(s.r, dim=None), sets.Box(0, 1.5 * s.r / math.prod(s.shape)), sets.Halfspace(s.normal().abs(), 1e9)
    ),
}
PENALTIES = {
    "L1": lambda s: penalties.L1(s.r),
    "L2": lambda s: penalties.L2(s.r),
    "ElasticNet": lambda s: penalties.ElasticNet(s.r, 0.1),
    "Huber": lambda s: penalties.Huber(s.r, delta=0.3),
    "GroupLasso": lambda s: penalties.GroupLasso(s.r, dim=s.dim),
    "Nuclear": lambda s: penalties.Nuclear(s.r),
    "OverlappingGroupLasso": lambda s: penalties.OverlappingGroupLasso(s.r, ((0, 1, 2), (2, 3, 4), (4, 0))),
    "TotalVariation": lambda s: penalties.TotalVariation(s.r, dim=-1),
}
OF_MATRICES = ("DoublyStochastic", "SpectralBall", "NuclearBall", "Nuclear")
OF_SQUARES = ("PSD", "Spectrahedron", "Correlation")
LARGE = ("Affine", "Polyhedron", "OverlappingGroupLasso")


@st.composite
def regions(draw, kinds):
    """Draw the name of a set or a penalty, the part, and random numbers of the shape that it is for."""
    kind = draw(st.sampled_from(sorted(kinds)))
    if kind == "DoublyStochastic" or kind in OF_SQUARES:
        shape = draw(st.sampled_from([(4, 4), (1, 1), (7, 7)]))
    elif kind in OF_MATRICES:
        shape = draw(st.sampled_from([(3, 5), (1, 4), (6, 6)]))
    elif kind in LARGE:
        shape = draw(st.sampled_from([(5,), (3, 4), (2, 3, 2)]))
    else:
        shape = draw(st.sampled_from([(5,), (1,), (3, 5), (2, 3, 4), (40,)]))
    r, dim = draw(st.sampled_from([1.0, 1e-3, 30.0])), draw(st.sampled_from([-1, None, 0]))
    sizes = Sizes(shape, r, dim, draw(st.integers(0, 10**6)))
    return kind, kinds[kind](sizes), sizes


def feasible_points(part, x, sizes):
    """Return points of the set near x and far from it, and corners."""
    scale = max(1e-3, float(x.abs().max()))
    found = [part.argmin(x + part_of * scale * symmetric(sizes.normal(), part), 1.0) for part_of in (1e-3, 1.0, 30.0)]
    if part.bounded:
        found += [part.lmo(symmetric(sizes.normal(), part)) for _ in range(2)]
    return found


def symmetric(x, part):
    """Return the nearest symmetric matrix for sets of symmetric ones."""
    return (x + x.mT) / 2 if type(part).__name__ in OF_SQUARES else x
