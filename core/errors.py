"""One table says what an error is; one function writes its body.

Rule: an error that reaches a caller is a `CgError` with a code of this table. Messages are Chinese and say what
was wrong and what to do; details never hold keys, prompts, image data or upstream URLs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Kind:
    """`status` is the HTTP status, `message` what a caller reads when nothing more precise is known."""

    status: int
    message: str


# docs/errors.md lists the same codes; tests/test_docs.py holds the two together.
ERRORS: Mapping[str, Kind] = {
    "invalid_request": Kind(400, "请求不合法。"),
    "invalid_image": Kind(400, "图片不合法，只接受 JPEG、PNG、WebP 的 base64 数据。"),
    "unauthorized": Kind(401, "缺少密钥或密钥不正确，请在 Authorization: Bearer 或 X-API-Key 头中提供。"),
    "not_found": Kind(404, "接口不存在，请检查路径。"),
    "method_not_allowed": Kind(405, "该接口不支持此请求方法。"),
    "request_timeout": Kind(408, "请求体未在规定时间内送达。"),
    "payload_too_large": Kind(413, "请求体超过上限。"),
    "unsupported_media_type": Kind(415, "请求体须为 application/json，且不得压缩。"),
    "capacity.exceeded": Kind(429, "服务当前请求过多，请稍后重试。"),
    "internal_error": Kind(500, "服务内部错误，请凭 request_id 联系管理员。"),
    "retrieval.failed": Kind(502, "检索失败，请稍后重试。"),
    "vision_upstream_error": Kind(502, "视觉模型调用失败。"),
    "vision_response_invalid": Kind(502, "视觉模型没有给出可用的内容。"),
    "hybrid_generation_upstream_error": Kind(502, "垂域+RAG 的文本模型调用失败。"),
    "index.not_ready": Kind(503, "检索范围的索引尚不可用。"),
    "vision_not_configured": Kind(
        503, "CG_RAG 视觉接口未配置，请设置 CG_RAG_VISION_ENDPOINT 和 CG_RAG_VISION_MODEL。"
    ),
    "hybrid_generation_not_configured": Kind(
        503,
        "垂域+RAG 的文本模型未配置，请设置 CG_RAG_HYBRID_GENERATION_ENDPOINT、CG_RAG_HYBRID_GENERATION_MODEL "
        "和 CG_RAG_HYBRID_GENERATION_API_KEY。",
    ),
    "vision_budget_exceeded": Kind(504, "整单时限已用完，没有可以发布的结果。"),
}


class CgError(Exception):
    """A failure that a caller is told about. Raises KeyError at once for a code that the table lacks."""

    def __init__(
        self,
        code: str,
        message: str | None = None,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        kind = ERRORS[code]
        self.code = code
        self.status = kind.status
        self.message = message or kind.message
        self.details = dict(details or {})
        self.headers = dict(headers or {})
        super().__init__(self.message)


def error_body(error: CgError, request_id: str) -> dict[str, Any]:
    """The JSON body of every error answer: `{"request_id", "error": {"code", "message", "details"}}`."""
    return {
        "request_id": request_id,
        "error": {"code": error.code, "message": error.message, "details": error.details},
    }
