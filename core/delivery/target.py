"""The machine that a delivery is for, as pip and package metadata name it."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass

PLATFORMS = ("linux_x86_64", "linux_aarch64")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
GLIBC = (2, 28)
"""The oldest C library served: Kylin V10, openEuler 20.03, Debian 10 and EL8 have it."""

# The oldest glibc that manylinux tags name, and the names from before they named it.
_FIRST_MINOR: Mapping[str, int] = {"x86_64": 5, "aarch64": 17}
_LEGACY: Mapping[str, tuple[str, ...]] = {
    "x86_64": ("manylinux2014", "manylinux2010", "manylinux1"),
    "aarch64": ("manylinux2014",),
}


@dataclass(frozen=True, slots=True)
class Target:
    """`platform` is one of PLATFORMS, `python` one of PYTHONS."""

    platform: str
    python: str

    @property
    def machine(self) -> str:
        return self.platform.removeprefix("linux_")

    def platform_tags(self) -> list[str]:
        """Every tag of a wheel that runs there, newest first. pip takes tags to the letter: with manylinux_2_28 alone
        it passes over wheels tagged 2_17 and picks some ancient version that happens to match."""
        minors = range(GLIBC[1], _FIRST_MINOR[self.machine] - 1, -1)
        tags = [f"manylinux_{GLIBC[0]}_{minor}_{self.machine}" for minor in minors]
        return tags + [f"{name}_{self.machine}" for name in _LEGACY[self.machine]]

    def pip_options(self) -> list[str]:
        """What makes pip choose for the target and not for the machine it runs on."""
        abi = "cp" + self.python.replace(".", "")
        options = ["--only-binary=:all:", "--implementation=cp", f"--python-version={self.python}"]
        options += [f"--abi={name}" for name in (abi, "abi3", "none")]
        return options + [f"--platform={tag}" for tag in self.platform_tags()]

    def marker_environment(self) -> dict[str, str]:
        """The variables of environment markers (PEP 508). The patch release is the first one, for which markers ask the
        most."""
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
        }


def this_platform() -> str | None:
    """The platform of this machine when it is one that deliveries are made for."""
    name = f"{sys.platform}_{platform.machine()}"
    return name if name in PLATFORMS else None


def this_python() -> str | None:
    name = f"{sys.version_info.major}.{sys.version_info.minor}"
    return name if name in PYTHONS else None
