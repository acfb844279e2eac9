"""The console without a browser: what is served, and that the page is whole in itself."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cg_rag.core.console import DIRECTORY, PAGE, SCRIPTS, STYLES, load_page

HTML = load_page().body.decode()
POLICY = load_page().headers["Content-Security-Policy"]


class Outline(HTMLParser):
    """Tags with their attributes, and what stands inside scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": []}
        self._open = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = tag

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open in self.inside:
            self.inside[self._open].append(data)

    @property
    def ids(self) -> list[str]:
        return [str(attributes["id"]) for _, attributes in self.tags if "id" in attributes]


OUTLINE = Outline(HTML)
SCRIPT = "".join(OUTLINE.inside["script"])


def directives() -> dict[str, str]:
    return dict(part.split(" ", 1) for part in POLICY.split("; "))


def test_policy_allows_exactly_this_script_and_this_style() -> None:
    for tag in ("script", "style"):
        (text,) = OUTLINE.inside[tag]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert directives()[f"{tag}-src"] == f"'sha256-{digest}'"


def test_policy_refuses_everything_else() -> None:
    rest = {name: value for name, value in directives().items() if name not in ("script-src", "style-src")}
    assert rest == {
        "default-src": "'none'",
        "img-src": "blob: data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }


def test_page_names_nothing_outside_itself() -> None:
    for tag, attributes in OUTLINE.tags:
        assert not {name for name in attributes if name.startswith("on")} | (
            {"style", "srcdoc"} & set(attributes)
        ), tag
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)
    commentless = re.sub(r"^\s*//.*$", "", SCRIPT, flags=re.MULTILINE)
    assert not re.findall(r"(?:https?:|wss?:)?//[a-z]", commentless)
    style = "".join(OUTLINE.inside["style"])
    assert not re.findall(r"url\(|@import|@font-face", style)


FORBIDDEN = (
    *(
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "DOMParser",
        "createContextualFragment",
    ),
    *("eval(", "Function(", "import(", "localStorage", "indexedDB", "document.cookie", "location.search"),
)


@pytest.mark.parametrize("word", FORBIDDEN)
def test_script_knows_no_way_from_text_to_markup_and_no_lasting_place(word: str) -> None:
    assert not re.search(rf"\b{re.escape(word)}", SCRIPT)


def test_every_element_the_script_asks_for_stands_in_the_page_once() -> None:
    ids = OUTLINE.ids
    assert len(ids) == len(set(ids))
    asked = set(re.findall(r'byId\("([\w-]+)"\)', SCRIPT)) | set(
        re.findall(r"#([a-z][\w-]+) ?\[data", SCRIPT)
    )
    assert len(asked) > 30
    assert asked <= set(ids)
    made = {f"{kind}-{panel}" for kind in ("tab", "panel") for panel in ("talk", "retrieval", "verify")}
    assert made <= set(ids)


def test_every_control_of_the_page_has_a_label() -> None:
    labelled = {attributes.get("for") for tag, attributes in OUTLINE.tags if tag == "label"}
    for field in re.finditer(r"<(input|select|textarea)\b[^>]*>", HTML):
        name = re.search(r'id="([\w-]+)"', field[0])
        assert name is not None
        before = HTML[: field.start()]
        is_inside = before.rfind("<label") > before.rfind("</label>")
        assert is_inside or name[1] in labelled, field[0]
    for reference in re.findall(r'aria-(?:controls|labelledby|describedby)="([\w-]+)"', HTML):
        assert reference in OUTLINE.ids


def test_every_file_of_the_folder_is_used() -> None:
    files = {path.name for path in DIRECTORY.iterdir() if path.suffix != ".py" and path.is_file()}
    assert files == {PAGE, *STYLES, *SCRIPTS}


def changed(tmp_path: Path, name: str, text: str) -> Path:
    folder = tmp_path / "console"
    shutil.copytree(DIRECTORY, folder)
    (folder / name).write_text(text, "utf-8")
    return folder


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("text.js", "const end = '</script>';"),
        ("text.js", "// <!-- hides the end"),
        ("colors.css", "/* </style> */"),
        (PAGE, "<style></style><script>/*script*/</script>"),
        (PAGE, "<style>/*style*/</style><script>/*script*/ /*script*/</script>"),
    ],
)
def test_page_that_would_break_out_of_its_place_is_not_served(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(ValueError, match=name):
        load_page(changed(tmp_path, name, text))


def test_line_ends_of_a_checkout_change_nothing(tmp_path: Path) -> None:
    text = (DIRECTORY / "sse.js").read_text("utf-8")
    folder = changed(tmp_path, "sse.js", "")
    (folder / "sse.js").write_bytes(text.replace("\n", "\r\n").encode())
    assert load_page(folder) == load_page()
