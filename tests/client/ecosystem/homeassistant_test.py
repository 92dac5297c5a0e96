"""Home Assistant, its core and its own integration of Ollama as PyPI carries them: the form by which it is set up, a conversation, and
turns with the tools by which it controls a home."""

import asyncio
import tempfile
import unittest

from case import MODEL, SUM, Case
from homeassistant import bootstrap, config_entries, core, loader
from homeassistant.auth import auth_manager_from_config
from homeassistant.components import conversation
from homeassistant.components.homeassistant.exposed_entities import async_expose_entity
from homeassistant.setup import async_setup_component

AGENT = f"conversation.{MODEL}"
HOME = {"input_boolean": {"lamp": {"name": "Lamp"}}}


async def home(folder):
    """A Home Assistant with one lamp."""
    hass = core.HomeAssistant(folder)
    hass.config.skip_pip = True
    hass.config_entries = config_entries.ConfigEntries(hass, {})
    loader.async_setup(hass)
    await bootstrap.async_load_base_functionality(hass)
    hass.auth = await auth_manager_from_config(hass, [], [])
    for part in ("homeassistant", "conversation", "input_boolean"):
        assert await async_setup_component(hass, part, HOME), part
    await hass.async_start()
    return hass


async def set_up(hass, url):
    """The form for Ollama, as a person fills it in."""
    flow = await hass.config_entries.flow.async_init("ollama", context={"source": "user"})
    flow = await hass.config_entries.flow.async_configure(flow["flow_id"], {"url": url})
    assert flow["step_id"] == "user" and not flow.get("errors"), flow
    flow = await hass.config_entries.flow.async_configure(flow["flow_id"], {"model": MODEL})
    assert flow["type"] == "create_entry", flow
    await hass.async_block_till_done()
    [entry] = hass.config_entries.async_entries("ollama")
    return entry


class HomeAssistant(Case):
    context = 8192

    def run_at_home(self, work):
        async def whole():
            with tempfile.TemporaryDirectory() as folder:
                hass = await home(folder)
                try:
                    entry = await set_up(hass, self.server.url)
                    self.assertEqual(entry.state, config_entries.ConfigEntryState.LOADED)
                    await work(hass, entry)
                finally:
                    await hass.async_stop(force=True)

        asyncio.run(asyncio.wait_for(whole(), 120))

    async def ask(self, hass, text, before=None):
        said = await conversation.async_converse(hass, text, before, core.Context(), agent_id=AGENT, language="en")
        self.assertIsNone(said.response.error_code, said.response.speech)
        return said.response.speech["plain"]["speech"], said.conversation_id

    def test_a_conversation(self):
        async def work(hass, _):
            text, before = await self.ask(hass, SUM)
            self.assertEqual(text, "17 + 25 = 42")
            self.assertEqual((await self.ask(hass, "What is 2 + 3?", before))[0], "2 + 3 = 5")

        self.run_at_home(work)

    def test_turns_with_the_homes_tools(self):
        """tiny makes no sense of them, so what is shown is that they are taken and that the conversation goes on."""
        async def work(hass, entry):
            hass.config_entries.async_update_entry(entry, options={**entry.options, "llm_hass_api": "assist"})
            await hass.async_block_till_done()
            async_expose_entity(hass, "conversation", "input_boolean.lamp", True)
            text, before = await self.ask(hass, "Turn on the lamp")
            self.assertTrue(text)
            self.assertTrue((await self.ask(hass, SUM, before))[0])

        self.run_at_home(work)


if __name__ == "__main__":
    unittest.main()
