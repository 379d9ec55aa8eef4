"""Draw the pictures of the docs, into docs/img.

python scripts/pictures.py [NAME ...]    # all of them, or some; under a minute

Those of measurements are beside their data: `python -m research.pictures` draws them.
"""

import sys

import diagrams
import set_pictures
import trajectories

PICTURES = {
    "algorithm": diagrams.algorithm,
    "step": diagrams.step,
    "trajectories": trajectories.draw,
    "ordered": set_pictures.ordered,
    "birkhoff": set_pictures.birkhoff,
    "transport": set_pictures.transport,
}


def main(names, pictures=PICTURES):
    unknown = set(names) - pictures.keys()
    if unknown:
        sys.exit(f"No picture named {', '.join(sorted(unknown))}. There are: {', '.join(pictures)}")
    for name in names or pictures:
        pictures[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
