"""The settings of reranking, part of settings.py."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from cg_rag.core.setting_types import (
    SECRET_FILE_WORDS,
    Endpoint,
    Folder,
    ModelName,
    Secret,
    SecretFile,
    Section,
    refuse,
)


class RerankSettings(Section):
    method: Literal["onnx", "api", "fused"] = Field(
        default="onnx",
        description="用什么重排：onnx 为本机模型（只在有向量时），api 为重排接口，fused 为不重排",
    )
    api_enabled: bool = Field(
        default=False, description="用重排接口，等于 method: api；method 为 fused 时仍不重排"
    )
    api_form: Literal["flat", "dashscope", "tei"] = Field(
        default="flat", description="接口的写法：flat 为多数服务，dashscope 为其原生接口，tei 为 TEI"
    )
    endpoint: Endpoint = Field(default="", description="接口地址，到 /v1 为止或以 /rerank 等结尾；空为未设")
    model: ModelName = Field(default="", description="接口的模型名称；空为未设，tei 不需要")
    api_key: Secret = Field(default=None, description="接口的密钥；空为不带密钥")
    api_key_file: SecretFile = Field(default=None, description=SECRET_FILE_WORDS)
    timeout_seconds: float = Field(default=10.0, ge=0.1, le=600, description="接口一次重排的时限，含重试")
    model_dir: Folder | None = Field(
        default=None,
        description="onnx 的模型文件夹；空为自带的 statute-ce-6l，相对路径以配置文件所在文件夹为准",
    )
    threads: int = Field(default=1, ge=1, le=64, description="onnx 一次计算所用的线程数")
    candidates: int = Field(default=20, ge=2, le=100, description="重排前多少条；越多越慢")
    weight: float = Field(
        default=0.4, ge=0, le=0.9, description="重排得分所占的权重，其余归检索得分；自带模型单独排序不如融合"
    )

    @property
    def chosen(self) -> Literal["onnx", "api", "fused"]:
        """The method in force."""
        return "api" if self.method == "onnx" and self.api_enabled else self.method

    @model_validator(mode="after")
    def _endpoint_is_described(self) -> Self:
        needed = {"endpoint": self.endpoint, "model": self.model or self.api_form == "tei"}
        absent = [f"rerank.{name}" for name, value in needed.items() if not value]
        if self.chosen == "api" and absent:
            refuse("rerank.method", f"为 api（或 rerank.api_enabled 为 true）时须设置 {'、'.join(absent)}。")
        return self
