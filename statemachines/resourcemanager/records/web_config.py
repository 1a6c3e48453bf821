"""Settings of the resource manager's web address. Needs no extra."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from dispatcher.web.config import WebConfig

AuthName = Literal["simple", "token"]
"""Who a client is: the user that it names, as in a cluster without Kerberos; or its token's or certificate's."""


class RMWebConfig(WebConfig):
    """Settings of the resource manager's web address."""

    gone_keys: ClassVar[Mapping[str, str]] = {
        **WebConfig.gone_keys,
        "cookie_secret_file": "the cookie hadoop.auth is not signed, and needs no secret: remove the key and the file",
    }

    enabled: bool = Field(
        default=True, description="serve YARN's REST API and the pages, if the extra `web` is installed"
    )
    requests_per_s: float = Field(
        default=10_000.0,
        gt=0,
        le=1e6,
        description="maximum requests answered per second, on average. A burst of 3 seconds' worth passes at once. "
        "Further requests wait their turn, so that a flood leaves the interpreter to the handlers",
    )
    request_deadline_s: float = Field(
        default=15.0,
        gt=0,
        description="maximum time for a request to arrive, and again for its answer to be sent, in seconds. An "
        "answer that has not begun by then becomes 503. Keep it above write_timeout_s, whose answer "
        "says what to do",
    )
    auth: AuthName | None = Field(
        default=None,
        description="how the user is known. simple: the client names it (`?user.name=`, or the cookie that it then "
        "gets), on this machine only. token: it is the token's or the certificate's. null: token if "
        "there is tokens_file or tls.client_ca, else simple",
    )
    static_user: str = Field(
        default="dr.who", min_length=1, description="under auth simple, the user of clients that name none"
    )
    require_user: bool = Field(
        default=False, description="under auth simple, answer 401 to a change by a client that names no user"
    )
    submissions: bool = Field(default=True, description="accept applications by REST; false answers 403")
    read_only: bool = Field(default=False, description="answer 403 to all changes, and show no buttons for them")
    probes_need_token: bool = Field(
        default=False,
        description="whether /livez, /readyz and /healthz need a token where the other pages do",
    )
    refresh_ms: int = Field(
        default=250,
        ge=1,
        le=60_000,
        description="interval between publications of what the REST API and the pages show, in ms. It grows up to "
        "5 s while the handlers have no time to spare",
    )
    write_timeout_s: float = Field(
        default=10.0,
        gt=0,
        description="maximum wait for a change to be made, in seconds; then 503, and the client repeats it",
    )
    empty_as_null: bool = Field(
        default=False, description="show an empty list as null, as the JSON of Hadoop before 3.0 does"
    )
    hadoop_version: str = Field(
        default="3.4.1", min_length=1, description="the version of Hadoop to report, for scripts that branch on it"
    )

    @property
    def auth_in_use(self) -> AuthName:
        """`auth`, or the value that null stands for."""
        return self.auth or ("token" if self._knows_users else "simple")

    @property
    def _knows_users(self) -> bool:
        return self.tokens_file is not None or (self.tls is not None and self.tls.client_ca is not None)

    @model_validator(mode="after")
    def _auth_fits_the_door(self) -> Self:
        if self.auth == "token" and not self._knows_users:
            raise ValueError("auth: token needs tokens_file or tls.client_ca; without them, leave it null")
        if self.auth == "simple" and self.port is not None and not _is_loopback(self.host):
            raise ValueError(
                f"auth: simple trusts every client to name its user, so it is for this machine only; host {self.host} "
                "needs auth token"
            )
        return self


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
