"""The tutorials of the docs, run as notebooks while the site is built.

python scripts/notebooks.py [NAME ...]    # run docs/tutorials/NAME.py, or all of them; record the runs (2 minutes)

A tutorial is a Python file in jupytext's percent format. It becomes a page with what its cells have printed and drawn,
and a notebook to download. Neither is kept in git. A cell that raises or warns ends the build. `# %% alt="…"` describes
the picture that a cell draws, for those who cannot see it.

docs/data/tutorials.json keeps what the cells of the last run printed, with its date and the hash of the source. The
tests compare the hash with that of the source today: a tutorial that was changed must be run again.
"""

import datetime
import functools
import hashlib
import json
import os
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jupytext
import nbformat
import torch
from nbclient import NotebookClient
from traitlets.config import Config

import gallery
import style

TUTORIALS = style.ROOT / "docs" / "tutorials"
RECORD = style.ROOT / "docs" / "data" / "tutorials.json"
COLORS = [style.BLUE, style.RED, style.GREEN, style.OCHRE, style.GREY]
LOOK = f"""
import warnings

import matplotlib.pyplot as plt
import matplotlib_inline.backend_inline as inline

warnings.filterwarnings("ignore", message="IProgress not found")  # tqdm's, which would have a bar of JavaScript

plt.rcParams.update({style.RC!r})
plt.rcParams.update({{"figure.figsize": (6, 3.2), "axes.prop_cycle": plt.cycler(color={COLORS!r})}})
inline.set_matplotlib_formats("svg")
"""
CODE = "````{{ .{kind} }}\n{text}\n````"
DOWNLOADS = "Download: [the notebook]({name}.ipynb), [its source]({name}.py). It needs `pip install superadam-lab`."


@functools.cache
def executed(source):
    """The notebook of a source text, with its outputs. It is run once in a process: `mkdocs serve` builds often."""
    notebook = jupytext.reads(source, fmt="py:percent")
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.cells.insert(0, nbformat.v4.new_code_cell(LOOK))
    with tempfile.TemporaryDirectory() as folder:  # for the files that it writes, and without the user's settings
        env = {**os.environ, "OMP_NUM_THREADS": "1", "IPYTHONDIR": folder, "MPLCONFIGDIR": folder}
        files = Config({"KernelManager": {"transport": "ipc", "ip": f"{folder}/socket"}})  # others could reach a port
        options = {"resources": {"metadata": {"path": folder}}, "startup_timeout": 900, "timeout": 3600}
        NotebookClient(notebook, config=files, coalesce_streams=True, **options).execute(env=env)
    del notebook.cells[0]
    return notebook


def page(name, notebook):
    """The page of a tutorial, and the files that it shows and links to, by name."""
    parts, files = [], {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(CODE.format(kind="python", text=cell.source))
        for output in cell.outputs:
            data = output.get("data", {})
            if output.output_type == "stream" and output.name == "stdout":
                parts.append(printed(output.text))
            elif "image/svg+xml" in data:
                if "alt" not in cell.metadata:
                    raise ValueError(f'docs/tutorials/{name}.py: the cell that draws needs a description: # %% alt="…"')
                picture = f"{name}-{len(files) + 1}.svg"
                files[picture] = style.with_dark(data["image/svg+xml"])
                parts.append(f"[![{cell.metadata['alt']}]({picture})]({picture})")
            elif "text/markdown" in data:
                parts.append(f'<div class="output" markdown>\n\n{data["text/markdown"]}\n\n</div>')
            elif "text/plain" in data:
                parts.append(printed(data["text/plain"]))
            else:
                raise ValueError(f"docs/tutorials/{name}.py: unexpected output {output}")
    title, _, rest = parts[0].partition("\n")
    files[f"{name}.ipynb"] = nbformat.writes(notebook)
    return "\n\n".join([title, DOWNLOADS.format(name=name), rest.strip(), *parts[1:]]) + "\n", files


def printed(text):
    return CODE.format(kind="text .output .no-copy", text=text.rstrip("\n"))


def names():
    """The tutorials, in the order of mkdocs.yml."""
    return re.findall(r"tutorials/(\w+)\.md", (style.ROOT / "mkdocs.yml").read_text())


def card(name, text):
    """The entry of a tutorial in the gallery, given its page: its first sentence and its first picture."""
    alt, shown = re.search(r"^\[!\[(.*)\]\((\S+)\)\]", text, re.M).groups()
    title, _, intro, *_ = text.split("\n\n")
    first = " ".join(intro.split()).partition(". ")[0].rstrip(".") + "."
    return gallery.card(title.removeprefix("# "), first, f"tutorials/{name}.md", f"tutorials/{shown}", alt)


def run(path):
    began = time.perf_counter()
    made = page(path.stem, executed(path.read_text()))
    return path.stem, *made, time.perf_counter() - began


def run_all(chosen=()):
    """Name, page, files and seconds of each."""
    paths = [TUTORIALS / f"{name}.py" for name in chosen or names()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # a thread waits for the process of its notebook
        yield from pool.map(run, paths)


def record(name):
    """What is kept of the run of a tutorial."""
    source = (TUTORIALS / f"{name}.py").read_text()
    outputs = [output for cell in executed(source).cells for output in cell.get("outputs", ())]
    return {
        "source": hashlib.sha256(source.encode()).hexdigest(),
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "printed": [output.text for output in outputs if output.get("name") == "stdout"],
    }


def main(chosen):
    kept = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for name, text, files, seconds in run_all(chosen):
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
        for file, content in {f"{name}.md": text, **files}.items():
            (folder / file).write_text(content)
        print(f"{seconds:.0f} s {folder}")
        kept[name] = record(name)
    RECORD.write_text(json.dumps({name: kept[name] for name in names()}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
