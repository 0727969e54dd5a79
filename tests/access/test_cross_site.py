"""A browser on the machine does not do for another site's page what its user may do."""

import httpx
import pytest
from fastapi import FastAPI

from services.access.access_control import protect
from services.access.config import AccessConfig


@pytest.mark.parametrize(
    ("method", "sent", "status"),
    [
        ("POST", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        ("POST", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 403),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}, 403),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 200),
        ("POST", {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, 200),
        ("POST", {}, 200),
    ],
)
async def test_without_keys_another_sites_page_may_only_link(
    method: str, sent: dict[str, str], status: int
) -> None:
    app = FastAPI()

    @app.api_route("/v1/runs", methods=["GET", "POST"])
    def runs() -> str:
        return "begun"

    protect(app, AccessConfig(), service="orchestrator")
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        answer = await http.request(method, "/v1/runs", content=b"{}", headers=sent)
    assert answer.status_code == status
    assert ("begun" in answer.text) == (status == 200)
