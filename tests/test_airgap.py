"""The delivery on a machine without a network: made here, installed where there is only loopback, asked, updated, removed.

Long: wheels are resolved and downloaded, and everything is compiled.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cg_rag.core.delivery.wheels import PINS
from tests.conftest import ARTICLES, write_jsonl

ROOT = Path(__file__).resolve().parent.parent
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
BASE = Path(sys.base_prefix)
NO_NETWORK = ["unshare", "--map-root-user", "--net"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("unshare") is None or subprocess.run([*NO_NETWORK, "true"]).returncode != 0,
        reason="network namespaces are not to be had here",
    ),
]

# Runs inside the namespace. Loopback is down in a new one; SIOCGIFFLAGS and SIOCSIFFLAGS are in linux/sockios.h.
INSIDE = """
import errno, fcntl, json, os, re, socket, struct, subprocess, sys, urllib.request
control = socket.socket()
flags, = struct.unpack("16xh", fcntl.ioctl(control, 0x8913, struct.pack("16sh", b"lo", 0)))
fcntl.ioctl(control, 0x8914, struct.pack("16sh14x", b"lo", flags | 1))
try:
    socket.create_connection(("192.0.2.1", 80), 1)
except OSError as error:
    assert error.errno == errno.ENETUNREACH, error

delivery, site, path = sys.argv[1:]
environ = {"PATH": path, "HOME": site + "/home", "LANG": "C.UTF-8"}
words = []
for name in ("prefix", "config-dir", "data-dir", "unit-dir"):
    words += [f"--{name}", f"{site}/{name}"]
os.makedirs(site + "/unit-dir", exist_ok=True)

def run(*command):
    done = subprocess.run(command, env=environ, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return {"code": done.returncode, "out": done.stdout, "err": done.stderr}

told = {"install": run("sh", delivery + "/install.sh", *words, "--user", "root")}
program = site + "/prefix/bin/cg-rag"
if told["install"]["code"] == 0:
    told["doctor"] = run(program, "doctor", "--json")
    told["search"] = run(program, "search", "脚手架基础积水", "--topk", "1", "--json")
    told["again"] = run("sh", delivery + "/install.sh", *words, "--user", "root")
    demo = subprocess.Popen(
        [program, "demo", "--sample", "--port", "0"], env=environ, cwd="/", text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )
    url = None
    for line in demo.stdout:
        found = re.search("http://127[.]0[.]0[.]1:[0-9]+/cg-rag", line)
        url = found[0] if found else url
        if line.startswith("  -d"):
            break
    for line in demo.stderr:
        if "index_loaded" in line:
            break
    body = json.dumps({"query": "脚手架基础积水怎么办", "topk": 1}).encode()
    request = urllib.request.Request(url + "/rag", body, {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as response:
        told["demo"] = json.load(response)
    demo.terminate()
    demo.communicate(timeout=30)
    told["demo_code"] = demo.returncode
json.dump(told, sys.stdout)
"""


@dataclass(frozen=True)
class Site:
    """What happened on the machine without a network, and where it was."""

    folder: Path
    delivery: Path
    contents: Mapping[str, Any]
    told: Mapping[str, Any]


def clean_environ() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("CG_RAG_")}


def cg_rag(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "cg_rag.py"), *words],
        env=clean_environ(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def pack_python(target: Path) -> Path:
    """This interpreter with its library, as a site's Python archive: a folder that lies anywhere."""
    left_out = re.compile(r"/(__pycache__|test|tests|site-packages|idlelib|ensurepip|config-[^/]*)(/|$)|\.a$")
    with tarfile.open(target, "w:gz", compresslevel=1) as tar:
        for path in (BASE / "bin" / f"python{PYTHON}", BASE / "lib" / f"python{PYTHON}"):
            tar.add(
                path.resolve(),
                f"python/{path.relative_to(BASE)}",
                filter=lambda member: None if left_out.search(f"/{member.name}") else member,
            )
        for path in (BASE / "lib").glob("libpython*.so*"):
            tar.add(path, f"python/lib/{path.name}")
    return target


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("airgap")
    source = write_jsonl(folder / "laws.jsonl", ARTICLES)
    cg_rag("index", "build", str(source), "--index-dir", str(folder / "index"))
    words = [str(folder / "delivery"), "--python", PYTHON, "--index-dir", str(folder / "index"), "--json"]
    tools = folder / "tools"
    tools.mkdir()
    # What a system has anyway, and a systemctl that writes down what it is told. No Python where one is carried along.
    for name in SYSTEM_TOOLS:
        found = shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin")
        assert found is not None, name
        (tools / name).symlink_to(found)
    if BASE in (Path("/usr"), Path("/usr/local")):
        (tools / f"python{PYTHON}").symlink_to(BASE / "bin" / f"python{PYTHON}")
    else:
        words += ["--python-archive", str(pack_python(folder / "python.tar.gz"))]
    (tools / "systemctl").write_text(f'#!/bin/sh\necho "$@" >> {folder}/systemctl.txt\n')
    (tools / "systemctl").chmod(0o755)
    contents = json.loads(cg_rag("wheelhouse", *words))
    inside = [sys.executable, "-c", INSIDE, str(folder / "delivery"), str(folder / "site"), str(tools)]
    done = subprocess.run([*NO_NETWORK, *inside], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Site(folder / "site", folder / "delivery", contents, json.loads(done.stdout))


SYSTEM_TOOLS = (
    *(
        "sh",
        "sha256sum",
        "cut",
        "sort",
        "find",
        "sed",
        "grep",
        "uname",
        "getconf",
        "id",
        "ls",
        "mkdir",
        "rm",
        "cat",
    ),
    *(
        "cp",
        "mv",
        "ln",
        "cmp",
        "readlink",
        "tar",
        "gzip",
        "xz",
        "head",
        "basename",
        "dirname",
        "rmdir",
        "chmod",
    ),
    *("chown", "chgrp"),
)


def test_it_installs_and_doctor_finds_nothing_wrong(site: Site) -> None:
    install = site.told["install"]
    assert install["code"] == 0, install["out"] + install["err"]
    assert install["err"] == ""
    doctor = json.loads(site.told["doctor"]["out"])
    assert doctor["ok"] is True
    # The shipped criteria are a digest, which doctor says on every machine.
    warned = [finding["subject"] for finding in doctor["findings"] if finding["severity"] != "ok"]
    assert set(warned) <= {"判定标准"}, warned
    subjects = {finding["subject"] for finding in doctor["findings"]}
    assert {"索引", "向量", "重排", "提示词", "依赖"} <= subjects


def test_the_delivered_index_and_the_sample_answer(site: Site) -> None:
    found = json.loads(site.told["search"]["out"])
    assert found["retrieval_docs"][0]["article_number"] == "2.0.1"
    assert site.told["demo"]["ok"] is True
    assert "（样例）" in site.told["demo"]["generation"]["answer_text"]
    assert site.told["demo_code"] == 0


def test_installing_again_keeps_what_is_there_and_restarts_the_service(site: Site) -> None:
    assert site.told["again"]["code"] == 0, site.told["again"]["err"]
    assert "索引已是这一份" in site.told["again"]["out"]
    calls = (site.folder.parent / "systemctl.txt").read_text().splitlines()
    assert calls == ["daemon-reload", "enable cg-rag", "restart cg-rag"] * 2
    assert len(list((site.folder / "prefix" / "releases").iterdir())) == 1
    unit = (site.folder / "unit-dir" / "cg-rag.service").read_text("utf-8")
    assert re.search("@[A-Z_]+@", unit) is None
    assert f"ExecStart={site.folder}/prefix/current/bin/python -m cg_rag serve" in unit


def test_every_wheel_is_pinned_by_name_version_and_hash(site: Site) -> None:
    lines = (site.delivery / "requirements.txt").read_text().splitlines()
    assert len(lines) == len(list((site.delivery / "wheels").iterdir())) == len(site.contents["wheels"])
    assert all(re.fullmatch(r"[a-z0-9-]+==\S+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)
    for wheel in site.contents["wheels"]:
        tags = wheel["file"].removesuffix(".whl").split("-")[-1]
        assert tags == "any" or any(
            int(minor) <= 28 for minor in re.findall(r"manylinux_2_(\d+)", tags) or [17]
        )


def test_the_installation_gives_back_the_very_wheel_that_was_delivered(site: Site, tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from cg_rag.core.delivery.own_wheel import make_own_wheel as m; m(Path(sys.argv[1]))"
    subprocess.run([site.folder / "prefix/current/bin/python", "-c", code, tmp_path], check=True, cwd="/")
    delivered = zipfile.ZipFile(next((site.delivery / "wheels").glob("cg_rag-*.whl")))
    again = zipfile.ZipFile(next(tmp_path.glob("cg_rag-*.whl")))
    assert sorted(delivered.namelist()) == sorted(again.namelist())
    for name in delivered.namelist():
        assert name.endswith("/RECORD") or delivered.read(name) == again.read(name), name


SERVE = """
import json, os, signal, subprocess, sys, urllib.request
trace, python, *_ = sys.argv[1:]
server = subprocess.Popen(
    ["strace", "-f", "-qq", "-o", trace, python, "-m", "cg_rag", "serve", "--port", "0"],
    stderr=subprocess.PIPE, text=True, process_group=0,
)
for line in server.stderr:
    event = json.loads(line)
    url = event.get("url") if event["event"] == "listening" else url if "url" in globals() else None
    if event["event"] == "index_loaded":
        break
for path in ("/retrieve-rerank", "/rag"):
    body = json.dumps({"query": "脚手架验收"}).encode()
    request = urllib.request.Request(url + path, body, {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as response:
        assert json.load(response)["ok"]
os.killpg(server.pid, signal.SIGTERM)
server.communicate(timeout=60)
"""


def calls_of_group(group: str) -> set[str]:
    """The system calls that systemd's own list of `group` allows."""
    listed = subprocess.run(
        ["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True
    )
    words = {line.strip() for line in listed.stdout.splitlines()[1:] if line.startswith("    ")}
    groups = {word for word in words if word.startswith("@")}
    return (words - groups).union(*(calls_of_group(name) for name in groups))


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None or shutil.which("strace") is None,
    reason="systemd-analyze or strace is not installed",
)
def test_the_service_makes_no_call_that_its_unit_forbids(site: Site, tmp_path: Path) -> None:
    environ = clean_environ() | {
        "CG_RAG_INDEX_DIR": str(site.folder / "data-dir" / "index"),
        "CG_RAG_GENERATION_PROVIDER": "local",
        "CG_RAG_EMBEDDING_THREADS": "2",
        "CG_RAG_RERANK_THREADS": "2",
    }
    trace = tmp_path / "trace.txt"
    command = [sys.executable, "-c", SERVE, str(trace), str(site.folder / "prefix/current/bin/python")]
    done = subprocess.run(command, env=environ, cwd="/", capture_output=True, text=True, timeout=180)
    if not trace.exists() or trace.stat().st_size == 0:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    lines = trace.read_text(errors="replace").splitlines()
    used = {found[1] for line in lines if (found := re.match(r"\d+ +(\w+)\(", line))}
    unit = (site.folder / "unit-dir" / "cg-rag.service").read_text("utf-8")
    assert re.findall("^SystemCallFilter=(.*)$", unit, re.MULTILINE) == ["@system-service"]
    assert {"futex", "epoll_wait", "accept4"} <= used
    assert used - calls_of_group("@system-service") == set()
    # MemoryDenyWriteExecute
    assert not [line for line in lines if re.search(r"(mprotect|pkey_mprotect)\(.*PROT_EXEC", line)]
    assert not [line for line in lines if re.search(r"mmap\(.*PROT_WRITE\|PROT_EXEC", line)]


def test_uninstalling_takes_the_program_and_keeps_the_data(site: Site, tmp_path: Path) -> None:
    left_out = shutil.ignore_patterns("python-*", "lib")
    copied = shutil.copytree(site.folder, tmp_path / "site", symlinks=True, ignore=left_out)
    noted = copied / "prefix" / "install.env"
    settings = noted.read_text().replace(str(site.folder), str(copied))
    noted.write_text(settings.replace("SERVICE=yes", "SERVICE=no"))
    done = subprocess.run(["sh", copied / "prefix" / "uninstall.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (copied / "prefix").exists()
    assert (copied / "data-dir" / "index" / "current").exists()
    assert (copied / "config-dir" / "config.yaml").exists()


def test_a_delivery_with_the_client_of_milvus_installs_and_loads_it(tmp_path: Path) -> None:
    cg_rag(
        "index", "build", str(write_jsonl(tmp_path / "laws.jsonl", ARTICLES)), "--index-dir", f"{tmp_path}/i"
    )
    words = ("--python", PYTHON, "--index-dir", f"{tmp_path}/i", "--extras", "milvus", "--json")
    contents = json.loads(cg_rag("wheelhouse", str(tmp_path / "delivery"), *words))
    assert contents["extras"] == ["milvus"]
    assert "pymilvus" in {wheel["name"] for wheel in contents["wheels"]}
    install = ["sh", str(tmp_path / "delivery" / "install.sh"), "--no-service", "--python", sys.executable]
    for name in ("prefix", "config-dir", "data-dir"):
        install += [f"--{name}", str(tmp_path / name)]
    environ = clean_environ() | {"HOME": str(tmp_path / "home")}
    done = subprocess.run([*NO_NETWORK, *install], env=environ, cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    code = "import pymilvus, cg_rag, sys; print(pymilvus.__file__); print(cg_rag.__file__)"
    python = tmp_path / "prefix" / "current" / "bin" / "python"
    loaded = subprocess.run([*NO_NETWORK, python, "-c", code], cwd="/", capture_output=True, text=True)
    assert loaded.returncode == 0, loaded.stderr
    assert all(line.startswith(str(tmp_path / "prefix")) for line in loaded.stdout.split())


@pytest.mark.parametrize("platform", ["linux_x86_64", "linux_aarch64"])
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_every_target_resolves_with_the_pinned_versions(platform: str, python: str, tmp_path: Path) -> None:
    words = ("--platform", platform, "--python", python, "--no-index", "--extras", "milvus", "--dry-run")
    packages = json.loads(cg_rag("wheelhouse", str(tmp_path / "none"), *words, "--json"))["packages"]
    by_name = {package["name"]: package for package in packages}
    files = {package["name"]: package["file"] for package in packages}
    pinned = dict(line.split("==") for line in PINS.read_text("utf-8").splitlines() if "==" in line)
    assert by_name.keys() - pinned.keys() == {"cg-rag"}
    assert all(
        package["version"] == pinned.get(name, package["version"]) for name, package in by_name.items()
    )
    for name in ("numpy", "pydantic-core", "aiohttp", "grpcio", "pandas"):
        assert f"cp{python.replace('.', '')}-" in files[name]
        assert platform.removeprefix("linux_") in files[name]
    assert 50 < len(files) < 70
