"""Read the tables of a page and the stored runs, without the code that wrote them: the checks compare both."""

import gzip
import json
import math
from pathlib import Path
from statistics import fmean

RESEARCH = Path(__file__).resolve().parent
ROOT = RESEARCH.parent


def rows(topic, mark):
    """Return the head of a table of a topic's page, and its rows by their first cell."""
    text = (RESEARCH / topic / "README.md").read_text(encoding="utf-8")
    table = text.split(f"<!-- {mark} -->\n\n")[1].split("\n\n<!-- end -->")[0].splitlines()
    head, _, *body = [[cell.strip(" *`") for cell in line.strip("|").split("|")] for line in table]
    return head[1:], {cells[0]: cells[1:] for cells in body}


def stored(file):
    """Return the content of a `.json.gz` file."""
    return json.loads(gzip.decompress(file.read_bytes()))


def files(folder):
    """Return the `.json.gz` files of a folder by their names."""
    return {path.name.removesuffix(".json.gz"): path for path in sorted(folder.glob("*.json.gz"))}


def reports(file, budget="gradients"):
    """Return the final runs by task, method and seed. With equal seconds, AdamW's are those with equal gradients."""
    found = {}
    for comparison in stored(file):
        for r in comparison["records"]:
            equal = "gradients" if r["method"] == "AdamW" else budget
            if r["phase"] == "report" and r["status"] == "finished" and r["budget"] == equal:
                found.setdefault(r["task"], {}).setdefault(r["method"], {})[r["seed"]] = r["rows"]
    return found


def mean_ratio(ours, theirs):
    """Return the geometric mean over seeds of final validation losses."""
    return math.exp(fmean(math.log(ours[s][-1]["valid_loss"] / theirs[s][-1]["valid_loss"]) for s in theirs))


def numbers(cells):
    """Return the first number of each cell."""
    return [float(cell.removeprefix("at least ").split()[0]) for cell in cells]
