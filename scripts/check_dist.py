"""Build the sdists and, from them, the wheels; then use the wheels as a new user would. `make dist` calls this.

python scripts/check_dist.py [--keep FOLDER]    # dist/ has the files afterwards

A wheel must hold every file of its src and nothing else. That of superadam is installed into an empty environment, with
torch as requirements.txt has it and no extras, and the first Python block of the README is run there, away from this
folder. Then comes that of superadam-lab, with the command.
"""

import argparse
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"


def run(*command, **options):
    print("$", *command, flush=True)
    subprocess.run(command, check=True, **options)


def build(name, folder):
    for old in DIST.glob(f"{name}-*"):
        old.unlink()
    run(sys.executable, "-m", "build", "--outdir", DIST, folder)  # the wheel is made from the sdist
    (sdist,), (wheel,) = DIST.glob(f"{name}-*.tar.gz"), DIST.glob(f"{name}-*.whl")
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    return sdist, wheel


def check_contents(name, folder, sdist, wheel, expected):
    ours = {
        path.relative_to(folder / "src").as_posix()
        for path in (folder / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == ours, f"only in the wheel: {held - ours}; only in src: {ours - held}"
    assert f"{name}/py.typed" in held
    with tarfile.open(sdist) as archive:
        roots = {Path(name).parts[1] for name in archive.getnames() if len(Path(name).parts) > 1}
    missing = expected - roots
    assert not missing, f"not in the sdist: {missing}"
    strays = {".venv", "dist", "site", ".git", ".mypy_cache", "lab"} & roots
    assert not strays, f"in the sdist: {strays}"
    print(f"{wheel.name}: {len(held)} files, {wheel.stat().st_size // 1000} kB; "
          f"{sdist.name}: {sdist.stat().st_size // 1000} kB")  # fmt: skip


def try_it(wheel, lab, folder):
    """In an environment of its own, with nothing of this repository in sight."""
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "-r", ROOT / "requirements.txt")
    run(python, "-m", "pip", "install", "--quiet", wheel)
    run(python, "-m", "pip", "check")
    snippet = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.M | re.S).group(1)
    (folder / "quick_start.py").write_text(snippet)
    run(python, "-I", "quick_start.py", cwd=folder)
    run(python, "-I", "-c", "import superadam; print(superadam.__version__, superadam.__file__)", cwd=folder)
    assert not (folder / "venv" / "bin" / "superadam").exists(), "the command is the lab's"
    run(python, "-m", "pip", "install", "--quiet", lab)
    run(folder / "venv" / "bin" / "superadam", "tasks", cwd=folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, help="where the environment stays, to be looked at")
    options = parser.parse_args()
    wheels, common = [], {"src", "tests", "README.md", "pyproject.toml"}
    more = {"examples", "LICENSE", "CHANGELOG.md", "CITATION.cff"}
    for name, folder, expected in (("superadam", ROOT, common | more), ("superadam_lab", ROOT / "lab", common)):
        sdist, wheel = build(name, folder)
        check_contents(name, folder, sdist, wheel, expected)
        wheels.append(wheel)
    if options.keep:
        try_it(*wheels, options.keep.resolve())
    else:
        with tempfile.TemporaryDirectory() as folder:
            try_it(*wheels, Path(folder))
    print("All are fine.")


if __name__ == "__main__":
    main()
