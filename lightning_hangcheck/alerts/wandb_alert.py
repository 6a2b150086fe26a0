"""`--wandb-alert`: an alert at the job's run in wandb, as ``wandb.alert`` sends one.

`wandb.alert` can only be called in the process that made the run, and that hangs; and who resumes
the run elsewhere changes it, and ends it for its server. So the one request is sent that wandb's
own process sends for an alert (seen with wandb 0.31, and in its sources since 0.10.9).
"""

from __future__ import annotations

import base64
import json
import netrc
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lightning_hangcheck.errors import BadUsage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.alerts.asked_for import HangNews
    from lightning_hangcheck.session.experiments import Experiment

WANDB_LIMIT_S = 20.0
"""For all of it, the name's look-up included."""
ANSWER_LIMIT_S = 10.0
LONGEST_TITLE = 63
"""Characters; ``wandb.alert`` asks for less than 64."""
AGAIN_AFTER_MS = 60_000
"""A second alert of this title within that time is dropped by the server: wandb's own default."""
MOST_ANSWER_BYTES = 65_536
MUTATION = """
mutation NotifyScriptableRunAlert ($entityName: String!, $projectName: String!, $runName: String!,
  $title: String!, $text: String!, $severity: AlertSeverity = INFO, $waitDuration: Duration) {
  notifyScriptableRunAlert(input: {entityName: $entityName, projectName: $projectName,
    runName: $runName, title: $title, text: $text, severity: $severity,
    waitDuration: $waitDuration}) { success }
}
"""
OFFLINE_MODES = ("offline", "disabled", "dryrun")
KEY_VARIABLE = "WANDB_API_KEY"


def refuse_without_key(environment: Mapping[str, str]) -> None:
    """Refuse at the start of a run what could tell nobody at night.

    Raises:
        BadUsage: wandb is told to stay offline, or neither the environment nor the file of
            `wandb login` has a key.
    """
    mode = environment.get("WANDB_MODE", "")
    if mode in OFFLINE_MODES:
        raise BadUsage(
            f"--wandb-alert: with WANDB_MODE={mode} no alert can be sent", "leave out one of them"
        )
    if not environment.get(KEY_VARIABLE) and not _netrc_file(environment).exists():
        raise BadUsage(
            "--wandb-alert: there is no key of W&B here",
            f"wandb login, or set {KEY_VARIABLE}",
        )


def wandb_alert(
    news: HangNews,
    experiment: Experiment | None,
    environment: Mapping[str, str],
    time_limit_s: float = ANSWER_LIMIT_S,
) -> str:
    """Send the alert.

    Args:
        news: What to tell.
        experiment: The job's run; None where no rank of this node has made one.
        environment: Of `hangcheck run`: the key is in it, or in the file that `wandb login` writes.
        time_limit_s: Seconds for the server's answer.

    Returns:
        What went wrong, in one sentence without the key; empty if nothing did.
    """
    if experiment is None:
        return "--wandb-alert: no rank of this node has made a run of wandb, so none has an alert"
    if experiment.offline:
        return (
            f"--wandb-alert: the wandb run {experiment.run_id} is offline, so nobody can be told "
            "through it, nor does wandb sync do so later"
        )
    key = _key_for(experiment.server, environment)
    if not key:
        return f"--wandb-alert: there is no key for {_host(experiment.server)}: wandb login"
    try:
        answer = _send(_request(news, experiment, key), time_limit_s)
    except urllib.error.HTTPError as error:
        return f"--wandb-alert: {_host(experiment.server)} refused it (HTTP {error.code})"
    except (OSError, HTTPException, ValueError) as error:
        return f"--wandb-alert: {_host(experiment.server)} was not reached ({type(error).__name__})"
    return "" if _is_taken(answer) else "--wandb-alert: the server did not take the alert"


def _request(news: HangNews, experiment: Experiment, key: str) -> urllib.request.Request:
    asked = {
        "operationName": "NotifyScriptableRunAlert",
        "query": MUTATION,
        "variables": {
            "entityName": experiment.entity,
            "projectName": experiment.project,
            "runName": experiment.run_id,
            "title": news.title[:LONGEST_TITLE],
            "text": f"{news.text}\nreport: {news.report_file}",
            "severity": "ERROR",
            "waitDuration": AGAIN_AFTER_MS,
        },
    }
    address = f"{experiment.server.rstrip('/')}/graphql"
    if urlsplit(address).scheme not in ("http", "https"):
        raise ValueError("no address of a web server")
    request = urllib.request.Request(  # noqa: S310 - the scheme was looked at
        address, json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    known = base64.b64encode(f"api:{key}".encode()).decode()
    request.add_unredirected_header("Authorization", f"Basic {known}")  # never to another host
    return request


def _send(request: urllib.request.Request, time_limit_s: float) -> object:
    with urllib.request.urlopen(request, timeout=time_limit_s) as answer:  # noqa: S310
        return json.loads(answer.read(MOST_ANSWER_BYTES))


def _is_taken(answer: object) -> bool:
    """GraphQL answers errors, too, with HTTP 200."""
    data = answer.get("data") if isinstance(answer, dict) else None
    told = data.get("notifyScriptableRunAlert") if isinstance(data, dict) else None
    return isinstance(told, dict) and told.get("success") is True


def _key_for(server: str, environment: Mapping[str, str]) -> str:
    """The environment's, as wandb has it; else that of `wandb login` for this server."""
    given = environment.get(KEY_VARIABLE, "")
    if given:
        return given
    try:
        known = netrc.netrc(_netrc_file(environment)).authenticators(_host(server))
    except (OSError, netrc.NetrcParseError):
        return ""
    return "" if known is None else known[2] or ""


def _netrc_file(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("NETRC") or Path(environment.get("HOME", "/"), ".netrc"))


def _host(server: str) -> str:
    return urlsplit(server).hostname or "the server"
