"""`cg-rag wheelhouse`: arguments, output in Chinese, exit codes.

0  made            1  pip, the network, the disk          2  an argument or a given file          130  interrupted
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cg_rag.core.cli import add_config_argument
from cg_rag.core.config import Loaded
from cg_rag.core.config_layers import ROWS
from cg_rag.core.delivery.errors import DeliveryError, DeliveryRefused
from cg_rag.core.delivery.make import (
    EXTRAS,
    Delivery,
    Order,
    Progress,
    make_delivery,
    package_json,
    resolve_only,
)
from cg_rag.core.delivery.target import PLATFORMS, PYTHONS, Target, this_platform, this_python
from cg_rag.core.delivery.wheels import PINS

_SHIPPED_CONFIG = Path(__file__).resolve().parents[2] / "config.yaml"
# What the installation sets to its own places.
_PLACED = ("index.dir", "embedding.model_dir", "rerank.model_dir")


def add_wheelhouse_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="目录", help="交付件写到这里；须是新的或空的")
    parser.add_argument(
        "--platform",
        choices=PLATFORMS,
        default=this_platform(),
        required=this_platform() is None,
        help="目标机器，缺省与本机相同",
    )
    parser.add_argument(
        "--python",
        choices=PYTHONS,
        default=this_python(),
        required=this_python() is None,
        help="目标机器的 Python，缺省与本机相同",
    )
    parser.add_argument(
        "--python-archive", metavar="文件", help="一并交付的 Python（tar），目标机器没有合适的时用"
    )
    add_config_argument(parser)
    parser.add_argument("--index-dir", metavar="目录", help="一并交付这里的索引，缺省为 index.dir 的")
    parser.add_argument("--no-index", action="store_true", help="不带索引")
    parser.add_argument(
        "--extras",
        action="append",
        choices=EXTRAS,
        default=[],
        help="一并交付可选的依赖：milvus 为 index.backend: milvus 所需",
    )
    parser.add_argument("--latest", action="store_true", help="依赖取最新版本，而不是测试过的版本")
    parser.add_argument("--dry-run", action="store_true", help="只解析依赖，不下载、不写")
    parser.add_argument("--json", action="store_true", help="输出 JSON")


def run_wheelhouse(
    args: argparse.Namespace,
    loaded: Loaded,
    pack_index: Callable[[Path], dict[str, Any]],
    has_index: bool,
    progress: Progress,
) -> int:
    """Make the delivery that `args` and the configuration describe; returns the exit code.

    `pack_index` writes the index of the configuration into a folder; it raises DeliveryError when it cannot.
    """
    try:
        order = _order(args, loaded, pack_index if has_index and not args.no_index else None)
        if args.dry_run:
            packages = [package_json(package) for package in resolve_only(order, progress)]
            _show(
                {"ok": True, "platform": args.platform, "python": args.python, "packages": packages},
                args.json,
            )
            return 0
        delivery = make_delivery(order, Path(os.path.abspath(args.folder)), progress)
    except DeliveryError as error:
        if args.json:
            print(json.dumps({"ok": False, "error": str(error)}, ensure_ascii=False, indent=2))
        print(str(error), file=sys.stderr)
        return 2 if isinstance(error, DeliveryRefused) else 1
    _report(delivery, list(_notices(loaded, delivery)), args.json)
    return 0


def _order(
    args: argparse.Namespace, loaded: Loaded, pack_index: Callable[[Path], dict[str, Any]] | None
) -> Order:
    settings = loaded.settings
    named = {"embedding": settings.embedding.model_dir, "rerank": settings.rerank.model_dir}
    models = {kind: path for kind, path in named.items() if path is not None}
    if len({path.name for path in models.values()}) < len(set(models.values())):
        raise DeliveryRefused("embedding.model_dir 与 rerank.model_dir 的文件夹同名，请改名后再制作。")
    extras = tuple(sorted(set(args.extras)))
    if settings.index.backend == "milvus" and "milvus" not in extras:
        raise DeliveryRefused(
            "配置中 index.backend 为 milvus，须加 --extras milvus，否则装好的服务检索不了向量。"
        )
    archive = Path(args.python_archive) if args.python_archive else None
    return Order(
        Target(args.platform, args.python),
        None if args.latest else PINS,
        loaded.path or _SHIPPED_CONFIG,
        models,
        archive,
        pack_index,
        extras,
    )


def _notices(loaded: Loaded, delivery: Delivery) -> Iterator[str]:
    """What the receiver will miss, and what the sender may not want to send."""
    written = [row for row in ROWS.values() if loaded.origins.get(row.key) == "file"]
    secret = [row.key for row in written if row.kind in ("secret", "keys") and _value(loaded, row.path)]
    if secret:
        yield f"config.yaml 中有密钥（{'、'.join(secret)}），交付件里也有；不宜外传时改用 …_file 或环境变量"
    local = [row.key for row in written if row.kind == "path" and row.key not in _PLACED]
    local = [key for key in local if _value(loaded, tuple(key.split(".")))]
    if local:
        yield f"配置中的 {'、'.join(local)} 指向本机的文件，没有一并交付，须另行传送"
    if delivery.contents["index"] is None:
        yield "没有带索引：安装后用 cg-rag index install 或 cg-rag index build"
    if delivery.contents["python_archive"] is None:
        yield f"目标机器须有 Python {delivery.contents['python']}；没有则用 --python-archive 一并交付"


def _value(loaded: Loaded, path: tuple[str, ...]) -> Any:
    value: Any = loaded.settings
    for name in path:
        value = getattr(value, name)
    return value


def _report(delivery: Delivery, notices: list[str], as_json: bool) -> None:
    contents = delivery.contents
    told = {"folder": str(delivery.folder), "bytes": delivery.num_bytes, "sha256sums": delivery.checksum}
    if as_json:
        _show({"ok": True, **told, "notices": notices, **contents}, True)
        return
    print(
        f"交付件：{delivery.folder}，{contents['platform']}，Python {contents['python']}，"
        f"{len(contents['wheels'])} 个安装包，共 {delivery.num_bytes / 1_000_000:.1f} MB"
    )
    for name in filter(None, (*contents["models"].values(), contents["python_archive"])):
        print(f"  含 {name}")
    if contents["index"] is not None:
        print(f"  含索引 {contents['index']['fingerprint']}，{contents['index']['num_docs']} 条条文")
    for notice in notices:
        print(f"注意：{notice}。")
    print(f"SHA256SUMS 的 SHA-256：{delivery.checksum}")
    print("整个目录送到目标机器后运行 sh install.sh，不需要网络。")


def _show(body: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(body, ensure_ascii=False, indent=2))
        return
    print(f"{body['platform']}，Python {body['python']}：{len(body['packages'])} 个安装包")
    for package in body["packages"]:
        print(f"  {package['file']}")
