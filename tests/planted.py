"""Mistakes planted in C text, found however the formatter has broken its lines."""

import re

BETWEEN = r"(?:\s|\\\n)*"


def anywhere(code):
    """Matches code with any whitespace, or none, between two tokens."""
    tokens = re.findall(r"\w+|[^\w\s]", code)
    start = r"(?<!\w)" if code[0].isspace() else ""
    end = r"\n" if code[-1] == "\n" else r"(?!\w)" if code[-1].isspace() else ""
    return re.compile(start + BETWEEN.join(re.escape(t) for t in tokens) + end)


def plant(text, right, wrong, count=1):
    """The text with `right` replaced; it must be there `count` times."""
    text, n = anywhere(right).subn(lambda _: wrong, text)
    assert n == count, f"{n} times in the text, expected {count}: {right}"
    return text


def loose(regex):
    """A regular expression in which a blank, and the end of an opening parenthesis, match line breaks too."""
    return regex.replace(r"\(", rf"\({BETWEEN}").replace(" ", r"\s+")
