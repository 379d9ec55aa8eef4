"""The pictures of the docs: made by a command, the same every time, and described for those who cannot see them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import copies

ROOT = Path(__file__).resolve().parents[2]
DRAW = "import sys, style, pictures; style.IMG = style.Path(sys.argv[1]); pictures.main(sys.argv[2:])"


def test_pictures_are_the_same_every_time(tmp_path):
    """In a copy of this process, and in a new one, with another seed of its hashes."""
    places = ("src", "lab/src", "scripts")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / place) for place in places)}
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    copies.check("-c", f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r})\n{DRAW}", first, "algorithm", "step")
    subprocess.run([sys.executable, "-c", DRAW, second, "algorithm", "step"], check=True, env=env)
    drawn = [[path.read_bytes() for path in sorted(folder.iterdir())] for folder in (first, second)]
    assert len(drawn[0]) == 2
    assert drawn[0] == drawn[1]


def test_the_plans_that_are_drawn_are_optimal():
    """The matrix on the Birkhoff polytope is scipy's best permutation; the plan is that of a linear program."""
    import numpy as np
    from scipy.optimize import linear_sum_assignment, linprog

    sys.path.insert(0, str(ROOT / "scripts"))
    import set_pictures

    cost, seen = set_pictures.assignment()
    rows, columns = linear_sum_assignment(cost.numpy())
    assert seen[300].argmax(1)[rows].tolist() == columns.tolist()
    assert float(seen[300].amax(1).min()) > 0.95
    _, a, b, cost, start, plan = set_pictures.plans()
    n = len(a)
    A = np.concatenate([np.kron(np.eye(n), np.ones(n)), np.kron(np.ones(n), np.eye(n))])
    least = linprog(cost.numpy().ravel(), A_eq=A, b_eq=np.concatenate([a, b]), bounds=(0, None)).fun
    assert float((plan * cost).sum()) - least < 1e-3 * (float((start * cost).sum()) - least)


def test_every_picture_is_drawn_by_the_command_and_described():
    command = (ROOT / "scripts" / "pictures.py").read_text()
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    described = re.findall(r"!\[([^\]]+)\]\([^)]*img/([a-z_]+)\.svg\)", "\n".join(p.read_text() for p in pages))
    for picture in (ROOT / "docs" / "img").glob("*.svg"):
        assert f'"{picture.stem}": ' in command
        assert any(name == picture.stem and len(words) > 20 for words, name in described), picture
