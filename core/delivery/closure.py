"""Which packages a target needs: a walk over requirements and their markers. No I/O.

Why pip's own answer is not enough: told to resolve for another Python or another machine it picks the right wheels, but
still judges markers (`python_version < "3.13"`) by the Python it runs on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


@dataclass(frozen=True, slots=True)
class Package:
    """One chosen package. `name` is in normal form, `requires` as its metadata has them, `file` the wheel's name."""

    name: str
    version: str
    requires: tuple[str, ...]
    file: str


@dataclass(frozen=True, slots=True)
class Closure:
    """`needed` in the order of names; `missing` are requirements that no package meets, without their markers."""

    needed: tuple[Package, ...]
    missing: tuple[str, ...]


def close(roots: Iterable[str], packages: Mapping[str, Package], environment: Mapping[str, str]) -> Closure:
    """What of `packages` (by name) `roots` and their requirements come to in `environment`."""
    waiting = [Requirement(text) for text in roots]
    seen: set[tuple[str, str]] = set()
    needed: dict[str, Package] = {}
    missing: dict[str, None] = {}
    while waiting:
        wanted = waiting.pop()
        package = packages.get(canonicalize_name(wanted.name))
        if package is None or not wanted.specifier.contains(package.version, prereleases=True):
            missing[_plain(wanted)] = None
            continue
        needed[package.name] = package
        for extra in ("", *wanted.extras):
            if (package.name, extra) not in seen:
                seen.add((package.name, extra))
                waiting += _requirements(package, extra, environment)
    return Closure(tuple(needed[name] for name in sorted(needed)), tuple(missing))


def _requirements(package: Package, extra: str, environment: Mapping[str, str]) -> Iterator[Requirement]:
    for text in package.requires:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({**environment, "extra": extra}):
            yield requirement


def _plain(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"
