"""Draw the pictures of the docs, into docs/img.

python scripts/pictures.py [NAME ...]    # all of them, or some; under a minute

What takes long to measure is drawn from docs/data, where scripts/rates.py, scripts/exact_step.py,
scripts/constrained.py, scripts/search.py, scripts/locked.py and `superadam bench` have left it; the rest is computed on
the way.
"""

import sys

import constrained
import diagrams
import exact_step
import rates
import sensitivity
import set_pictures
import speed_bars
import trajectories
import unseen

PICTURES = {
    "algorithm": diagrams.algorithm,
    "step": diagrams.step,
    "trajectories": trajectories.draw,
    "constrained": trajectories.draw_constrained,
    "exact_step": exact_step.draw,
    "rivals": constrained.draw,
    "rivals_few": constrained.draw_few,
    "ordered": set_pictures.ordered,
    "birkhoff": set_pictures.birkhoff,
    "transport": set_pictures.transport,
    "rates": rates.draw,
    "speed": speed_bars.draw,
    "sensitivity": sensitivity.draw,
    "unseen": unseen.draw,
}


def main(names):
    unknown = set(names) - PICTURES.keys()
    if unknown:
        sys.exit(f"No picture named {', '.join(sorted(unknown))}. There are: {', '.join(PICTURES)}")
    for name in names or PICTURES:
        PICTURES[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
