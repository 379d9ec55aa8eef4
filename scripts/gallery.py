"""The gallery of the docs: a page for each example, with its picture and what it prints, and a card that leads to it.

python scripts/gallery.py FOLDER [NAME ...]    # run the examples, write NAME.svg and NAME.txt; three minutes

The site is built with these, and none is kept in git. Titles are the first words of the examples. The texts of the
cards are those of the table in examples/README.md. Where a trainer is not installed, its example is shown, but not run.
"""

import ast
import contextlib
import functools
import importlib
import importlib.util
import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import style

EXAMPLES = style.ROOT / "examples"
ROW = re.compile(r"^\| (?:\*\*(?P<section>.+)\*\*|\[(?P<name>\w+)\.py\]\(\S+\)) \| (?P<shows>.*?) ?\|$", re.M)
COMMAND = re.compile(r"(?:^(?:pip|python|superadam|torchrun) .*\n?)+", re.M)
PICTURES = {}
PACKAGES = {"with_accelerate": "accelerate", "with_lightning": "lightning", "with_transformers": "transformers"}
PROCESSES = ("ddp_digits", "fsdp_lm")  # by torchrun; what they print is what is drawn


def picture(draw):
    """A function of the panel and of what `main` of the example returns. Its docstring describes the picture."""
    PICTURES[draw.__name__] = draw
    return draw


@picture
def plain_loop(ax, result):
    """The training loss falls over 20 epochs, and so does the share of test images that are wrong."""
    epochs = range(1, len(result["losses"]) + 1)
    ax.semilogy(epochs, result["losses"], color=style.BLUE, label="training loss")
    ax.semilogy(epochs, [1 - a for a in result["accuracies"]], color=style.RED, label="test error")
    ax.set(xlabel="epoch")
    ax.legend()


@picture
def variance_reduction(ax, result):
    """Bars of gradients and of batches that BatchNorm has seen, for the closure and for twice: 800 and 400 for both."""
    ways, width = ("closure", "twice"), 0.38
    for i, (key, label, color) in enumerate((("gradients", "gradients", style.BLUE), ("seen", "batches", style.OCHRE))):
        bars = ax.bar([k + (i - 0.5) * width for k in range(2)], [result[w][key] for w in ways], width, color=color)
        ax.bar_label(bars, fontsize=8)
        bars.set_label(f"{label} seen by {'the optimizer' if key == 'gradients' else 'BatchNorm'}")
    ax.set(xticks=range(2), xticklabels=ways, ylim=(0, 1250))
    ax.legend(loc="upper center", ncols=1)


@picture
def amp(ax, result):
    """The loss of four runs, in bfloat16 and in float16, with τ = 0 and with τ = 1: all fall alike."""
    for ((way, tau), run), color in zip(result.items(), (style.BLUE, style.GREEN, style.RED, style.OCHRE), strict=True):
        turns = 2 if tau > 0 else 1
        ax.semilogy(run["losses"][::turns], color=color, linewidth=1.2, label=f"{way}, τ = {tau:g}")
    ax.set(xlabel="batch", ylabel="loss")
    ax.legend()


@picture
def resume(ax, result):
    """The loss of a run that was never stopped as a line, and of one that was resumed as dots: they are the same."""
    for (name, run), color in zip(result.items(), (style.BLUE, style.RED, style.GREEN), strict=True):
        ax.plot(run["whole"], color=color, label=name)
        ax.plot(run["resumed"], "o", color=color, markersize=3.5)
    ax.axvline(12.5, color=style.GREY, linestyle=":")
    ax.set(xlabel="batch", ylabel="loss")
    ax.legend()


@picture
def probe_first(ax, result):
    """Noise with τ = 1 as a multiple of that with τ = 0: two for the digits, a half for the regression."""
    names, ratios = list(result), [report.noise_ratio for report in result.values()]
    ax.barh(names, ratios, color=[style.RED if ratio > 1 else style.GREEN for ratio in ratios], height=0.5)
    ax.axvline(1.0, color=style.GREY, linestyle=":")
    ax.set(xlabel="noise with τ = 1 over that with τ = 0", xlim=(0, 1.2 * max(ratios)))


@picture
def compare_your_task(ax, result):
    """The final validation loss of three methods as dots: AdamW, and the paper's with τ = 0 and τ = 1."""
    names = list(result)[::-1]
    ax.plot([result[name] for name in names], names, "o", color=style.BLUE, markersize=9)
    ax.set(xlabel="validation loss, mean of the seeds", ylim=(-0.5, len(names) - 0.5))


@picture
def own_matrix(ax, result):
    """The test accuracies of the paper's case 1 and of the example's own matrix, with τ = 0 and τ = 1."""
    names = [f"{name}, τ = {tau:g}" for name, tau in result]
    ax.plot([100 * accuracy for accuracy in result.values()], names, "o", color=style.BLUE, markersize=9)
    ax.set(xlabel="test accuracy, %", xlim=(90, 100), ylim=(-0.5, len(names) - 0.5))


@picture
def mixture_weights(ax, result):
    """Bars of the true weights of five components beside those of EM and of SUPER-ADAM, which are nearly equal."""
    colors = (style.GREY, style.OCHRE, style.BLUE)
    for i, ((name, weights), color) in enumerate(zip(result["weights"].items(), colors, strict=True)):
        ax.bar([k + 0.27 * (i - 1) for k in range(1, 6)], weights, 0.25, color=color, label=name)
    ax.set(xlabel="component", ylabel="weight")
    ax.legend()


@picture
def nmf(ax, result):
    """Sixteen small images, the non-negative parts that the digits are made of."""
    parts = result["parts"].reshape(2, 8, 8, 8)
    parts = parts / parts.amax((2, 3), keepdim=True)
    framed = parts.new_zeros(2, 8, 9, 9)
    framed[:, :, :8, :8] = parts
    ax.imshow(framed.permute(0, 2, 1, 3).reshape(18, 72)[:-1, :-1], cmap="Blues")
    ax.set_axis_off()


@picture
def portfolio(ax, result):
    """Bars of the weights of 30 assets, none above 20 %, with a mark for each weight that SLSQP has found."""
    ours, exact = result["weights"]
    ax.bar(range(len(ours)), ours, color=style.BLUE, label="SUPER-ADAM")
    ax.plot(range(len(ours)), exact, "_", color=style.RED, markersize=6, label="SLSQP")
    ax.set(xlabel="asset", ylabel="weight")
    ax.legend()


@picture
def calibration(ax, result):
    """The calibrated probability of each bin, a rising staircase, with a mark for each of isotonic regression's."""
    ours, exact = result["curves"]
    ax.step(range(len(ours)), ours, where="mid", color=style.BLUE, label="SUPER-ADAM")
    ax.plot(range(len(ours)), exact, "_", color=style.RED, markersize=6, label="scikit-learn")
    ax.set(xlabel="bin of the score", ylabel="probability")
    ax.legend()


@picture
def sparse_logistic(ax, result):
    """The 30 coefficients of SUPER-ADAM as bars, most of them zero, with a mark for each of scikit-learn's."""
    ours, exact = result["coefficients"]
    ax.bar(range(len(ours)), ours, color=style.BLUE, label="SUPER-ADAM")
    ax.plot(range(len(ours)), exact, "_", color=style.RED, markersize=6, label="scikit-learn")
    ax.set(xlabel="measurement", ylabel="coefficient")
    ax.legend()


@picture
def monotone(ax, result):
    """Noisy points, a network that only increases and stays near the truth, and a free one that follows the noise."""
    x, y, grid, truth = result["data"]
    ax.plot(x, y, ".", color=style.GREY, markersize=4)
    ax.plot(grid, truth, ":", color=style.INK, label="truth")
    for name, color in (("free", style.RED), ("monotone", style.BLUE)):
        ax.plot(grid, result[name]["curve"], color=color, label=name)
    ax.legend()


@picture
def max_norm(ax, result):
    """Histograms of the norms of all rows: with the bound none is above 2, without it many are."""
    for name, color in (("free", style.RED), ("max-norm", style.BLUE)):
        ax.hist(result[name]["norms"], bins=40, range=(0, 4), color=color, alpha=0.7, label=name)
    ax.axvline(2.0, color=style.GREY, linestyle=":")
    ax.set(xlabel="norm of a row", ylabel="rows")
    ax.legend()


def same_curves(ax, result):
    """Losses of runs that were never stopped as lines, and of resumed ones as dots."""
    colors = (style.BLUE, style.RED, style.GREEN, style.OCHRE)
    for (name, run), color in zip(result.items(), colors, strict=False):
        ax.semilogy(run["whole"], color=color, linewidth=1.2, label=name.replace("tau=", "τ = "))
        first = len(run["whole"]) - len(run["resumed"])
        ax.plot(range(first, len(run["whole"])), run["resumed"], "o", color=color, markersize=3)
    ax.set(xlabel="logged step", ylabel="loss")
    ax.legend(fontsize=8)


@picture
def with_lightning(ax, result):
    """Losses of four Lightning runs as lines, and of the same runs stopped and resumed as dots: they are the same."""
    same_curves(ax, result)


@picture
def with_transformers(ax, result):
    """Losses of three Trainer runs as lines, and of the same runs stopped and resumed as dots: they are the same."""
    same_curves(ax, result)


@picture
def with_accelerate(ax, result):
    """Losses of three Accelerate runs as lines, and of the same runs resumed in mid-epoch as dots: all are the same."""
    same_curves(ax, result)


@picture
def ddp_digits(ax, printed):
    """One bar: the test accuracy after training on two processes."""
    processes, gradients, accuracy = re.search(
        r"(\d+) processes, (\d+) gradients, test accuracy ([\d.]+)", printed
    ).groups()
    ax.barh([f"{processes} processes,\n{gradients} gradients"], [float(accuracy)], color=style.BLUE, height=0.4)
    ax.set(xlabel="test accuracy, %", xlim=(0, 100), ylim=(-0.6, 0.6))


@picture
def fsdp_lm(ax, printed):
    """The loss per byte at the start, at the checkpoint and at the end: it falls, also after the checkpoint."""
    losses = [float(loss) for loss in re.findall(r"\d\.\d\d", printed)]
    ax.plot(["start", "checkpoint", "end"], losses, "o-", color=style.BLUE)
    ax.set(ylabel="loss per byte", ylim=(0, None))


def torchrun(name):
    """What an example prints on two processes."""
    options = ("--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
    command = [sys.executable, "-m", "torch.distributed.run", *options, EXAMPLES / f"{name}.py"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, check=True, env=env, stdout=subprocess.PIPE, text=True, timeout=600).stdout


def run(name):
    """What an example returns, and what it prints."""
    if name in PROCESSES:
        said = torchrun(name)
        return said, said
    with contextlib.redirect_stdout(io.StringIO()) as said:
        result = importlib.import_module(name).main()
    logs = ("{'loss'", "{'train")  # of Hugging Face's Trainer
    return result, "".join(line for line in said.getvalue().splitlines(True) if not line.startswith(logs))


def main(folder, *names):
    sys.path.insert(0, str(EXAMPLES))
    for name in names or PICTURES:
        if name in PACKAGES and importlib.util.find_spec(PACKAGES[name]) is None:
            continue
        result, said = run(name)
        fig, ax = style.plt.subplots(figsize=(4, 2.5), layout="constrained")
        PICTURES[name](ax, result)
        (folder / f"{name}.svg").write_text(style.svg(fig))
        (folder / f"{name}.txt").write_text(said)


@functools.cache
def made():
    """What `main` writes, by file name. It runs once in a process: `mkdocs serve` builds often."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, __file__, folder], check=True)
        return {path.name: path.read_text() for path in Path(folder).iterdir()}


def listed():
    """The sections of examples/README.md, each with its examples and what they show."""
    sections = {"training": {}}
    for row in ROW.finditer((EXAMPLES / "README.md").read_text()):
        if row["section"]:
            sections[row["section"]] = {}
        else:
            sections[list(sections)[-1]][row["name"]] = row["shows"]
    return sections


def parts(name):
    """Title, text and code of an example."""
    source = (EXAMPLES / f"{name}.py").read_text()
    text = ast.get_docstring(ast.parse(source))
    title = text.splitlines()[0].partition(": ")[0].rstrip(".")
    return (
        title[0].upper() + title[1:] if title[0].isascii() else title,
        text,
        source[source.index('"""\n', 3) + 4 :].strip(),
    )


def page(name, files):
    """The page of an example."""
    title, text, code = parts(name)
    text = COMMAND.sub(lambda found: f"```bash\n{found[0].rstrip()}\n```\n", text)
    shown = [f"![{PICTURES[name].__doc__}]({name}.svg)"] if f"{name}.txt" in files else []
    said = [f"It prints\n\n````{{ .text .output .no-copy }}\n{files[f'{name}.txt'].rstrip()}\n````"] if shown else []
    code = f'````{{ .python title="examples/{name}.py" }}\n{code}\n````'
    return "\n\n".join([f"# {title}", text, *shown, *said, code]) + "\n"


def card(title, text, link, picture="", alt=""):
    """An entry of a grid."""
    lines = [*([f"[![{alt}]({picture})]({link})", ""] if picture else []), f"[{title}]({link})", "", text]
    return "- " + "\n".join(f"    {line}".rstrip() for line in lines).lstrip()


def grid(cards):
    return '<div class="grid cards" markdown>\n\n' + "\n\n".join(cards) + "\n\n</div>"


def cards(files):
    """The sections of the gallery."""
    found = []
    for section, examples in listed().items():
        made = []
        for name, shows in examples.items():
            shown = (f"gallery/{name}.svg", PICTURES[name].__doc__) if f"{name}.txt" in files else ()
            made.append(card(parts(name)[0], shows, f"gallery/{name}.md", *shown))
        found += [f"## {section[0].upper()}{section[1:]}", grid(made)]
    return "\n\n".join(found)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
