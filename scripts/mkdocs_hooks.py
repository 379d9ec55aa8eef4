r"""For the docs: formulas become MathML while the site is built, which browsers draw without a script or the network.

`pymdownx.arithmatex` finds TeX in pages and docstrings and marks it. In prose, x_t and T^(-1/3) become subscripts and
superscripts; code is left alone.

>>> on_page_content("<p>x_t, g_{t+1}, T^(-1/3), n_samples, <code>x_t</code></p>")
'<p><i>x</i><sub>t</sub>, <i>g</i><sub>t+1</sub>, T<sup>-1/3</sup>, n_samples, <code>x_t</code></p>'
>>> on_page_content(r'<span class="arithmatex">\(x\)</span>')
'<math xmlns="http://www.w3.org/1998/Math/MathML" display="inline"><mrow><mi>x</mi></mrow></math>'
"""

import html
import re

from latex2mathml.converter import convert

MARKED = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', flags=re.S)
VERBATIM = re.compile(r"(<(math|code|pre|title)\b.*?</\2>|<[^>]*>)", flags=re.S)
SUBSCRIPT = re.compile(r"(?<![A-Za-z0-9_.])([^\W\d_][̂̃̄]?)_(?:\{([^{}]+)\}|(max|min|\d+|\w))(?!\w)")
SPELLING = {r"\arg\min": r"\mathrm{arg\,min}", "{aligned}": "{align*}"}  # what latex2mathml does not know
SUPERSCRIPT = re.compile(r"\^(?:\(([^()]+)\)|(\w)(?!\w))")


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
    result = convert(tex, display="block" if block else "inline")
    if unknown := re.findall(r"\\[A-Za-z]+|<mi>&</mi>", result):
        raise ValueError(f"latex2mathml does not know {', '.join(unknown)}, in {tex!r}")
    return f'<div class="formula">{result}</div>' if block else result
