"""The models that settings name, as clients that open their connections when they are first called."""

from __future__ import annotations

import aiohttp
from pydantic import SecretStr

from cg_rag.core.providers import find_provider
from cg_rag.core.settings import Settings, generation_api_key
from cg_rag.core.upstream import ChatUpstream, UpstreamSettings, open_session


class Upstream:
    """One model. Made outside of any event loop; used and closed inside one."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self.settings = settings
        self.provider = find_provider(settings.provider, settings.endpoint).name
        self._session: aiohttp.ClientSession | None = None
        self._chat: ChatUpstream | None = None

    def chat(self) -> ChatUpstream:
        """The client; the same one each time, so that what a server refused is remembered."""
        if self._chat is None:
            self._session = open_session(self.settings)
            self._chat = ChatUpstream(self.settings, self._session)
        return self._chat

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        self._session = self._chat = None


def generation_upstream(settings: Settings) -> Upstream | None:
    """The model for text generation; None when none is configured, or none is wanted (provider `local`)."""
    generation = settings.generation
    if generation.provider == "local" or not (generation.endpoint and generation.model):
        return None
    return Upstream(
        UpstreamSettings(
            endpoint=generation.endpoint,
            model=generation.model,
            api_key=generation_api_key(settings) or SecretStr(""),
            provider=generation.provider,
            thinking_control=generation.thinking_control,
            structured_output=generation.structured_output,
            enable_thinking=generation.enable_thinking,
            streaming=generation.streaming,
            timeout_seconds=generation.timeout_seconds,
            first_byte_timeout_seconds=generation.first_byte_timeout_seconds,
        )
    )
