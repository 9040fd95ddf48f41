"""Plants mistakes in C source, wherever the formatter has broken its lines."""

import re

COMMENT = r"/\*(?:[^*]|\*(?!/))*\*/|//[^\n]*"
BETWEEN = rf"(?:\s|\\\n|{COMMENT})*"


def anywhere(code):
    """Returns a pattern that matches code with any whitespace and comments, or nothing, between two tokens."""
    assert not re.search(COMMENT, code), "name the code next to it: comments are rewritten"
    tokens = re.findall(r"\w+|[^\w\s]", code)
    start = r"(?<!\w)" if code[0].isspace() else ""
    end = r"\n" if code[-1] == "\n" else r"(?!\w)" if code[-1].isspace() else ""
    return re.compile(start + BETWEEN.join(re.escape(t) for t in tokens) + end)


def plant(text, right, wrong, count=1):
    """Returns the source with `right` replaced by `wrong`; `right` must occur `count` times."""
    text, n = anywhere(right).subn(lambda _: wrong, text)
    assert n == count, f"{n} times in the text, expected {count}: {right}"
    return text


def loose(regex):
    """A regular expression in which a blank, and the end of an opening parenthesis, match line breaks too."""
    return regex.replace(r"\(", rf"\({BETWEEN}").replace(" ", r"\s+")
