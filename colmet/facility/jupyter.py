"""Users of Jupyter notebooks: the owners of pods in a Kubernetes cluster."""

from __future__ import annotations

import json
import logging
import os
import time
from typing import Any, NamedTuple

from colmet.common.errors import ConfigError
from colmet.common.text import how_to_install
from colmet.facility.deadlines import Deadlines, SourceFailed

log = logging.getLogger(__name__)

COFFEA_NAMESPACE, COFFEA_LABEL = "coffea-casa", "jhub_user"
PAGE_PODS = 500
MAX_PAGES = 1000
MAX_PAGE_BYTES = 128 << 20  # of one page; a pod has 5 to 50 kB
MAX_NAME = 253  # characters; a label's value has up to 63
MAX_SAID = 200  # characters of the cluster's error text
_PART = 1 << 16
REMEDIES = {  # for an answer without a list, by status
    401: "the credentials of the kubeconfig file are not, or no longer, good",
    403: "the account needs a role that may `list` `pods` in the namespace {namespace}",
    404: "is this the address of the cluster's API?",
}


class Pods(NamedTuple):
    """A page of pods."""

    users: list[str]  # distinct non-empty values of the label, in their order
    more: str  # start of the next page; "" after the last one
    odd: int  # pods in an unknown form, or without the label


def parse(text: bytes, label: str) -> Pods:
    """Parse a page of the list of pods; the users are the values of a label; raise SourceFailed for another answer."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        answer = None
    items, metadata = (answer.get("items"), answer.get("metadata")) if isinstance(answer, dict) else (None, None)
    if not isinstance(items, list) or not isinstance(metadata, dict):
        raise SourceFailed(
            "the Kubernetes cluster does not answer with a list of pods; is this the address of its API?"
        )
    more = metadata.get("continue") or ""
    if not isinstance(more, str):
        raise SourceFailed("the Kubernetes cluster continues its list in an unknown form")
    users = [_label(item, label) for item in items]
    return Pods(list(dict.fromkeys(filter(None, users))), more, users.count(None))


def _label(pod: Any, label: str) -> str | None:
    """Return the label's value, possibly empty; None if missing or invalid."""
    for part in ("metadata", "labels", label):
        pod = pod.get(part) if isinstance(pod, dict) else None
    return pod if isinstance(pod, str) and len(pod) <= MAX_NAME else None


class Jupyter:
    """Client of a Kubernetes cluster, for the users with pods.

    Address and account are those of $KUBECONFIG or ~/.kube/config or, without one, of this program's pod.
    Plug-ins and networks may block for ever: `deadline_s` is for all pages of one namespace.
    """

    def __init__(self, deadlines: Deadlines, deadline_s: float) -> None:
        self._deadlines = deadlines
        self._deadline_s = deadline_s
        self.odd = 0  # skipped pods

    def users(self, namespace: str, label: str) -> list[str]:
        """Return the distinct values of a label, in the order of a namespace's pods with this label.

        SourceFailed where the cluster does not answer, or not with pods; the text suggests a remedy.
        """
        until = time.monotonic() + self._deadline_s
        users, odd = self._deadlines.call(
            f"the Kubernetes cluster (namespace {namespace})",
            self._deadline_s,
            lambda: self._ask(namespace, label, until),
        )
        if odd:
            self.odd += odd
            log.warning("pods skipped, their form is unknown: namespace=%s pods=%d", namespace, odd)
        return users

    def _ask(self, namespace: str, label: str, until: float) -> tuple[list[str], int]:
        api = self._connect()
        users: dict[str, None] = {}
        more, odd = "", 0
        for _ in range(MAX_PAGES):
            page = parse(self._page(api, namespace, label, more, until), label)
            users.update(dict.fromkeys(page.users))
            more, odd = page.more, odd + page.odd
            if not more:
                return list(users), odd
        raise SourceFailed(f"the Kubernetes cluster lists more than {MAX_PAGES * PAGE_PODS} pods")

    def _connect(self) -> Any:
        """Return the client for the core API."""
        try:
            import kubernetes.client
            import kubernetes.config
        except ModuleNotFoundError as err:
            raise SourceFailed(f"-j requires the Python module kubernetes: {how_to_install('kubernetes')}") from err
        client: Any = kubernetes.client  # newer versions have types, in part
        config: Any = kubernetes.config
        configuration = client.Configuration()
        configuration.retries = False  # the next run retries
        try:
            # the client itself reads the variable only when it is imported
            named, usual = os.environ.get("KUBECONFIG"), os.path.expanduser("~/.kube/config")
            if not named and not os.path.exists(usual) and "KUBERNETES_SERVICE_HOST" in os.environ:  # of this pod
                config.load_incluster_config(client_configuration=configuration)
            else:
                config.load_kube_config(named or usual, client_configuration=configuration)
        except Exception as err:  # an account's plug-in may raise anything
            raise SourceFailed(
                f"no account for the Kubernetes cluster: {_one_line(str(err))}; KUBECONFIG in the environment names "
                "the file that has one"
            ) from err
        return client.CoreV1Api(client.ApiClient(configuration))

    def _page(self, api: Any, namespace: str, label: str, more: str, until: float) -> bytes:
        """Return one page, unparsed; raise SourceFailed without one."""
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        left_s = max(0.1, until - time.monotonic())
        asked: dict[str, Any] = {"label_selector": label, "limit": PAGE_PODS, "_request_timeout": (left_s, left_s)}
        if more:
            asked["_continue"] = more
        # the answer's bytes: the client would make objects of hundreds of fields of each pod
        as_it_comes = getattr(api, "list_namespaced_pod_without_preload_content", None)  # since version 36
        try:
            if as_it_comes is not None:
                response = as_it_comes(namespace, **asked)
            else:
                response = api.list_namespaced_pod(namespace, _preload_content=False, **asked)
            try:
                text = _read(response, until)
            finally:
                response.close()
            status = int(response.status)
        except ApiException as err:
            said: Any = err.body or err.reason or ""  # bytes in some versions
            status, text = int(err.status or 0), said if isinstance(said, bytes) else str(said).encode()
        except (HTTPError, OSError, ValueError) as err:
            raise SourceFailed(f"the Kubernetes cluster does not answer: {_one_line(str(err))}") from err
        if status != 200:
            said = _said(text)
            remedy = REMEDIES.get(status, "the cluster's administrator may know why").format(namespace=namespace)
            raise SourceFailed(f"the Kubernetes cluster answers {status}{': ' if said else ''}{said}; {remedy}")
        return text


def _read(response: Any, until: float) -> bytes:
    text = bytearray()
    while True:
        part = response.read(_PART)
        if not part:
            return bytes(text)
        text += part
        if len(text) > MAX_PAGE_BYTES:
            raise SourceFailed(
                f"the Kubernetes cluster answers with more than {MAX_PAGE_BYTES} bytes for {PAGE_PODS} pods"
            )
        if time.monotonic() > until:
            raise SourceFailed("the Kubernetes cluster does not answer in time")


def _said(text: bytes) -> str:
    """Return the message of the cluster's answer, or its text, in one short line."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        answer = None
    said = answer.get("message") if isinstance(answer, dict) else None
    return _one_line(said if isinstance(said, str) else text.decode("utf-8", "replace"))


def _one_line(text: str) -> str:
    line = "".join([character if character.isprintable() else " " for character in " ".join(text.split())])
    return line if len(line) <= MAX_SAID else line[:MAX_SAID] + "..."


def check_names(namespace: str, label: str) -> None:
    """Raise ConfigError if one is empty or has an invalid character."""
    for option, value in (("-n", namespace), ("-l", label)):
        if not value or not all(character.isalnum() or character in "-._/" for character in value):
            raise ConfigError(f"{option}: {value!r:.80} is no name of a {'namespace' if option == '-n' else 'label'}")
