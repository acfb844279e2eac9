"""What went wrong with an upstream, in the words of an error that a caller reads: no URL, no key, no prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cg_rag.core.upstream_errors import Reason, UpstreamError

# One sentence part each, and what to do where the caller's operator can do something.
REASON_WORDS: Final[Mapping[Reason, str]] = {
    "connect_failed": "无法连接，请检查接口地址、网络与模型服务是否在运行",
    "tls_failed": "TLS 握手或证书校验失败，请检查接口地址与证书",
    "disconnected": "连接在应答开始前断开",
    "connect_timeout": "连接超时，请检查接口地址与网络",
    "first_byte_timeout": "等待应答的第一个字节超时",
    "between_bytes_timeout": "应答中途停顿过久",
    "call_timeout": "一次调用超时",
    "budget_spent": "时限已用完",
    "unauthorized": "密钥未被接受，请检查密钥与权限",
    "not_found": "接口或模型不存在，请检查接口地址与模型名称",
    "rate_limited": "请求过于频繁或额度不足，请稍后重试",
    "refused": "请求被拒绝，请检查模型是否支持所用的参数与长度",
    "server_error": "模型服务内部出错",
    "overloaded": "模型服务资源不足，请稍后重试",
    "error_in_stream": "模型服务在应答中途报告出错",
    "redirected": "接口要求跳转，未予跟随，请把接口地址改为最终地址",
    "cut": "应答中途断开",
    "malformed": "应答不是合法的对话补全格式，请检查接口地址",
    "html": "应答是网页，请检查接口地址",
    "compressed": "应答经过压缩，不予接受",
    "too_large": "应答过大",
    "content_filter": "内容被模型服务的安全策略拦截",
    "empty": "应答为空",
}


def upstream_details(error: UpstreamError, attempts: int) -> dict[str, Any]:
    """`details` of an upstream error: `reason` for people, `reason_code` for programs, status, attempts."""
    return {
        "reason": REASON_WORDS[error.reason],
        "reason_code": error.reason,
        "status": error.status,
        "attempts": attempts,
    }
