"""Text of unknown origin, safe to show: labels, names of clients, files and folders."""

import re
from collections.abc import Sequence

# What a reader cannot see but a terminal, a figure or a page may obey: control characters, halves of surrogate pairs,
# line and paragraph separators, marks that turn the direction of text, invisible tags, and what is no character.
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\ud800-\udfff\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufdd0-\ufdef\ufeff"
    "\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e007f]"
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def printable(text: str, lines: bool = False) -> str:
    r"""Hidden characters as their escapes; `lines` keeps line breaks.

    >>> print(printable("ward\x1b[31m 3\n"))
    ward\x1b[31m 3\n
    """
    if text.isascii() and text.isprintable():
        return text
    if lines:
        return "\n".join(map(printable, text.split("\n")))
    return _HIDDEN.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


_SECRET = r"(?:password|passwd|passphrase|pwd|token|secret|api[-_]?key|credentials)"
_VALUE = r"(?:'[^']*'|\"[^\"]*\"|[^\s&;'\"]+)"
_PASSWORD = re.compile(
    rf"(?<=://)([^\s:/@]*):[^\s/]*@|({_SECRET}=|--[\w-]*{_SECRET}\s+(?!-)){_VALUE}",
    re.IGNORECASE,
)
_SECRET_OPTION = re.compile(rf"--?[\w.-]*{_SECRET}", re.IGNORECASE)


def without_passwords(text: str) -> str:
    """Text in which the passwords of addresses, and of options named after them, are stars.

    >>> without_passwords("--storage mysql://ann:secret@host/db?password=secret --token secret")
    '--storage mysql://ann:***@host/db?password=*** --token ***'
    """

    def hidden(match: re.Match[str]) -> str:
        if match[2] is not None:
            return f"{match[2]}***"
        return f"{match[1]}:***@"

    return _PASSWORD.sub(hidden, text)


def words_without_passwords(words: Sequence[str]) -> list[str]:
    """A command line, word by word, that may be stored.

    >>> words_without_passwords(["flwr-serverapp", "--token", "a secret", "--tokenizer", "words"])
    ['flwr-serverapp', '--token', '***', '--tokenizer', 'words']
    """
    shown = []
    is_secret = False
    for word in words:
        shown.append("***" if is_secret else without_passwords(word))
        is_secret = _SECRET_OPTION.fullmatch(word) is not None
    return shown


def in_sheet(text: str) -> str:
    """A cell that a spreadsheet shows as text, and does not compute.

    >>> print(in_sheet("=1+1"), in_sheet("fedavg"))
    '=1+1 fedavg
    """
    shown = printable(text)
    if text.startswith(_FORMULA):
        return f"'{shown}"
    return shown


# Where Markdown would begin a tag, a link, or make a link of an address; our own prose may use the rest of it.
_MARKUP = re.compile(r"<(?=[A-Za-z/!?])|\](?=[(\[])|\A\[(?=[^\]]*\]:)|(?<=:)/(?=/)|(?i:(?<=www)\.|(?<=javascript):)")
_STYLING = re.compile(r"[\\`*~&]|(?<![^\W_])_|_(?![^\W_])")


def in_markdown(prose: str) -> str:
    r"""A sentence without tags and links of its own.

    >>> print(in_markdown("see <b>this</b>, [here](javascript:alert(1))"))
    see \<b>this\</b>, [here\](javascript\:alert(1))
    """
    return _MARKUP.sub(r"\\\g<0>", printable(prose))


def name_in_markdown(name: str) -> str:
    r"""A name that Markdown shows letter by letter.

    >>> print(name_in_markdown("semi_vred[beta=1]"), name_in_markdown("*a*`b`"))
    semi_vred[beta=1] \*a\*\`b\`
    """
    return _MARKUP.sub(r"\\\g<0>", _STYLING.sub(r"\\\g<0>", printable(name)))
