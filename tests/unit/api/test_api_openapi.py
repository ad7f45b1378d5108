import pytest

from app.factory import create_app
from app.ledger.settings import Settings
from app.openapi import document

BODIES = (
    "CreateSandbox",
    "PolicyBody",
    "RenewBody",
    "ExecBody",
    "SignalBody",
    "CreateRun",
    "MoveFile",
    "MakeFolder",
    "LinkFile",
)


@pytest.mark.parametrize("body", BODIES)
def test_every_field_of_a_body_says_what_it_means(body: str) -> None:
    _, framework = create_app(Settings())
    fields = document(framework)["components"]["schemas"][body]["properties"]
    assert [name for name, field in fields.items() if not field.get("description")] == []


def test_a_field_is_described_under_its_name_on_the_wire() -> None:
    _, framework = create_app(Settings())
    move = document(framework)["components"]["schemas"]["MoveFile"]
    assert move["properties"]["from"]["description"] and move["required"] == ["from", "to"]
