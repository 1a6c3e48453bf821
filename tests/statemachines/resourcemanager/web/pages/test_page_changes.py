"""Buttons: absent where nothing may be changed, a question first, then a form that only our own page can send."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from ..front import NODE, NODE_ID, Front, front, until
from .test_page_contents import submit

pytestmark = pytest.mark.long

QUEUES = [{"name": "a", "capacity": 50}, {"name": "b", "capacity": 50, "acl_submit_applications": " "}]


@pytest.fixture
def made() -> Iterator[Front]:
    with front(NODE, scheduler={"kind": "capacity", "queues": QUEUES}) as started:
        yield started


def waiting(made: Front, user: str = "dr.who", queue: str = "a") -> str:
    app_id = submit(made, name="it", user=user, queue=queue)
    until(lambda: made.http.get(f"/cluster/app/{app_id}").status_code == 200, "it has a page")
    until(lambda: made.state(app_id) == "ACCEPTED", "it waits; before, its priority and queue cannot be changed")
    return app_id


def press(made: Front, path: str, user: str | None = None, site: str = "same-origin", **fields: str) -> httpx.Response:
    headers = {"Sec-Fetch-Site": site, "Origin": "null"}
    params = {} if user is None else {"user.name": user}
    answer = made.http.post(path, data=fields or {"yes": "1"}, headers=headers, params=params)
    made.http.cookies.clear()
    return answer


def test_a_kill_asks_first_and_then_leads_back_to_the_killed_application(made: Front) -> None:
    app_id = waiting(made)
    path = f"/cluster/app/{app_id}/kill"

    question = made.http.get(path)
    state = made.state(app_id)
    answer = press(made, path)

    assert "Kill this application?" in question.text
    assert '<form method="post"' in question.text
    assert state == "ACCEPTED"
    assert (answer.status_code, answer.headers["location"]) == (303, f"/cluster/app/{app_id}")
    until(lambda: "killed by user dr.who" in made.http.get(f"/cluster/app/{app_id}").text, "its page shows it")
    # Its last state is being stored meanwhile.
    until(lambda: path not in made.http.get(f"/cluster/app/{app_id}").text, "it can no longer be killed")


def test_priority_and_queue_are_changed_by_forms(made: Front) -> None:
    app_id = waiting(made)

    assert press(made, f"/cluster/app/{app_id}/priority", priority="7").status_code == 303
    assert press(made, f"/cluster/app/{app_id}/move", queue="root.b").status_code in (303, 403)
    assert made.manager.clients.get_application_report(app_id).priority == 7


@pytest.mark.parametrize("priority", ["", "high", "-1", "99999999999", "1.5"])
def test_a_priority_that_is_none_is_asked_for_again(made: Front, priority: str) -> None:
    app_id = waiting(made)

    answer = press(made, f"/cluster/app/{app_id}/priority", priority=priority)

    assert answer.status_code == 400
    assert "expected a whole number" in answer.text
    assert '<form method="post"' in answer.text


def test_a_form_of_many_fields_is_refused_in_words(made: Front) -> None:
    """It was answered with 500 and a traceback in the log."""
    app_id = waiting(made)

    answer = press(made, f"/cluster/app/{app_id}/priority", **{f"field{number}": "1" for number in range(21)})

    assert answer.status_code == 400
    assert "a form has at most 20 fields" in answer.text


def test_a_node_is_decommissioned_and_recommissioned(made: Front) -> None:
    def state() -> str:
        return made.manager.clients.get_cluster_nodes()[0].state

    assert press(made, f"/cluster/node/{NODE_ID}/decommission").status_code == 303
    until(lambda: state() == "DECOMMISSIONED", "the node has left")
    until(lambda: "/recommission" in made.http.get(f"/cluster/node/{NODE_ID}").text, "it can come back")
    assert press(made, f"/cluster/node/{NODE_ID}/recommission").status_code == 303
    until(lambda: state() == "RUNNING", "its simulated node manager, which had been shut down, has registered it again")


def test_the_recommissioning_of_a_host_without_a_node_leads_to_the_list_of_nodes(made: Front) -> None:
    """It led to the page of what had just gone, and so to 404. After a restart, each decommissioned host is so."""
    made.manager.admin.refresh_nodes(["n9"])
    until(lambda: made.http.get("/cluster/node/n9:-1").status_code == 200, "it has a page")

    answer = press(made, "/cluster/node/n9:-1/recommission")

    assert (answer.status_code, answer.headers["location"]) == (303, "/cluster/nodes")


@pytest.mark.parametrize("headers", [{}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}])
def test_no_other_site_can_press_a_button(made: Front, headers: dict[str, str]) -> None:
    """A browser too old to say whose page sent the form is refused as well."""
    app_id = waiting(made)

    answer = made.http.post(f"/cluster/app/{app_id}/kill", data={"yes": "1"}, headers=headers)

    assert answer.status_code == 403
    assert made.state(app_id) in ("SUBMITTED", "ACCEPTED")


def test_an_address_for_reading_only_has_no_buttons_and_takes_no_forms() -> None:
    with front(NODE, web={"read_only": True}) as made:
        app_id = submit(made, name="it", user="dr.who")
        until(lambda: made.http.get(f"/cluster/app/{app_id}").status_code == 200, "it has a page")

        app, node = made.http.get(f"/cluster/app/{app_id}").text, made.http.get(f"/cluster/node/{NODE_ID}").text
        question = made.http.get(f"/cluster/app/{app_id}/kill")
        answer = press(made, f"/cluster/app/{app_id}/kill")

        assert "/kill" not in app
        assert "/decommission" not in node
        assert (question.status_code, answer.status_code) == (403, 403)


def test_only_those_who_may_change_an_application_see_its_buttons() -> None:
    queues = [{"name": "a", "capacity": 100}]
    acl = {"scheduler": {"kind": "capacity", "queues": queues, "acl_administer_queue": "boss"}, "admin_acl": "boss"}
    with front(NODE, **acl) as made:
        app_id = waiting(made, "ann")
        path = f"/cluster/app/{app_id}"

        def page(user: str) -> str:
            text = str(made.http.get(path, params={"user.name": user}).text)
            made.http.cookies.clear()
            return text

        assert "/kill" in page("ann")
        assert "/kill" in page("boss")
        assert "You may not view this application" in page("eve")
        assert "not shown to you" in made.http.get("/cluster/apps", params={"user.name": "eve"}).text
        made.http.cookies.clear()
        assert press(made, f"{path}/kill", "eve").status_code == 403
        assert press(made, f"/cluster/node/{NODE_ID}/decommission", "eve").status_code == 403
        assert press(made, f"{path}/kill", "ann").status_code == 303


def test_a_handler_that_hangs_gives_503_within_the_deadline() -> None:
    with front(NODE) as made:
        app_id = waiting(made, queue="default")
        with made.in_a_hurry(), made.hanging():
            answer = press(made, f"/cluster/app/{app_id}/kill")

        assert answer.status_code == 503
        assert "has not done this within 0.2 s" in answer.text
        assert answer.headers["retry-after"] == "1"
