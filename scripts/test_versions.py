"""The tests with several versions of torch, of Python, and of what the extras need. `make test-versions` calls this.

python scripts/test_versions.py [--cache FOLDER] [--versions 2.6.0 2.9.1@3.12 …] [--jobs N] [-- options of pytest]
python scripts/test_versions.py --lowest [lab trainers …]

For each version an environment is created in the cache folder (several GB: the registry's torch has the CUDA
libraries). The wheel of this repository is installed beside that torch, as a user would, and used (`pip check`, the
quick start of the README, `superadam --version`). Then come the tests of the core. What cannot be installed is skipped,
with a message. Results go to docs/data/versions.json, and from there into the tables of docs/compatibility.md; rows of
other versions stay as they are, with the commit that ran. A row may have "since" (by hand): what became of its
failures. A new run removes it.

`--lowest` makes an environment for each extra, with the oldest torch and each direct requirement at its lower bound,
and runs the tests of that extra.
"""

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "docs" / "data" / "versions.json", ROOT / "docs" / "compatibility.md"
MARKS = "<!-- test_versions.py -->", "<!-- end of test_versions.py -->"
MARKS_LOWEST = "<!-- test_versions.py --lowest -->", "<!-- end of test_versions.py --lowest -->"
DEFAULT = ["2.6.0@3.10", "2.9.1@3.12", "2.15.0@3.13"]
OLDEST = ("2.6.0", "3.10")  # torch and Python of the lower bounds
# What the core's tests import; numpy because torch warns without it.
NEEDS = ["expecttest", "hypothesis", "mpmath", "numpy", "pytest", "pytest-xdist", "scikit-learn", "scipy"]
# Not of the core: pages and pictures, trainers, other packages.
NOT_CORE = {
    *("docs", "fuzz", "peers", "trainers"),
    "monitor/test_figures.py",
    *(f"test_{name}.py" for name in ("gpu_check", "types")),
    "test_versions_of_torch.py",
}
COUNTS = ("passed", "failed", "skipped")
TOLD = (*COUNTS, "date", "commit")
# The tests of each extra, and of the lab, which is a distribution of its own.
EXTRAS = {
    "lab": ["lab/tests", "--ignore=lab/tests/tasks/test_task_trainers.py"],
    "trainers": ["tests/trainers/test_trainers.py", "tests/trainers/test_programs.py"],
    "docs": ["tests/docs/test_api.py", "tests/docs/test_tutorials.py"],
}


def core():
    """The files of the core's tests."""
    tests = ROOT / "tests"
    files = {path.relative_to(tests) for path in tests.rglob("test_*.py")}
    return [f"tests/{path}" for path in sorted(files) if not NOT_CORE & {path.parts[0], path.as_posix()}]


def run(*command, **options):
    print("$", *command, flush=True)
    return subprocess.run([str(word) for word in command], check=False, **options).returncode


def version_of_code():
    """The commit, or "" outside a repository; results of one commit say little about a later one."""
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def interpreter(version):
    """A Python of this version, from the path or from pyenv; None if there is none."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(pyenv.glob(f"{version}.*/bin/python"))
    return str(found[-1]) if found else shutil.which(f"python{version}")


def built(folder):
    """The wheels of this repository: of the optimizer, and of the lab."""
    if run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, ROOT / "lab"):
        sys.exit("The wheels could not be built.")
    return [next(folder.glob(f"{name}-*.whl")) for name in ("superadam", "superadam_lab")]


def environment(cache, torch, python, wheel):
    """The interpreter of an environment with this torch and the wheel, or why there is none."""
    inside, why_not = empty(cache / f"torch-{torch}-python-{python}", python)
    if inside is None:
        return None, why_not
    pip = (inside, "-m", "pip", "install", "--quiet")
    if run(*pip, "--force-reinstall", "--no-deps", wheel) or run(*pip, wheel, f"torch=={torch}"):
        return None, f"the wheel and torch {torch} could not be installed"
    if not works(inside):
        return None, "the wheel does not work there"
    return (None, "what the tests need could not be installed") if run(*pip, *NEEDS) else (inside, None)


def empty(folder, python):
    """The interpreter of an environment; a new one has nothing in it."""
    inside = folder / "bin" / "python"
    if not inside.exists():
        base = interpreter(python)
        if base is None:
            return None, f"there is no Python {python} here"
        if run(base, "-m", "venv", folder):
            return None, "no environment could be created"
    return inside, None


def works(python):
    """Whether what is installed is consistent, and the quick start of the README runs."""
    snippet = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.M | re.S).group(1)
    with tempfile.TemporaryDirectory() as away:
        in_order = ("-m", "pip", "check"), ("-I", "-c", snippet)
        return not any(run(python, *what, cwd=away) for what in in_order)


def lowest(wheel, extra=None):
    """The direct requirements of a wheel, or of an extra of it, each at its lower bound."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        text = archive.read(metadata).decode()
    condition = rf"; extra == '{extra}'" if extra else ""
    found = re.findall(rf"^Requires-Dist: ([\w.\[\]-]+)[^;\n]*>=([\w.]+)[^;\n]*{condition}$", text, flags=re.M)
    return [f"{name}=={version}" for name, version in found]


def environment_of_extra(cache, extra, wheel, lab):
    """Like `environment`. The oldest torch is that of its own environment, which a .pth file adds to the path."""
    torch, python = OLDEST
    base = cache / f"torch-{torch}-python-{python}" / "bin" / "python"
    if not base.exists():
        base, why_not = environment(cache, torch, python, wheel)
        if base is None:
            return None, why_not
    inside, why_not = empty(cache / f"lowest-{extra}-python-{python}", python)
    if inside is None:
        return None, why_not
    site = f"lib/python{python}/site-packages"
    (inside.parent.parent / site / "torch.pth").write_text(f"{base.parent.parent / site}\n")
    pip = (inside, "-m", "pip", "install", "--quiet")
    wheels, bounds = ((wheel, lab), lowest(lab)) if extra == "lab" else ((wheel,), lowest(wheel, extra))
    if run(*pip, "--force-reinstall", "--no-deps", *wheels) or run(*pip, *bounds, "pytest", "pytest-xdist"):
        return None, "the lower bounds could not be installed together"
    return (inside, None) if works(inside) else (None, "they do not fit together")


def tested(python, report, files, jobs, options):
    """The counts of the tests, and the reasons of those that were skipped."""
    run(
        *(python, "-m", "pytest", *files, "-q", "-m", "not slow", "-n", jobs, "-p", "no:cacheprovider"),
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


def order(row):
    return row.get("extra", ""), [int(part) for part in f"{row['torch']}.{row['python']}".split(".")]


def tables(rows):
    """The lines of the two tables: versions of torch, lower bounds."""
    versions = [row for row in rows if "extra" not in row]
    bounds = [row for row in rows if "extra" in row]
    lines = [*table(versions, "torch", "python"), *since(versions, "torch")]
    reasons = {reason: None for row in versions for reason in row["reasons"]}
    why = ["", "Skipped, by the reason that the tests give:", "", *(f"- {reason}" for reason in reasons)]
    lower = [*table(bounds, "extra", "installed"), *since(bounds, "extra")]
    return [*lines, *(why if reasons else [])], lower


def since(rows, name):
    """What became of failures after their run."""
    told = [f"- {name} {row[name]}: {row['since']}" for row in rows if "since" in row]
    return ["", "Since these runs:", "", *told] if told else []


def table(rows, *names):
    names = (*names, *TOLD)
    told = (f"| {' | '.join(str(row.get(name, '')) for name in names)} | `{row['command']}` |" for row in rows)
    return [f"| {' | '.join(names).replace('python', 'Python')} | command |", "|---" * (len(names) + 1) + "|", *told]


def write(row):
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    rows = sorted([old for old in rows if order(old) != order(row)] + [row], key=order)
    RESULTS.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    text = PAGE.read_text()
    for (begin, end), lines in zip((MARKS, MARKS_LOWEST), tables(rows), strict=True):
        before, after = text.split(begin)[0], text.split(end)[1]
        text = "\n".join([f"{before}{begin}", "", *lines, "", f"{end}{after}"])
    PAGE.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "superadam" / "versions")
    parser.add_argument("--versions", nargs="+", default=DEFAULT, help="torch, or torch@Python; Python 3.11 if none")
    parser.add_argument("--lowest", nargs="*", metavar="EXTRA", help="lower bounds of these extras, or of all")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("pytest", nargs="*", help="after --: options of pytest")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    commit = version_of_code()
    (wheel, lab), failed = built(Path(tempfile.mkdtemp(dir=options.cache, prefix="wheel-"))), False
    more = ["--", *options.pytest] if options.pytest else []
    for what in options.versions if options.lowest is None else options.lowest or EXTRAS:
        if options.lowest is None:
            torch, _, python = what.partition("@")
            row, files = {"torch": torch, "python": python or "3.11"}, core()
            inside, why_not = environment(options.cache, **row, wheel=wheel)
            name, flag = f"torch-{torch}-python-{row['python']}", "--versions"
        else:
            row = {"extra": what, **dict(zip(("torch", "python"), OLDEST, strict=True))}
            bounds = lowest(lab) if what == "lab" else lowest(wheel, what)
            row["installed"] = ", ".join(bounds).replace("==", " ")
            files, name, flag = EXTRAS[what], f"lowest-{what}", "--lowest"
            inside, why_not = environment_of_extra(options.cache, what, wheel, lab)
        if inside is None:
            print(f"{name}: skipped, {why_not}.", flush=True)
            failed |= options.lowest is not None
            continue
        report = options.cache / f"{name}.xml"
        report.unlink(missing_ok=True)
        counts, reasons = tested(inside, report, files, options.jobs, options.pytest)
        if counts is None:
            print(f"{name}: the tests did not run.", flush=True)
            failed = True
            continue
        row |= {**dict(zip(COUNTS, counts, strict=True)), "reasons": reasons}
        row |= {"date": f"{datetime.date.today():%Y-%m-%d}", "commit": commit}
        row |= {"command": " ".join(["python scripts/test_versions.py", flag, what, *more])}
        write(row)
        failed |= counts[1] > 0
        print(f"{name}: {dict(zip(COUNTS, counts, strict=True))}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
