"""Jinja pages: one environment with escaping always on, and the headers that every page carries.

The policy allows scripts only by a nonce made for each page, nothing inline, nothing foreign; htmx gets its HTML through the one
trusted-types policy that `hx-csp` registers, and ignores hx-attributes that do not carry the nonce. So even HTML that somebody
smuggled into a page could neither run a script nor make htmx send a request.
"""

from __future__ import annotations

import secrets
from typing import Final

import jinja2

from app.console import wording
from app.console.assets import SERVICE_ROOT, Assets

BASE_HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not no-referrer: under that, browsers send "Origin: null" with our own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
FRAGMENT_HEADERS: Final = {
    # Opened as a page of its own, a fragment may do nothing at all.
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
}


def page_policy(nonce: str) -> str:
    return (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types htmx"
    )


class Pages:
    def __init__(self, assets: Assets) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(SERVICE_ROOT / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.globals["asset"] = assets.address
        self._environment.filters.update(plain=wording.plain, phrase=wording.phrase, count=wording.count)

    def page(self, template: str, **values: object) -> tuple[str, dict[str, str]]:
        """A whole page and its headers."""
        nonce = secrets.token_urlsafe(16)
        body = self._environment.get_template(template).render(nonce=nonce, **values)
        return body, {"content-security-policy": page_policy(nonce), "cache-control": "no-store"}

    def fragment(self, template: str, **values: object) -> str:
        """A part of a page that htmx puts in place: it holds no script and no hx-attribute, so it needs no nonce."""
        return self._environment.get_template(template).render(**values)
