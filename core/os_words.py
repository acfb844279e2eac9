"""Why the operating system refused, in words for the people who run the service. The library, which knows
nothing of core, has the same table in index/os_words.py; a test holds the two together.

Rule: an OSError's own text is English, in the language of the libc or none at all, and names a path or not as it
likes; whoever shows a reason takes it from here.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Mapping
from typing import Final

_REASONS: Final[Mapping[int, str]] = {
    errno.EACCES: "没有权限",
    errno.EBUSY: "正被占用",
    errno.ECONNREFUSED: "连接被拒绝，该端口没有程序在听",
    errno.ECONNRESET: "连接被对方断开",
    errno.EDQUOT: "超出磁盘配额",
    errno.EEXIST: "已有同名的文件或目录",
    errno.EFBIG: "文件大小超出限制",
    errno.EHOSTUNREACH: "到不了该主机",
    errno.EIO: "读写出错，磁盘可能有故障",
    errno.EISDIR: "是目录，不是文件",
    errno.ELOOP: "符号链接成环",
    errno.EMFILE: "本进程打开的文件已到上限",
    errno.ENAMETOOLONG: "文件名过长",
    errno.ENETUNREACH: "到不了该网络",
    errno.ENFILE: "系统打开的文件已到上限",
    errno.ENOENT: "文件或目录不存在",
    errno.ENOMEM: "内存不足",
    errno.ENOSPC: "磁盘空间不足",
    errno.ENOTDIR: "路径中有一段不是目录",
    errno.ENOTEMPTY: "目录不是空的",
    errno.ENXIO: "另一端没有程序在读",
    errno.EPERM: "不允许这样操作",
    errno.EPIPE: "连接被对方断开",
    errno.EROFS: "文件系统只读",
    errno.ESTALE: "网络文件系统上的文件已不在",
    errno.ETIMEDOUT: "连接超时",
    errno.ETXTBSY: "程序正在运行，不能改写",
}


def reason_of(error: OSError) -> str:
    """Chinese, without path and without a full stop at its end; the symbol (`EPROTO`) for what is seldom met."""
    number = error.errno or 0
    return _REASONS.get(number) or f"系统错误 {errno_name(error)}"


def connection_reason(error: Exception) -> str:
    """Why a server could not be talked to, of what aiohttp raises; form as in reason_of."""
    if isinstance(getattr(error, "os_error", error), socket.gaierror):
        return "找不到这个主机名"
    if isinstance(error, ssl.SSLError) or isinstance(getattr(error, "os_error", None), ssl.SSLError):
        return "TLS 握手失败"
    number = (error.errno if isinstance(error, OSError) else None) or 0
    return _REASONS.get(number, "连接失败或中途断开")


def errno_name(error: OSError) -> str:
    """`ENOSPC`, for logs; the class of an error that has no number."""
    return errno.errorcode.get(error.errno or 0, type(error).__name__)
