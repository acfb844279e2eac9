"""Why the operating system refused, in words for the people who run the commands. core/os_words.py is the same for the
service, of which the library knows nothing; a test holds the two together.
"""

from __future__ import annotations

import errno
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
    return _REASONS.get(number) or f"系统错误 {errno.errorcode.get(number, type(error).__name__)}"


def fault_of(error: Exception) -> str:
    """What `error` says, and of an OSError the file it names and the reason. Errors of ours speak for themselves."""
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    return f"{error.filename}：{reason_of(error)}" if error.filename else reason_of(error)
