"""`cg-rag prompts pin`: take the prompt files as they are for the reviewed ones."""

from __future__ import annotations

import argparse
import errno
import sys

from cg_rag.prompts import PINS, Mismatch, verify, write_pins


def add_pin_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="只比较，不写入；有不符时退出码为 1")


def run_pin(args: argparse.Namespace) -> int:
    """Prints what differs from pins.json and, without --check, records it. Returns 0, or 1 when it differs and is
    only checked, or cannot be written."""
    mismatches = verify()
    for mismatch in mismatches:
        print(_describe(mismatch))
    if not mismatches:
        print("提示词文件与 pins.json 一致。")
        return 0
    if args.check:
        return 1
    try:
        write_pins()
    except OSError as error:
        print(f"无法写入 {PINS}：{_reason(error)}。", file=sys.stderr)
        return 1
    print(f"已写入 {PINS}，请像审阅代码一样审阅它的改动。")
    return 0


def _reason(error: OSError) -> str:
    """The library of prompts knows neither core nor index, and of this file only writing can fail."""
    known = {errno.EACCES: "没有写入权限", errno.EROFS: "文件系统只读", errno.ENOSPC: "磁盘空间不足"}
    return known.get(error.errno or 0, f"系统错误 {errno.errorcode.get(error.errno or 0, error.errno)}")


def _describe(mismatch: Mismatch) -> str:
    if mismatch.name == PINS:
        return f"{PINS} 缺失或不是合法的 JSON"
    if not mismatch.expected:
        return f"{mismatch.name}：尚未记录"
    if not mismatch.found:
        return f"{mismatch.name}：已记录，但文件不存在"
    return f"{mismatch.name}：已改动"
