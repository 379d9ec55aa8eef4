"""Draw the pictures of the evidence, each beside its data.

python -m research.pictures [NAME ...]    # all of them, or some; under a minute
"""

import sys

from pictures import main
from research.anchors import anchors
from research.constrained import constrained
from research.exact_step import exact_step, paths
from research.locked import unseen
from research.rates import rates
from research.sensitivity import sensitivity
from research.speed import speed_bars

PICTURES = {
    "anchors": anchors.draw,
    "paths": paths.draw,
    "exact_step": exact_step.draw,
    "rivals": constrained.draw,
    "rivals_few": constrained.draw_few,
    "rates": rates.draw,
    "speed": speed_bars.draw,
    "sensitivity": sensitivity.draw,
    "unseen": unseen.draw,
}

if __name__ == "__main__":
    main(sys.argv[1:], PICTURES)
