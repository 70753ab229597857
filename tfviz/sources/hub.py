"""The model hub, asked once: what a repository holds, or within seconds a sentence on why that cannot be known.

huggingface_hub tries a dead connection six times, and waits for each address of the hub in turn. So one of them has to
take a connection first, within `HUB_SECONDS`, all tried at once; what comes after may be as slow as the library allows.
"""

import logging
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from tfviz.errors import ModelUnavailable

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

HUB_SECONDS = 5.0
PORTS = {"http": 80, "https": 443}

log = logging.getLogger(__name__)


def repository(repo: str) -> "ModelInfo":
    """Its files with their sizes. Raises what `in_sentences` puts into words."""
    from huggingface_hub import HfApi, constants

    if not constants.is_offline_mode() and not answers(constants.ENDPOINT):
        raise ConnectionError(f"nobody answers at {constants.ENDPOINT}")
    return HfApi().model_info(repo, files_metadata=True, timeout=HUB_SECONDS)


@contextmanager
def in_sentences(model: str, unreachable: str = "error.hub_unreachable") -> Iterator[None]:
    """Turns what huggingface_hub raises into `ModelUnavailable`; `unreachable` is the key where nothing was reached."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        yield
    except GatedRepoError:
        raise ModelUnavailable("error.gated", model=model) from None
    except RepositoryNotFoundError:
        raise ModelUnavailable("error.not_found", model=model) from None
    except (HfHubHTTPError, HTTPError, LocalEntryNotFoundError, ConnectionError) as failure:
        log.warning("hub: %s: %s", model, failure)
        raise ModelUnavailable(unreachable, model=model) from None


def answers(url: str, seconds: float = HUB_SECONDS) -> bool:
    """Whether a connection is taken there, or by the proxy on the way. Looking up the name counts."""
    parts = urlsplit(url)
    proxies = {} if proxy_bypass(parts.hostname or "") else getproxies()
    parts = urlsplit(proxies.get(parts.scheme) or proxies.get("all") or url)
    if parts.hostname is None:
        return True  # a proxy written in a way of its own: the request itself will tell
    place = parts.hostname, parts.port or PORTS.get(parts.scheme, 1080)
    found: SimpleQueue[bool] = SimpleQueue()
    Thread(target=_try, args=(*place, seconds, found), daemon=True).start()
    try:
        return found.get(timeout=seconds)
    except Empty:
        return False


def _try(host: str, port: int, seconds: float, found: "SimpleQueue[bool]") -> None:
    """All addresses at once: one that leads nowhere keeps no other waiting."""
    try:
        places = sorted({str(place[0]) for *_, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)})
    except OSError:
        return found.put(False)
    with ThreadPoolExecutor(len(places)) as pool:
        for one in as_completed([pool.submit(_connects, place, port, seconds) for place in places]):
            if one.result():
                found.put(True)
    found.put(False)


def _connects(place: str, port: int, seconds: float) -> bool:
    try:
        socket.create_connection((place, port), seconds).close()
    except OSError:
        return False
    return True
