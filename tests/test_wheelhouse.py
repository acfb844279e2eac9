"""The delivery for machines without a network: what pip is asked, what is refused, what the scripts do."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Mapping
from importlib.metadata import Distribution
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cg_rag import main
from cg_rag.core.delivery.closure import Package, close
from cg_rag.core.delivery.errors import DeliveryFailed, DeliveryRefused
from cg_rag.core.delivery.make import EXTRAS
from cg_rag.core.delivery.own_wheel import repack, requirements_of
from cg_rag.core.delivery.parts import copy_scripts, pack_model, take_python, write_checksums
from cg_rag.core.delivery.target import PLATFORMS, PYTHONS, Target
from cg_rag.core.delivery.wheels import PINS, download, resolve
from cg_rag.core.settings import ServerSettings

ROOT = Path(__file__).resolve().parent.parent
X86, ARM = Target("linux_x86_64", "3.11"), Target("linux_aarch64", "3.14")
FILES = ROOT / "core" / "delivery" / "files"


# --- which packages ------------------------------------------------------------------------------------------------


def package(name: str, version: str = "1.0", *requires: str) -> Package:
    return Package(name, version, requires, f"{name}-{version}-py3-none-any.whl")


def closed(target: Target, *packages: Package) -> tuple[list[str], list[str]]:
    """(needed names, missing) of the first package's requirements."""
    closure = close(
        [packages[0].name], {entry.name: entry for entry in packages}, target.marker_environment()
    )
    return [entry.name for entry in closure.needed], list(closure.missing)


def test_markers_are_judged_by_the_target_and_not_by_this_python() -> None:
    own = package(
        "own",
        "1.0",
        'old; python_version < "3.12"',
        'arm; platform_machine == "aarch64"',
        'windows; sys_platform == "win32"',
        'patch; python_full_version < "3.11.3"',
    )
    extra = [package(name) for name in ("old", "arm", "windows", "patch")]
    assert closed(X86, own, *extra) == (["old", "own", "patch"], [])
    assert closed(ARM, own, *extra) == (["arm", "own"], [])


def test_an_extra_brings_what_it_asks_for_and_no_other_does() -> None:
    own = package("own", "1.0", "web[fast]>=2")
    web = package("web", "2.1", 'speed>=1; extra == "fast"', 'docs; extra == "docs"', "own")
    assert closed(X86, own, web, package("speed"), package("docs")) == (["own", "speed", "web"], [])
    assert closed(X86, own, web) == (["own", "web"], ["speed>=1"])


def test_a_version_out_of_bounds_counts_as_missing() -> None:
    assert closed(X86, package("own", "1.0", "a>=2"), package("a", "1.9")) == (["own"], ["a>=2"])


@given(
    st.dictionaries(
        st.sampled_from("abcdef"),
        st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(PYTHONS)), max_size=4),
    ),
    st.sampled_from(PYTHONS),
)
def test_what_is_needed_is_exactly_what_can_be_reached(
    edges: Mapping[str, list[tuple[str, str]]], python: str
) -> None:
    target = Target("linux_x86_64", python)
    packages = {
        name: package(name, "1.0", *(f'{to}; python_version < "{below}"' for to, below in targets))
        for name, targets in edges.items()
    }
    closure = close(["a"], packages, target.marker_environment())
    reached, waiting = set(), ["a"]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += [
                to for to, below in edges.get(name, ()) if PYTHONS.index(python) < PYTHONS.index(below)
            ]
    assert {entry.name for entry in closure.needed} == reached & packages.keys()
    assert set(closure.missing) == reached - packages.keys()


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_tags_are_those_of_glibc_2_28_and_older(platform: str) -> None:
    target = Target(platform, "3.12")
    tags = target.platform_tags()
    named = ("2_28", "2_27", "2_26", "2_24", "2_17") + (("2_12", "2_5") if "x86" in platform else ())
    legacy = ("2014", "2010", "1") if "x86" in platform else ("2014",)
    wanted = [f"manylinux_{name}_{target.machine}" for name in named]
    wanted += [f"manylinux{name}_{target.machine}" for name in legacy]
    assert set(wanted) <= set(tags)
    assert not [tag for tag in tags if re.match(r"manylinux_2_(29|[3-9]\d)", tag)]
    assert tags[0] == wanted[0]


def test_the_pins_fit_the_bounds_that_we_declare() -> None:
    pins = dict(line.split("==") for line in PINS.read_text("utf-8").splitlines() if "==" in line)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    ours = [text for extra in EXTRAS for text in project["optional-dependencies"][extra]]
    for text in (*project["dependencies"], *ours, "pip"):
        requirement = Requirement(text)
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), text
    assert list(pins) == sorted(pins)


# --- pip, over a folder that stands for a package index ------------------------------------------------------------


def write_wheel(folder: Path, name: str, version: str, tag: str = "py3-none-any", *requires: str) -> Path:
    path = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    lines = [f"Requires-Dist: {text}\n" for text in requires]
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{''.join(lines)}"
        )
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What pip finds, and nothing else: set as its user would, in its own configuration."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    config = tmp_path / "pip.conf"
    config.write_text(f"[global]\nno-index = true\nfind-links = {folder}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    write_wheel(folder, "pip", "99.0")
    return folder


def test_wheels_are_found_under_every_tag_and_what_only_the_target_needs_is_added(
    shelf: Path, tmp_path: Path
) -> None:
    # Newest first: one for a newer glibc than the target has, one under an old tag, and one that no pin allows.
    write_wheel(shelf, "fast", "3.0", "cp314-cp314-manylinux_2_34_aarch64")
    write_wheel(shelf, "fast", "2.0", "cp314-cp314-manylinux_2_17_aarch64.manylinux2014_aarch64")
    write_wheel(shelf, "fast", "0.1", "cp39-abi3-manylinux_2_28_aarch64")
    write_wheel(shelf, "fast", "2.0", "cp314-cp314-manylinux_2_17_x86_64")
    write_wheel(
        shelf,
        "base",
        "1.5",
        "py3-none-any",
        'late>=1; python_version >= "3.14"',
        'old; python_version < "3.12"',
    )
    write_wheel(shelf, "base", "1.6")
    for name in ("late", "old"):
        write_wheel(shelf, name, "1.0")
    pins = tmp_path / "pins.txt"
    pins.write_text("base==1.5\n")
    own = package("own", "1.0", "fast", "base>=1", 'pytest; extra == "test"')
    packages = resolve(own, ARM, pins)
    assert [(entry.name, entry.version) for entry in packages] == [
        ("base", "1.5"),
        ("fast", "2.0"),
        ("late", "1.0"),
        ("own", "1.0"),
        ("pip", "99.0"),
    ]
    told: list[int] = []
    (tmp_path / "got").mkdir()
    download([entry for entry in packages if entry != own], ARM, tmp_path / "got", told.append)
    assert {path.name for path in (tmp_path / "got").iterdir()} == {
        entry.file for entry in packages if entry != own
    }
    assert sum(told) == 4


def test_an_extra_of_ours_comes_along_when_it_is_ordered_with_all_that_it_needs(
    shelf: Path, tmp_path: Path
) -> None:
    write_wheel(shelf, "engine", "2.0", "py3-none-any", 'late>=1; python_version >= "3.14"')
    write_wheel(shelf, "engine", "1.0")
    write_wheel(shelf, "late", "1.0")
    write_wheel(shelf, "base", "1.0")
    own = package("own", "1.0", "base", 'engine>=1; extra == "milvus"', 'pytest; extra == "test"')

    def names(target: Target, *extras: str, pins: Path | None = None) -> list[tuple[str, str]]:
        return [(entry.name, entry.version) for entry in resolve(own, target, pins, extras)]

    plain = [("base", "1.0"), ("own", "1.0"), ("pip", "99.0")]
    assert names(ARM) == plain
    assert names(ARM, "milvus") == sorted([*plain, ("engine", "2.0"), ("late", "1.0")])
    assert names(X86, "milvus") == sorted([*plain, ("engine", "2.0")])
    pins = tmp_path / "pins.txt"
    pins.write_text("engine==1.0\n")
    assert ("engine", "1.0") in names(ARM, "milvus", pins=pins)


def test_a_delivery_whose_configuration_needs_an_extra_is_not_made_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CG_RAG_INDEX_BACKEND", "milvus")
    monkeypatch.setenv("CG_RAG_INDEX_MILVUS_URI", "http://127.0.0.1:19530")
    assert main(["wheelhouse", str(tmp_path / "out"), "--platform", "linux_x86_64", "--python", "3.11"]) == 2
    assert "--extras milvus" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_package_that_cannot_be_had_is_named(shelf: Path) -> None:
    with pytest.raises(DeliveryFailed, match=r"linux_aarch64 Python 3\.14 .*absent"):
        resolve(package("own", "1.0", "absent>=1"), ARM, None)


# --- our own wheel -------------------------------------------------------------------------------------------------


def installed(folder: Path) -> Distribution:
    """A package as pip leaves it: modules, compiled ones, a script outside, its own notes."""
    (folder / "tool").mkdir(parents=True)
    info = folder / "tool-1.2.dist-info"
    info.mkdir()
    contents = {
        "tool/__init__.py": b"x = 1\n",
        "tool/data.txt": "文字".encode(),
        "tool-1.2.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tool\nVersion: 1.2\nRequires-Dist: a>=1\nRequires-Dist: b; extra == 'c'\n\nRequires-Dist: no",
        "tool-1.2.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "tool-1.2.dist-info/INSTALLER": b"pip\n",
    }
    wheel = folder.parent / "original.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        for name, content in contents.items():
            (folder / name).write_bytes(content)
            file.writestr(name, content)
    from base64 import urlsafe_b64encode
    from hashlib import sha256

    lines = [
        f"{name},sha256={urlsafe_b64encode(sha256(content).digest()).decode().rstrip('=')},{len(content)}"
        for name, content in contents.items()
    ]
    lines += ["../../../bin/tool,sha256=abc,3", "tool/__pycache__/__init__.cpython-311.pyc,,"]
    (info / "RECORD").write_text("\n".join([*lines, "tool-1.2.dist-info/RECORD,,", ""]))
    return Distribution.at(info)


def test_an_installation_gives_back_the_wheel_it_came_from(tmp_path: Path) -> None:
    wheel = repack(installed(tmp_path / "site"), tmp_path)
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        assert names == {
            "tool/__init__.py",
            "tool/data.txt",
            *(f"tool-1.2.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD")),
        }
        listed = [line.split(",")[0] for line in file.read("tool-1.2.dist-info/RECORD").decode().splitlines()]
        assert set(listed) == names
    assert requirements_of(wheel) == ("a>=1", "b; extra == 'c'")
    first = wheel.read_bytes()
    assert repack(Distribution.at(tmp_path / "site" / "tool-1.2.dist-info"), tmp_path).read_bytes() == first


def test_a_file_changed_since_the_installation_is_not_delivered(tmp_path: Path) -> None:
    distribution = installed(tmp_path / "site")
    (tmp_path / "site" / "tool" / "data.txt").write_text("other")
    with pytest.raises(DeliveryFailed, match=r"tool/data\.txt"):
        repack(distribution, tmp_path)


# --- what is carried along -----------------------------------------------------------------------------------------


def python_archive(path: Path, machine: int, name: str = "python/bin/python3.11") -> Path:
    binary = path.with_name("binary")
    binary.write_bytes(b"\x7fELF" + bytes(14) + machine.to_bytes(2, "little") + bytes(40))
    with tarfile.open(path, "w:gz") as tar:
        tar.add(binary, name)
    return path


def test_a_python_archive_has_to_hold_the_interpreter_of_the_target(tmp_path: Path) -> None:
    good = python_archive(tmp_path / "good.tar.gz", 62)
    assert take_python(good, X86, tmp_path / "python").read_bytes() == good.read_bytes()
    (tmp_path / "text.tar").write_text("text")
    for archive, reason in (
        (python_archive(tmp_path / "arm.tar.gz", 183), "不是 linux_x86_64 的程序"),
        (python_archive(tmp_path / "other.tar.gz", 62, "python/bin/python3.12"), r"没有 bin/python3\.11"),
        (tmp_path / "text.tar", "不是可读的 tar"),
        (tmp_path / "none.tar", "不是可读的 tar"),
    ):
        with pytest.raises(DeliveryRefused, match=reason):
            take_python(archive, X86, tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_a_model_is_packed_the_same_every_time_and_only_when_it_is_one(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(DeliveryRefused, match=r"cg_rag_model\.json"):
        pack_model(tmp_path / "model", tmp_path / "out")
    (tmp_path / "model" / "cg_rag_model.json").write_text("{}")
    first = pack_model(tmp_path / "model", tmp_path / "out").read_bytes()
    os.utime(tmp_path / "model" / "cg_rag_model.json", (1, 1))
    assert pack_model(tmp_path / "model", tmp_path / "out").read_bytes() == first


# --- the scripts ---------------------------------------------------------------------------------------------------


def scripts(folder: Path, **values: str) -> Path:
    """A delivery of scripts alone."""
    known = {
        "VERSION": "9.9.9",
        "PLATFORM": "linux_x86_64",
        "MACHINE": os.uname().machine,
        "PYTHON": f"{sys.version_info.major}.{sys.version_info.minor}",
        "GLIBC_MINOR": "28",
        "EMBEDDING_MODEL": "",
        "RERANK_MODEL": "",
    } | values
    folder.mkdir()
    copy_scripts(
        folder, lambda text: re.sub(r"@([A-Z_]+)@", lambda match: known.get(match[1], match[0]), text)
    )
    (folder / "wheels").mkdir()
    (folder / "wheels" / "a.whl").write_text("a")
    write_checksums(folder)
    return folder


def run_script(script: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(script), *words],
        env={"PATH": os.environ["PATH"], "LC_ALL": "C", **environ},
        capture_output=True,
        text=True,
        timeout=300,
    )


def places(folder: Path) -> list[str]:
    words = ["--no-service"]
    for name in ("prefix", "config-dir", "data-dir"):
        words += [f"--{name}", str(folder / name)]
    return words


def test_verify_finds_what_was_changed_what_is_missing_and_what_was_added(tmp_path: Path) -> None:
    folder = scripts(tmp_path / "delivery")
    whole = run_script(folder / "verify.sh")
    assert whole.returncode == 0
    assert re.search("^[0-9a-f]{64}$", whole.stdout, re.MULTILINE)
    (folder / "wheels" / "b c.whl").write_text("b")
    added = run_script(folder / "verify.sh")
    assert (added.returncode, "wheels/b c.whl" in added.stderr) == (1, True)
    (folder / "wheels" / "b c.whl").unlink()
    (folder / "wheels" / "a.whl").write_text("b")
    changed = run_script(folder / "verify.sh")
    assert (changed.returncode, "wheels/a.whl" in changed.stdout) == (1, True)
    (folder / "wheels" / "a.whl").unlink()
    assert run_script(folder / "verify.sh").returncode == 1


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"MACHINE": "riscv64"}, "交付件用于 riscv64"),
        ({"GLIBC_MINOR": "99"}, "需要 glibc 2.99 以上"),
        ({"PYTHON": "3.99"}, "没有找到 python3.99"),
    ],
)
def test_install_refuses_a_machine_that_the_delivery_is_not_for(
    tmp_path: Path, values: dict[str, str], reason: str
) -> None:
    folder = scripts(tmp_path / "delivery", **values)
    done = run_script(folder / "install.sh", *places(tmp_path / "site"))
    assert (done.returncode, reason in done.stderr) == (1, True)
    assert not (tmp_path / "site" / "prefix" / "current").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("--nope",),
        ("--prefix",),
        ("--prefix", "relative"),
        ("--prefix", "/a b"),
        ("--user", "a;b"),
        ("--prefix", ""),
    ],
)
def test_install_refuses_wrong_options(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert run_script(scripts(tmp_path / "delivery") / "install.sh", *words).returncode == 2


def test_install_and_uninstall_leave_alone_what_is_not_theirs(tmp_path: Path) -> None:
    folder = scripts(tmp_path / "delivery")
    (tmp_path / "site" / "prefix" / "releases").mkdir(parents=True)
    done = run_script(folder / "install.sh", *places(tmp_path / "site"))
    assert (done.returncode, "已有别的文件" in done.stderr) == (1, True)
    done = run_script(folder / "uninstall.sh", "--prefix", str(tmp_path / "site" / "prefix"), "--purge")
    assert (done.returncode, "没有由 install.sh 安装" in done.stderr) == (1, True)
    assert (tmp_path / "site" / "prefix" / "releases").is_dir()


def test_uninstall_says_what_it_keeps_and_purge_removes_only_its_own(tmp_path: Path) -> None:
    folder = scripts(tmp_path / "delivery", PYTHON="3.99")
    words = places(tmp_path / "site")
    for purge in ((), ("--purge",)):
        run_script(folder / "install.sh", *words)  # fails for want of Python, after it made its places
        (tmp_path / "site" / "config-dir" / "config.yaml").write_text("cg_rag: {}\n")
        (tmp_path / "site" / "data-dir" / "mine.txt").write_text("mine")
        done = run_script(tmp_path / "site" / "prefix" / "uninstall.sh", *purge)
        assert done.returncode == 0, done.stderr
        assert not (tmp_path / "site" / "prefix").exists()
        assert (tmp_path / "site" / "config-dir" / "config.yaml").exists() == (not purge)
        assert (tmp_path / "site" / "data-dir" / "mine.txt").exists()


# --- the unit ------------------------------------------------------------------------------------------------------


def unit_values(name: str) -> list[str]:
    text = (FILES / "cg-rag.service").read_text("utf-8")
    return re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)


def test_the_unit_waits_longer_than_the_service_waits_for_its_requests() -> None:
    assert int(unit_values("TimeoutStopSec")[0]) > ServerSettings().shutdown_timeout_seconds


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit_and_finds_it_little_exposed(tmp_path: Path) -> None:
    text = (FILES / "cg-rag.service").read_text("utf-8")
    values = {"PREFIX": str(tmp_path), "CONFIG_DIR": str(tmp_path), "DATA_DIR": str(tmp_path), "USER": "root"}
    (tmp_path / "current" / "bin").mkdir(parents=True)
    (tmp_path / "current" / "bin" / "python").symlink_to(sys.executable)
    unit = tmp_path / "cg-rag.service"
    unit.write_text(re.sub("@([A-Z_]+)@", lambda match: values[match[1]], text), "utf-8")
    verified = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert (verified.returncode, verified.stderr) == (0, "")
    exposed = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=25", str(unit)], capture_output=True
    )
    assert exposed.returncode == 0, exposed.stdout.decode()


# --- the command ---------------------------------------------------------------------------------------------------


def run_command(*words: str) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("CG_RAG_")}
    return subprocess.run(
        [sys.executable, str(ROOT / "cg_rag.py"), "wheelhouse", *words],
        env=environ | {"PYTHONIOENCODING": "utf-8", "XDG_DATA_HOME": "/nonexistent"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_command_refuses_before_it_downloads(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_text("a")
    for words, reason in (
        ((str(tmp_path / "new"), "--python-archive", str(tmp_path / "no.tar")), "不是可读的 tar"),
        ((str(tmp_path / "new"), "--index-dir", str(tmp_path / "full")), "没有可用的索引"),
    ):
        done = run_command(*words)
        assert (done.returncode, reason in done.stderr) == (2, True), done.stderr
        assert "Traceback" not in done.stderr
    refused = run_command(str(tmp_path / "full"), "--json")
    assert refused.returncode == 2
    assert "不是空的文件夹" in json.loads(refused.stdout)["error"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"]
