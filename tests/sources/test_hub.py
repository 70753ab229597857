"""The hub asked for a config alone, and a hub that does not answer: a sentence within seconds."""

import json
import socket
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from tests.sources.test_locate import Hub, files
from tests.sources.test_locate import hub as hub
from tests.sources.test_locate import hub_cache as hub_cache
from tests.sources.test_locate import settings as settings
from tfviz.config import Settings
from tfviz.errors import ModelUnavailable
from tfviz.sources.config_file import LONGEST_FILE, config_text
from tfviz.sources.hub import answers


def refusal(model: str, settings: Settings) -> str:
    with pytest.raises(ModelUnavailable) as caught:
        config_text(model, settings)
    return caught.value.key


def test_of_a_repository_the_config_alone_is_fetched_and_then_kept(hub: Hub, settings: Settings) -> None:
    hub.repos["owner/model"] = files({"model_type": "llama"})
    assert json.loads(config_text("owner/model", settings)) == {"model_type": "llama"}
    assert not any(path.endswith((".safetensors", "tokenizer.json")) for path in hub.asked)
    hub.asked.clear()
    assert config_text("owner/model", settings) and hub.asked == []


def test_what_has_no_config_to_read_is_refused(hub: Hub, settings: Settings) -> None:
    hub.repos["owner/model"] = files(config__json=None)
    hub.repos["owner/large"] = files(config__json=b" " * (LONGEST_FILE + 1))
    hub.repos["owner/gated"] = files()
    hub.gated.add("owner/gated")
    assert refusal("owner/model", settings) == refusal("owner/large", settings) == "error.no_config"
    assert not any(path.endswith("large/resolve/main/config.json") for path in hub.asked)
    assert refusal("owner/gated", settings) == "error.gated"
    assert refusal("owner/nothing", settings) == "error.not_found"


def test_a_hub_that_nobody_answers_for_is_noticed_within_seconds(settings: Settings) -> None:
    start = time.perf_counter()
    assert refusal("owner/model", settings) == "speed.memory.error.hub"
    assert time.perf_counter() - start < 60


def test_offline_no_connection_is_tried(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    def never(*_: Any) -> Any:
        raise AssertionError("asked for")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(socket, "create_connection", never)
    assert refusal("owner/model", replace(settings, allow_hub=None)) == "speed.memory.error.hub"


def test_a_name_that_is_looked_up_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    over, ended = threading.Event(), list[int]()

    def slow(*_: Any, **__: Any) -> Any:
        over.wait(30)
        ended.append(1)
        raise OSError

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    assert not answers("http://slow.example", 0.2) and not ended
    over.set()


def test_an_address_that_leads_nowhere_keeps_no_other_waiting(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    over, ended = threading.Event(), list[int]()

    def create(place: tuple[str, int], seconds: float) -> socket.socket:
        if place[0] == "10.0.0.1":
            over.wait(30)
            ended.append(1)
            raise TimeoutError
        made = socket.socket()
        made.connect(place)
        return made

    found = [(0, 0, 0, "", (place, 0)) for place in ("10.0.0.1", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket, "create_connection", create)
    assert answers(hub.url.replace("127.0.0.1", "two.example"), 10.0) and not ended
    over.set()


def test_behind_a_proxy_the_proxy_has_to_answer(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", hub.url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert answers("https://nowhere.invalid")
    monkeypatch.setenv("no_proxy", "nowhere.invalid")
    assert not answers("https://nowhere.invalid", 3.0)
