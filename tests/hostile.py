"""Texts that a terminal or a browser would obey, and any JSON, as a stranger may send them."""

from __future__ import annotations

from hypothesis import strategies as st

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
HOSTILE = {
    "title of the window": "\x1b]0;owned\x07",
    "title, by ST": "\x1b]2;owned\x1b\\",
    "clear screen": "\x1b[2J\x1b[H",
    "link": "\x1b]8;;http://evil.example\x1b\\here\x1b]8;;\x1b\\",
    "clipboard": "\x1b]52;c;b3duZWQ=\x07",
    "bell": "\x07\x07",
    "overwritten line": "safe\rowned",
    "backspaces": "safe\x08\x08\x08\x08owned",
    "8-bit CSI": "\x9b2J",
    "8-bit OSC": "\x9d0;owned\x9c",
    "other screen": "\x1b[?1049h",
    "reset": "\x1bc",
    "concealed": "\x1b[8mowned\x1b[0m",
    "device control": "\x1bP+q544e\x1b\\",
    "answerback": "\x05\x1b[6n",
    "lines above": "\x1b[2K\x1b[1Aowned",
    "other letters": "\x0e\x1b(0owned",
    "NUL and DEL": "\x00\x7f\x0b\x0c",
    "turned round": "\u202edenwo \u2067owned\u2069 \u202bx\u202c \u200f\u061c",
    "rich markup": "[bold]loud[/bold] [link=http://evil.example]here[/link] :bomb: [/nothing]",
}
"""20 texts by what they would do."""
PASSAGES = {f"h{at}": f"evil {at} {text} end {at}" for at, text in enumerate(HOSTILE.values())}
"""The same, each between words that a test finds."""
