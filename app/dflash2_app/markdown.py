"""Markdown of a model's as HTML. What a model writes is not trusted: no tag of its own, no script, nothing fetched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict


class _Renderer(RendererHTML):
    """Links open elsewhere; an image becomes a link to it, since showing it would ask another server for it."""

    def link_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: Any) -> str:
        tokens[idx].attrSet("rel", "noopener noreferrer nofollow")
        return self.renderToken(tokens, idx, options, env)

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: Any) -> str:
        token = tokens[idx]
        address = str(token.attrGet("src") or "")
        text = self.renderInlineAsText(token.children or [], options, env) or address
        link = Token("link_open", "a", 1, attrs={"href": address, "rel": "noopener noreferrer nofollow"})
        return f"{self.renderToken([link], 0, options, env)}{_escaped(f'image: {text}')}</a>"


_PARSER = MarkdownIt("commonmark", {"html": False}, renderer_cls=_Renderer).enable("strikethrough").enable("table")


def to_html(text: str) -> str:
    """HTML of the text's Markdown. Tags in it are shown as text; addresses of scripts are no links."""
    return str(_PARSER.render(text))


def plain_to_html(text: str) -> str:
    """The text as it is, its line breaks kept by the class `as-is`."""
    return f'<div class="as-is">{_escaped(text)}</div>'


def _escaped(text: str) -> str:
    for sign, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        text = text.replace(sign, entity)
    return text
