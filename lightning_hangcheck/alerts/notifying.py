"""`--notify`: messages to people, through apprise.

An address holds tokens, so none is ever shown: it is named by its place among the addresses and by
the service in front of its ``://``.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck.errors import BadUsage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from apprise import Apprise

    from lightning_hangcheck.alerts.asked_for import HangNews

PACKAGE = "apprise"
NOTIFY_LIMIT_S = 30.0
"""apprise gives a service some seconds to answer, and some services are asked twice."""
LONGEST_SERVICE = 20


def apprise_folder() -> str:
    """Find the folder of the path of modules in which apprise lies: our processes start without it.

    Raises:
        BadUsage: It is not installed.
    """
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise BadUsage(
            f"--notify needs the package {PACKAGE}, which is not installed",
            "pip install 'lightning-hangcheck[notify]'",
        )
    return str(Path(spec.origin).parents[1])


def refuse_unknown(addresses: Sequence[str]) -> None:
    """Refuse at the start of a run what could tell nobody at night.

    Raises:
        BadUsage: apprise does not know an address.
    """
    for number, address in enumerate(addresses, 1):
        if _courier_of(address) is None:
            raise BadUsage(
                f"{named(number, address)} is no address that apprise knows",
                "write one as https://github.com/caronc/apprise/wiki says: json://host:8000",
            )


def named(number: int, address: str) -> str:
    """Name an address without telling it; what follows the option's own name would be hidden."""
    service, *rest = address.split("://", 1)
    known = rest and len(service) <= LONGEST_SERVICE and service.isalnum()
    return f"notify address {number}" + (f" ({service}://)" if known else "")


def notify(
    addresses: Sequence[str], news: HangNews, time_limit_s: float = NOTIFY_LIMIT_S
) -> list[str]:
    """Send the news to all of them at the same time.

    Returns:
        What went wrong, a sentence for each address that was not reached.
    """
    late = f"no answer within {time_limit_s:g} s"
    outcomes = [late] * len(addresses)
    couriers = [_courier_of(address) for address in addresses]

    def send(at: int, courier: Apprise | None) -> None:
        outcomes[at] = _send(courier, news)

    threads = [
        threading.Thread(target=send, args=numbered, daemon=True)
        for numbered in enumerate(couriers)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + time_limit_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    pairs = zip(addresses, list(outcomes), strict=True)
    return [
        f"{named(number, address)} was not reached: {outcome}"
        for number, (address, outcome) in enumerate(pairs, start=1)
        if outcome
    ]


def _courier_of(address: str) -> Apprise | None:
    """Who carries messages to an address; None where apprise does not know it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it loads its services here, and is not ours to mend
        import apprise

        for name in ("apprise", "urllib3", "requests"):  # they log addresses with their secrets
            logger = logging.getLogger(name)
            logger.addHandler(logging.NullHandler())
            logger.propagate = False
        courier = apprise.Apprise(asset=apprise.AppriseAsset(async_mode=False))
        return courier if courier.add(address) else None


def _send(courier: Apprise | None, news: HangNews) -> str:
    """Send it to one; what went wrong, without a word of the address."""
    if courier is None:
        return "apprise does not know it"
    body = f"{news.text}\nreport: {news.report_file}"
    try:
        sent = courier.notify(title=news.title, body=body, notify_type="failure")
    except Exception as error:  # noqa: BLE001 - whatever a service's own code does wrong
        return type(error).__name__
    return "" if sent else "it did not take the message; try it: apprise -vv ADDRESS"
