"""The directive `evenfed-commands`: every command of the command line with its arguments and options."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from evenfed.cli.commands import app as command_line

_MARKUP = re.compile(r"\[/?[a-z ]*\]")  # rich's, in help texts


class EvenfedCommands(SphinxDirective):
    """Sections of all commands, in their order."""

    has_content = False

    def run(self) -> list[nodes.Node]:
        root = typer.main.get_command(command_line)
        sections: list[nodes.Node] = []
        for name, command in _leaves(root, "evenfed"):
            sections.append(self._section(name, command))
        return sections

    def _section(self, name: str, command: Any) -> nodes.section:
        section = nodes.section(ids=[nodes.make_id(name)])
        section += nodes.title(text=name)
        for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(command.help or "")):
            text = _MARKUP.sub("", paragraph).replace("\\[", "[")
            if "\n" in text and "evenfed " in text:
                section += nodes.literal_block(text, text, language="text")
            elif text:
                section += _paragraph(paragraph)
        options = nodes.definition_list()
        for parameter in command.params:
            if getattr(parameter, "hidden", False) or parameter.name == "help":
                continue
            options += _option(parameter)
        if len(options):
            section += options
        examples = _examples(command)
        if examples:
            section += nodes.literal_block(examples, examples, language="bash")
        self.state.document.note_implicit_target(section)
        return section


def _examples(command: Any) -> str:
    """Those at the end of its help, one per line."""
    lines = _MARKUP.sub("", getattr(command, "epilog", None) or "").replace("\\[", "[").splitlines()
    return "\n".join(line for line in lines if line.startswith("evenfed "))


def _leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
        return
    for word, each in inner.items():
        if not each.hidden:
            yield from _leaves(each, f"{name} {word}")


def _option(parameter: Any) -> nodes.definition_list_item:
    is_argument = parameter.param_type_name == "argument"
    names = parameter.human_readable_name.upper() if is_argument else ", ".join(parameter.opts)
    item = nodes.definition_list_item()
    term = nodes.term()
    term += nodes.literal(text=names)
    item += term
    about = getattr(parameter, "help", None) or ""
    item += nodes.definition("", _paragraph(about))
    return item


def _paragraph(text: str) -> nodes.paragraph:
    """A help text without rich's markup, with `code` in its backticks."""
    plain = _MARKUP.sub("", " ".join(text.split())).replace("\\[", "[")
    paragraph = nodes.paragraph()
    for position, part in enumerate(plain.split("`")):
        paragraph += nodes.literal(text=part) if position % 2 else nodes.Text(part)
    return paragraph


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("evenfed-commands", EvenfedCommands)
    return {"parallel_read_safe": True}
