"""The core's tests with several versions of torch and Python. `make test-versions` calls this.

python scripts/test_versions.py [--cache FOLDER] [--versions 2.6.0 2.9.1@3.12 …] [--jobs N] [-- options of pytest]

For each version an environment is created in the cache folder (several GB: the registry's torch has the CUDA
libraries), the wheel of this repository is installed beside that torch, as a user would, and the tests of the core are
run with it. What cannot be installed is skipped, with a message. Results go to docs/data/versions.json, and from there
into the table of docs/compatibility.md; rows of other versions stay as they are.
"""

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "docs" / "data" / "versions.json", ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- test_versions.py -->", "<!-- end of test_versions.py -->"
DEFAULT = ["2.6.0", "2.9.1", "2.15.0", "2.6.0@3.10", "2.15.0@3.13"]
# What the core's tests import; numpy because torch warns without it.
NEEDS = ["expecttest", "hypothesis", "mpmath", "numpy", "pytest", "pytest-xdist", "scikit-learn", "scipy"]
# Not of the core: the command, pages and pictures, trainers, other packages.
NOT_CORE = {
    *("bench", "cli", "digits", "docs", "examples", "gpu_scripts", "pictures", "programs", "trainers", "types"),
    *("matrix_packages", "zoo_packages", "zoo_packages_later"),
}
COUNTS = ("passed", "failed", "skipped")


def core():
    """The files of the core's tests."""
    names = {path.stem.removeprefix("test_"): path for path in (ROOT / "tests").glob("test_*.py")}
    return [path.relative_to(ROOT).as_posix() for name, path in sorted(names.items()) if name not in NOT_CORE]


def run(*command, **options):
    print("$", *command, flush=True)
    return subprocess.run([str(word) for word in command], check=False, **options).returncode


def interpreter(version):
    """A Python of this version, from the path or from pyenv; None if there is none."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(pyenv.glob(f"{version}.*/bin/python"))
    return str(found[-1]) if found else shutil.which(f"python{version}")


def built(cache):
    """The wheel of this repository."""
    folder = cache / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    if run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT):
        sys.exit("The wheel could not be built.")
    (wheel,) = folder.glob("superadam-*.whl")
    return wheel


def environment(cache, torch, python, wheel):
    """The interpreter of an environment with this torch and the wheel, or why there is none."""
    folder = cache / f"torch-{torch}-python-{python}"
    inside = folder / "bin" / "python"
    if not inside.exists():
        base = interpreter(python)
        if base is None:
            return None, f"there is no Python {python} here"
        if run(base, "-m", "venv", folder):
            return None, "no environment could be created"
    pip = (inside, "-m", "pip", "install", "--quiet")
    if run(*pip, f"torch=={torch}", *NEEDS):
        return None, f"torch {torch} could not be installed"
    if run(*pip, "--force-reinstall", "--no-deps", wheel) or run(*pip, wheel):
        return None, "the wheel could not be installed"
    return inside, None


def tested(python, report, jobs, options):
    """The counts of the tests, and the reasons of those that were skipped."""
    run(
        *(python, "-m", "pytest", *core(), "-q", "-m", "not slow", "-n", jobs, "-p", "no:cacheprovider"),
        *(f"--junitxml={report}", *options),
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""},
    )
    if not report.exists():
        return None, {}
    cases = list(ET.parse(report).iter("testcase"))
    skipped = [skip.get("message", "") for case in cases for skip in case.iter("skipped")]
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    reasons = {reason: skipped.count(reason) for reason in sorted(set(skipped))}
    return (len(cases) - failed - len(skipped), failed, len(skipped)), reasons


def key(row):
    return [int(part) for part in f"{row['torch']}.{row['python']}".split(".")]


def write_page(rows):
    head = ["| torch | Python | passed | failed | skipped | date | command |", "|---|---|---|---|---|---|---|"]
    table = [
        f"| {row['torch']} | {row['python']} | {row['passed']} | {row['failed']} | {row['skipped']} | {row['date']} | "
        f"`{row['command']}` |"
        for row in rows
    ]
    reasons = {reason: None for row in rows for reason in row["reasons"]}
    why = ["", "Skipped, by the reason that the tests give:", "", *(f"- {reason}" for reason in reasons)]
    text = PAGE.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    lines = "\n".join([*head, *table, *(why if reasons else [])])
    PAGE.write_text(f"{before}{BEGIN}\n\n{lines}\n\n{END}{after}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "superadam" / "versions")
    parser.add_argument("--versions", nargs="+", default=DEFAULT, help="torch, or torch@Python; Python 3.11 if none")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("pytest", nargs="*", help="after --: options of pytest")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    wheel, failed = built(options.cache), False
    for version in options.versions:
        torch, _, python = version.partition("@")
        python = python or "3.11"
        inside, why_not = environment(options.cache, torch, python, wheel)
        if inside is None:
            print(f"torch {torch}, Python {python}: skipped, {why_not}.", flush=True)
            continue
        report = options.cache / f"torch-{torch}-python-{python}.xml"
        report.unlink(missing_ok=True)
        counts, reasons = tested(inside, report, options.jobs, options.pytest)
        if counts is None:
            print(f"torch {torch}, Python {python}: the tests did not run.", flush=True)
            failed = True
            continue
        rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
        more = ["--", *options.pytest] if options.pytest else []
        command = " ".join(["python scripts/test_versions.py --versions", version, *more])
        row = {"torch": torch, "python": python, **dict(zip(COUNTS, counts, strict=True)), "reasons": reasons}
        row |= {"date": f"{datetime.date.today():%Y-%m-%d}", "command": command}
        rows = [old for old in rows if key(old) != key(row)] + [row]
        RESULTS.write_text(json.dumps(sorted(rows, key=key), indent=1, ensure_ascii=False) + "\n")
        write_page(sorted(rows, key=key))
        failed |= counts[1] > 0
        print(f"torch {torch}, Python {python}: {dict(zip(COUNTS, counts, strict=True))}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
