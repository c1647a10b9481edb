"""Docstrings as they are written here, for Sphinx: plain sentences, `names` in backticks, formulas, and fields of a
dataclass explained by the comment beside them."""

import dataclasses
import inspect
import re
from typing import Any

from evenfed.core.algorithm import Algorithm

_ITEM = re.compile(r"^`(\w+)(\([^`]*\))?`: ")
_CODE = re.compile(r"(`[^`]*`)")
_LINKED = re.compile(r"`(evenfed(\.\w+)+|[A-Z]\w*(\.\w+)*)`")
_MARKUP = re.compile(r"([*|\\]|(?<=\w)_(?=\W|$))")
_FORMULA = re.compile(r"[=←≤∝]|argmin|argmax")
_BOUNDS = {"above": "above", "least": "at least", "most": "at most"}


def as_rst(lines: list[str], formulas: bool = False) -> list[str]:
    """Text with nothing in it that reStructuredText would take for markup, but `names` and doctests.

    Lines that begin with a `name`: become a list; with `formulas`, paragraphs that hold one are shown as they are.
    """
    written: list[str] = []
    for paragraph in _paragraphs(lines):
        if paragraph[0].lstrip().startswith((">>>", ".. ", "* ")):
            written += paragraph
        elif formulas and _FORMULA.search(" ".join(paragraph)):
            written += [".. code-block:: text", "", *_formulas(paragraph)]
        else:
            written += _with_items(paragraph)
        written.append("")
    return written


def _paragraphs(lines: list[str]) -> list[list[str]]:
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    return [paragraph for paragraph in paragraphs if paragraph]


def _formulas(paragraph: list[str]) -> list[str]:
    """One formula per line: they are set apart by two spaces."""
    lines = []
    for line in paragraph:
        for formula in re.split(r"[,;]?\s{2,}", line.strip()):
            lines.append(f"    {formula}")
    return lines


def _with_items(paragraph: list[str]) -> list[str]:
    written: list[str] = []
    in_list = False
    for line in paragraph:
        item = _ITEM.match(line)
        if item is not None:
            if not in_list:
                written.append("")
            in_list = True
            written.append(f"* {escaped(line)}")
        elif in_list:
            written.append(f"  {escaped(line.strip())}")
        else:
            written.append(escaped(line))
    return written


def escaped(text: str) -> str:
    """Text whose only markup are its backticks.

    >>> escaped("w_i of `plan` and `Result`, |f| and x_")
    'w_i of ``plan`` and `Result`, \\\\|f\\\\| and x\\\\_'
    """
    parts = []
    for part in _CODE.split(text):
        if not part.startswith("`"):
            parts.append(_MARKUP.sub(r"\\\1", part))
        elif _LINKED.fullmatch(part):
            parts.append(part)
        else:
            parts.append(f"`{part}`")  # as code: a parameter `train` is not the function of that name
    return "".join(parts)


def fields_of(cls: type) -> list[str]:
    """The fields of a dataclass as a list: name, default, and what the comment beside it says."""
    comments = _comments(cls)
    written = []
    for spec in dataclasses.fields(cls):
        if spec.name.startswith("_") or not spec.init:
            continue
        about = spec.metadata.get("help") or comments.get(spec.name, "")
        default = "" if spec.default is dataclasses.MISSING else f" = ``{spec.default!r}``"
        meaning = f": {escaped(about)}" if about else ""
        written.append(f"* **{spec.name}**{default}{meaning}{_limits(spec.metadata)}")
    if not written:
        return []
    return [
        "",
        ".. rubric:: Fields" if not issubclass(cls, Algorithm) else ".. rubric:: Hyper-parameters",
        "",
        *written,
    ]


def _comments(cls: type) -> dict[str, str]:
    comments = {}
    for line in inspect.getsource(cls).splitlines():
        found = re.match(r"    (\w+): [^#]*#\s*(.*)", line)
        if found is not None:
            comments[found[1]] = found[2]
    return comments


def _limits(metadata: Any) -> str:
    parts = []
    bounds = [f"{words} {metadata[key]}" for key, words in _BOUNDS.items() if metadata.get(key) is not None]
    if bounds:
        parts.append(f"{' and '.join(bounds)}")
    if metadata.get("fedavg") is not None:
        parts.append(f"FedAvg at {metadata['fedavg']}")
    text = f" ({', '.join(parts)})" if parts else ""
    if metadata.get("danger"):
        text += f". **Danger:** {escaped(metadata['danger'])}"
    return text


def process(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    is_algorithm = isinstance(value, type) and issubclass(value, Algorithm)
    if is_algorithm and value is not Algorithm and value.reference:
        lines += ["", f"Reference: {value.reference}."]
    lines[:] = as_rst(lines, formulas=is_algorithm and value is not Algorithm)
    if isinstance(value, type) and dataclasses.is_dataclass(value):
        lines += fields_of(value)
        lines.append("")


def signature_of(app, what, name, value, options, signature, returns):  # type: ignore[no-untyped-def]
    """A dataclass has its fields in a list below; a signature of thirty would be read by nobody."""
    if what != "class" or not dataclasses.is_dataclass(value):
        return None
    fields = [spec for spec in dataclasses.fields(value) if spec.init]
    if len(fields) > 6:
        return "(...)", returns
    return "(" + ", ".join(map(_parameter, fields)) + ")", returns


def _parameter(spec: "dataclasses.Field[Any]") -> str:
    return spec.name if spec.default is dataclasses.MISSING else f"{spec.name}={spec.default!r}"


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-process-signature", signature_of)
    return {"parallel_read_safe": True}
