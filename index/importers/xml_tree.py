"""XML of untrusted files as a small tree, with what makes XML dangerous refused.

Rule: no document type, hence no entities, neither those that grow nor those that read other files; bounded depth and
bounded number of elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from xml.parsers import expat

# A law of ten thousand articles has 300,000; this many take 250 MB while they are read.
MAX_ELEMENTS = 600_000
MAX_DEPTH = 100


class XmlInvalid(ValueError):
    """The reason in Chinese."""


@dataclass(slots=True)
class Element:
    """`tag` is `prefix:local`, with the prefix that the caller gave the namespace, `?:local` for any other.

    Attributes have their local names. `text` is the text directly inside, of leaves only what matters to us.
    """

    tag: str
    attributes: Mapping[str, str]
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def find(self, *path: str) -> Element | None:
        """The first element down `path`."""
        current: Element | None = self
        for tag in path:
            current = (
                next((child for child in current.children if child.tag == tag), None) if current else None
            )
        return current

    def get(self, path: tuple[str, ...], attribute: str) -> str | None:
        found = self.find(*path)
        return found.attributes.get(attribute) if found else None

    def walk(self) -> Iterator[Element]:
        """This element and all below it, in document order."""
        yield self
        for child in self.children:
            yield from child.walk()


class _Builder:
    def __init__(self, prefixes: Mapping[str, str]) -> None:
        self._prefixes = prefixes
        self._stack = [Element("", {})]
        self._num_elements = 0

    @property
    def root(self) -> Element:
        return self._stack[0].children[0]

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._num_elements += 1
        if self._num_elements > MAX_ELEMENTS or len(self._stack) > MAX_DEPTH:
            raise XmlInvalid(f"XML 超过 {MAX_ELEMENTS} 个元素或 {MAX_DEPTH} 层")
        namespace, _, local = name.rpartition(" ")
        element = Element(
            f"{self._prefixes.get(namespace, '?')}:{local}",
            {key.rpartition(" ")[2]: value for key, value in attributes.items()},
        )
        self._stack[-1].children.append(element)
        self._stack.append(element)

    def end(self, name: str) -> None:
        self._stack.pop()

    def text(self, data: str) -> None:
        self._stack[-1].text += data

    def refuse(self, *_: object) -> None:
        raise XmlInvalid("XML 含有文档类型声明（DTD），不予读取")


def parse_xml(raw: bytes, prefixes: Mapping[str, str]) -> Element:
    """The root element; `prefixes` maps namespaces to the prefixes that tags get. Raises XmlInvalid."""
    builder = _Builder(prefixes)
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.buffer_size = 1 << 20  # a long text comes in few pieces
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.text
    parser.StartDoctypeDeclHandler = builder.refuse
    parser.EntityDeclHandler = builder.refuse
    try:
        parser.Parse(raw, True)
    except (expat.ExpatError, LookupError, ValueError) as error:
        if isinstance(error, XmlInvalid):
            raise
        raise XmlInvalid(f"XML 损坏：{error}") from error
    return builder.root
