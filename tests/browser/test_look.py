"""The looks themselves: each complains about a page that is wrong in its way, and about nothing else of it."""

import look
from world import NARROW, WIDE

PAGE = """<!doctype html><html lang="en"><title>x</title><style>{style}</style><body><h1>Hello</h1>
<p>One</p><p>Two</p><p>Three</p><p>Four</p><p><a href="#a">A link</a></p>
<label>Name <input name="a"></label><button>Go</button>{more}</body></html>"""

# What is wrong, style, more markup, what the complaint begins with.
FAULTS = [
    ("grey on white", "p { color: #999 }", "", "contrast 2.8"),
    ("see-through text", "p { color: rgb(0 0 0 / 40%) }", "", "contrast "),
    ("faded by its parent", "body { opacity: .4 }", "", "contrast "),
    ("grey on a dark panel", "div { background: #222; color: #666 }", "<div>Hidden words</div>", "contrast "),
    ("a pale placeholder", "::placeholder { color: #bbb }", "<label>B <input placeholder=Search></label>", "contrast "),
    ("a field without a label", "", "<input name=b>", "no label"),
    ("a button without a name", "", "<button></button>", "no name"),
    ("a frame without a title", "", "<iframe></iframe>", "no title"),
    ("an id twice", "", "<i id=a>x</i><i id=a>y</i>", "id twice"),
    ("a second h1", "", "<h1>Again</h1>", "not one h1"),
    ("an inline style", "", '<p style="margin: 0">x</p>', "an inline style"),
    ("too wide", "", "<pre>" + "wide " * 100 + "</pre>", "scrolls sideways"),
    ("no outline", ":focus { outline: none }", "", "focus is not to be seen"),
]


def complaints(page, style, more):
    page.set_content(PAGE.replace("{style}", style).replace("{more}", more))
    return look.everything(page) + look.focus(page)


def test_each_fault_is_noticed(browser):
    page = browser.new_context(viewport=NARROW).new_page()
    assert complaints(page, "", "") == []
    for fault, style, more, expected in FAULTS:
        found = complaints(page, style, more)
        assert found and all(complaint.startswith(expected) for complaint in found), f"{fault}: {found}"
    page.set_viewport_size(WIDE)
    assert complaints(page, "h1 { color: #888; font-size: 40px }", "") == [], "large letters may be paler"
    page.context.close()
