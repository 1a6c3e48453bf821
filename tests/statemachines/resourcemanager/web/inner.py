"""The inner names that several tests of the web address need, so that a module that moves is a line here."""

# ruff: noqa: F401

from __future__ import annotations

from dispatcher.pages import page_texts, site
from statemachines.resourcemanager.web.jmx import beans
from statemachines.resourcemanager.web.pages import application, applications, cluster_texts, histories, timeline
from statemachines.resourcemanager.web.pages.listing import (
    ListedColumn,
    ListPage,
    Query,
    columns_of,
    first_page,
    page_of,
    parse,
)
from statemachines.resourcemanager.web.rest import apps, lists, scheduler, texts
