"""The pictures of the docs: made by a command, the same every time, and described for those who cannot see them."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DRAW = "import sys, style, pictures; style.IMG = style.Path(sys.argv[1]); pictures.main(sys.argv[2:])"


def test_pictures_are_the_same_every_time(tmp_path):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "scripts")])}
    drawn = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        subprocess.run([sys.executable, "-c", DRAW, tmp_path / name, "algorithm", "speed"], check=True, env=env)
        drawn.append([path.read_bytes() for path in sorted((tmp_path / name).iterdir())])
    assert len(drawn[0]) == 2
    assert drawn[0] == drawn[1]


def test_every_picture_is_drawn_by_the_command_and_described():
    command = (ROOT / "scripts" / "pictures.py").read_text()
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    described = re.findall(r"!\[([^\]]+)\]\([^)]*img/([a-z_]+)\.svg\)", "\n".join(p.read_text() for p in pages))
    for picture in (ROOT / "docs" / "img").glob("*.svg"):
        assert f'"{picture.stem}": ' in command
        assert any(name == picture.stem and len(words) > 20 for words, name in described), picture
