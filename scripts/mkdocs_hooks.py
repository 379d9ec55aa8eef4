r"""For the docs: what is made while the site is built.

Tutorials and examples are run, and become pages with what they have printed and drawn. docs/errors.md gets a list of
all messages. The pages of research/ are part of the site, below research/: links lead there and back as in the
repository.

Formulas become MathML, which browsers draw without a script or the network. `pymdownx.arithmatex` finds TeX in pages
and docstrings and marks it. In prose, x_t and T^(-1/3) become subscripts and superscripts; code is left alone.

>>> on_page_content("<p>x_t, g_{t+1}, T^(-1/3), n_samples, <code>x_t</code></p>")
'<p><i>x</i><sub>t</sub>, <i>g</i><sub>t+1</sub>, T<sup>-1/3</sup>, n_samples, <code>x_t</code></p>'
>>> on_page_content(r'<span class="arithmatex">\(x\)</span>')
'<math xmlns="http://www.w3.org/1998/Math/MathML" display="inline"><mrow><mi>x</mi></mrow></math>'
"""

import html
import logging
import re
from concurrent.futures import ThreadPoolExecutor

from latex2mathml.converter import convert
from mkdocs.structure.files import File, InclusionLevel

import command_page
import gallery
import messages
import notebooks
from style import ROOT

log = logging.getLogger("mkdocs.hooks.superadam")

CARDS = "<!-- cards -->"
MARKED = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', flags=re.S)
VERBATIM = re.compile(r"(<(math|code|pre|title)\b.*?</\2>|<[^>]*>)", flags=re.S)
SUBSCRIPT = re.compile(r"(?<![A-Za-z0-9_.])([^\W\d_][̂̃̄]?)_(?:\{([^{}]+)\}|(max|min|\d+|\w))(?![^\W²³])")
SPELLING = {r"\arg\min": r"\mathrm{arg\,min}", "{aligned}": "{align*}"}  # what latex2mathml does not know
BRACKETS = [("{", "}"), (r"\begin", r"\end"), (r"\bigl", r"\bigr"), (r"\Bigl", r"\Bigr")]
SUPERSCRIPT = re.compile(r"\^(?:\(([^()]+)\)|(\w)(?!\w))")


def on_files(files, config, **kwargs):
    """What mkdocs calls with the files of the site: add those of the tutorials and of the gallery."""
    with ThreadPoolExecutor() as pool:
        examples = pool.submit(gallery.made)
        for name, text, more, seconds in notebooks.run_all():
            log.info("Tutorial %s: %.0f s", name, seconds)
            for path, content in {f"{name}.md": text, **more}.items():
                files.append(File.generated(config, f"tutorials/{path}", content=content))
        drawn = examples.result()
    for path, content in drawn.items():
        if path.endswith(".svg"):
            files.append(File.generated(config, f"gallery/{path}", content=content))
    hidden = InclusionLevel.NOT_IN_NAV
    for name in (name for section in gallery.listed().values() for name in section):
        text = gallery.page(name, drawn)
        files.append(File.generated(config, f"gallery/{name}.md", content=text, inclusion=hidden))
    for path in (ROOT / "research").rglob("*"):
        if path.suffix in (".md", ".svg", ".png", ".html"):
            place = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, place, abs_src_path=str(path), inclusion=hidden))
    return files


def on_page_markdown(markdown, page, files, **kwargs):
    """The cards of the gallery, the messages of errors, and the options of the command; links from docs to research
    and back."""
    markdown = in_the_site(markdown, page.file.src_uri)
    if page.file.src_uri == "errors.md":
        return markdown.replace(messages.MARK, messages.section())
    if page.file.src_uri == "command.md":
        return markdown.replace(command_page.MARK, command_page.section())
    if page.file.src_uri != "gallery.md":
        return markdown
    tutorials = [
        notebooks.card(name, files.get_file_from_path(f"tutorials/{name}.md").content_string)
        for name in notebooks.names()
    ]
    return markdown.replace(
        CARDS, "\n\n".join(["## Tutorials", gallery.grid(tutorials), gallery.cards(gallery.made())])
    )


def in_the_site(markdown, place):
    """Links as they lead in the site, where docs/ is the root and research/ lies in it.

    >>> in_the_site("[a](../research/rates/README.md#b)", "results.md")
    '[a](research/rates/README.md#b)'
    >>> in_the_site("[a](../../docs/theory.md), [b](../speed/README.md)", "research/rates/README.md")
    '[a](../../theory.md), [b](../speed/README.md)'
    """
    if place.startswith("research/"):
        return re.sub(r"\]\(((?:\.\./)+)docs/", r"](\1", markdown)
    return re.sub(r"\]\(((?:\.\./)*)\.\./research/", r"](\1research/", markdown)


def on_page_content(content, page=None, **kwargs):
    """What mkdocs calls with the HTML of every page."""
    for heading in page.toc if page else ():
        write(heading)
    content = MARKED.sub(lambda found: mathml(html.unescape(found[2]), block=found[1] == "div"), content)
    parts = VERBATIM.split(content)  # text, whole match, name of its tag, text, …
    parts[::3] = map(scripts, parts[::3])
    return "".join(part for i, part in enumerate(parts) if i % 3 != 2)


def write(heading):
    """The table of contents, as the headings are."""
    heading.title = scripts(heading.title)
    for child in heading.children:
        write(child)


def scripts(text):
    text = SUBSCRIPT.sub(lambda found: f"<i>{found[1]}</i><sub>{found[2] or found[3]}</sub>", text)
    return SUPERSCRIPT.sub(lambda found: f"<sup>{found[1] or found[2]}</sup>", text)


def mathml(tex, *, block):
    for ours, theirs in SPELLING.items():
        tex = tex.replace(ours, theirs)
    result = "".join(convert(part, display="block" if block else "inline") for part in (parts(tex) if block else [tex]))
    if unknown := re.findall(r"\\[A-Za-z]+|<mi>&</mi>", result):
        raise ValueError(f"latex2mathml does not know {', '.join(unknown)}, in {tex!r}")
    return f'<div class="formula">{result}</div>' if block else result


def parts(tex):
    r"""A formula cut at its wide spaces, where a narrow page may break it.

    >>> parts(r"a = \frac{1}{2}, \quad b = \mathrm{c \quad d}, \qquad e")
    ['a = \\frac{1}{2},', 'b = \\mathrm{c \\quad d},', 'e']
    """
    found = []
    for space, part in zip(*[iter(["", *re.split(r"(\\q?quad)(?![A-Za-z])", tex)])] * 2, strict=True):
        if found and any(found[-1].count(a) != found[-1].count(b) for a, b in BRACKETS):
            found[-1] += space + part
        else:
            found.append(part)
    return [part.strip() for part in found if part.strip()]
