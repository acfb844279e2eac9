"""The models that settings name, as clients that open their connections when they are first called."""

from __future__ import annotations

import aiohttp
from pydantic import SecretStr

from cg_rag.core.profile import VisionProfile
from cg_rag.core.providers import ProviderName, find_provider
from cg_rag.core.search_calls import ToolSupport
from cg_rag.core.settings import (
    ChatSettings,
    Settings,
    generation_api_key,
)
from cg_rag.core.upstream import ChatUpstream, UpstreamSettings, open_session
from cg_rag.core.vision_settings import (
    is_hybrid_configured,
    is_vision_configured,
    vision_api_key,
    vision_profile,
)

TEXT_ATTEMPTS = 3  # docs/http.md: a text model is asked again twice


class Upstream:
    """One model. Made outside of any event loop; used and closed inside one."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self.settings = settings
        self.provider = find_provider(settings.provider, settings.endpoint).name
        self.tools = ToolSupport()
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
    return _upstream("generation", generation, generation.provider, generation_api_key(settings))


def vision_upstream(settings: Settings, profile: VisionProfile) -> Upstream | None:
    """The model that sees, tried as often as `profile` says; None when it is not configured."""
    if not is_vision_configured(settings):
        return None
    vision = settings.vision
    attempts = 1 + profile.upstream_retries
    return _upstream("vision", vision, vision.provider, vision_api_key(settings), max_attempts=attempts)


def hybrid_upstream(settings: Settings) -> Upstream | None:
    """The text model of hybrid, with its own key alone; None unless endpoint, model and key are there."""
    if not is_hybrid_configured(settings):
        return None
    hybrid = settings.hybrid_generation
    return _upstream("hybrid_generation", hybrid, hybrid.provider, hybrid.api_key)


def configured_upstreams(settings: Settings) -> dict[str, UpstreamSettings]:
    """Section of the configuration -> its model, of those that are configured. Opens nothing."""
    clients = {
        "generation": generation_upstream(settings),
        "vision": vision_upstream(settings, vision_profile(settings)),
        "hybrid_generation": hybrid_upstream(settings),
    }
    return {section: client.settings for section, client in clients.items() if client is not None}


def _upstream(
    name: str,
    section: ChatSettings,
    provider: ProviderName,
    api_key: SecretStr | None,
    max_attempts: int = TEXT_ATTEMPTS,
) -> Upstream:
    return Upstream(
        UpstreamSettings(
            endpoint=section.endpoint,
            model=section.model,
            api_key=api_key or SecretStr(""),
            provider=provider,
            thinking_control=section.thinking_control,
            structured_output=section.structured_output,
            enable_thinking=section.enable_thinking,
            streaming=section.streaming,
            timeout_seconds=section.timeout_seconds,
            first_byte_timeout_seconds=section.first_byte_timeout_seconds,
            max_attempts=max_attempts,
            name=name,
        )
    )
