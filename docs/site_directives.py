"""Two things that the site's pages use and Sphinx does not have: diagrams in Mermaid, and the reference of a package.

A fence ```mermaid is drawn when the site is built, by Mermaid itself, so a page needs neither scripts nor a network and
a diagram with a mistake fails the build. A forge draws the same fence by itself.
"""

from __future__ import annotations

import base64
import builtins
import gc
import hashlib
import html
import importlib
import inspect
import logging
import os
import re
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from docstrings import shows_every_field
from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.addnodes import pending_xref, toctree
from sphinx.application import Sphinx
from sphinx.domains.python import PythonDomain
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective

from dispatcher import AsyncDispatcher, Service
from dispatcher.util.files import replace_file

OUR_PACKAGES = ("dispatcher", "statemachines", "pipeline")
_API_PAGE = re.compile(rf"api/({'|'.join(OUR_PACKAGES)})(\.\w+)*")
_LINKED = ("class", "exception", "function", "method", "data")
"""What a bare name in a docstring can mean on another page. Of attributes, parameters have the same names."""
_SMALLEST = 0.6
"""A diagram shrinks to this part of its width to fit the screen; beyond that it scrolls, so that it stays readable."""


def drawn(source: str, folder: Path) -> str:
    """The SVG of a diagram. Drawing one takes a second, so the folder keeps it for the next build.

    Raises:
        mermaidx.engines._common.MermaidRenderError: Mermaid does not understand it.
    """
    key = hashlib.sha256(f"{version('mermaidx')}\n{source}".encode()).hexdigest()
    kept = folder / f"{key}.svg"
    if not kept.exists():
        import mermaidx

        svg = str(mermaidx.render(source, theme="neutral").svg())
        folder.mkdir(parents=True, exist_ok=True)
        # A draft of its own for each process: two builds may run at once.
        replace_file(kept, svg.encode(), draft=folder / f"{key}.{os.getpid()}", sync=False)
    return kept.read_text(encoding="utf-8")


class Mermaid(SphinxDirective):
    """A diagram. A screen reader says its line `accDescr: ...` instead of it or, without one, its source."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        source = "\n".join(self.content)
        described = re.search(r"^\s*accDescr:\s*(.+)$", source, re.MULTILINE)
        try:
            svg = drawn(source, Path(self.env.doctreedir) / "diagrams")
        except Exception as error:
            raise self.error(f"the diagram cannot be drawn: {error}") from error
        width = re.search(r'viewBox="[-\d.]+ [-\d.]+ ([\d.]+)', svg)
        said = described[1].strip() if described else f"A diagram: {' '.join(source.split())}"
        drawing = base64.b64encode(svg.encode()).decode()
        natural = float(width[1]) if width else 600.0
        style = f' style="width: {natural:.0f}px; min-width: {natural * _SMALLEST:.0f}px"'
        image = f'<img alt="{html.escape(said)}"{style} src="data:image/svg+xml;base64,{drawing}">'
        return [nodes.raw("", f'<div class="diagram" tabindex="0">{image}</div>', format="html")]


class Package(SphinxDirective):
    """What a package exports: a table with a line for each name, and then their docstrings.

    A name that several packages export is described once, and linked from the others.
    """

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {"only": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        package = importlib.import_module(name)
        names = self.options["only"].split() if "only" in self.options else package.__all__
        values = {each: getattr(package, each) for each in names}  # imports those that are imported at first use
        packages = [page.removeprefix("api/") for page in self.env.found_docs if _API_PAGE.fullmatch(page)]
        homes = {each: _home(each, value, name, packages) for each, value in values.items()}
        lines = ["```{eval-rst}", f".. py:module:: {name}", "", f".. currentmodule:: {name}", ""]
        lines += [
            f"Exported by ``{name}``:",
            "",
            ".. autosummary::",
            "   :nosignatures:",
            "",
            *(f"   {_entry(each, home, name)}" for each, home in homes.items()),
            "",
        ]
        for each, value in values.items():
            if homes[each] == name:
                lines += [f".. {_directive(value)}:: {each}", *_options(value, packages), ""]
        lines.append("```")
        holder = nodes.container()
        self.state.nested_parse(StringList(lines, source=f"{name}.__all__"), 0, holder)
        return holder.children


def _home(each: str, value: object, name: str, packages: list[str]) -> str:
    """The package whose page describes what `name` exports: the uppermost of those that hold its module.

    If none of those exports it, the one of the others that has the shortest name.
    """
    module = f"{getattr(value, '__module__', '')}."
    exporting = [other for other in packages if getattr(_exporting(other, each), each, None) is value]
    holding = [other for other in exporting if module.startswith(f"{other}.")]
    return min(holding or exporting, key=len, default=name)


def _exporting(package: str, each: str) -> ModuleType | None:
    """The package, if it exports that name."""
    module = _imported(package)
    return module if each in _exports(module) else None


def _entry(each: str, home: str, name: str) -> str:
    return each if home == name else f"~{home}.{each}"


def _directive(value: object) -> str:
    if isinstance(value, type):
        return "autoexception" if issubclass(value, BaseException) else "autoclass"
    return "autofunction" if inspect.isroutine(value) else "autodata"


def _options(value: object, packages: list[str]) -> list[str]:
    if not isinstance(value, type):
        return []
    exported = {id(getattr(module, each)) for module in map(_imported, packages) for each in _exports(module)}
    bases = [base for base in value.__mro__[1:] if not getattr(base, "_is_protocol", False)]
    described = [base.__name__ for base in bases if _is_described(base, value, exported)]
    options = ["   :members:", "   :exclude-members: model_config, model_post_init"]
    if value.__bases__ != (object,):
        options.append("   :show-inheritance:")
    if len(described) < len(bases):  # the members of a base without a page are described with the class
        options.append(f"   :inherited-members: {', '.join(described)}")
    return [*options, "   :undoc-members:"] if shows_every_field(value) else options


def _is_described(base: type, value: type, exported: Container[int]) -> bool:
    """Whether the members of a base are described elsewhere. A dispatcher's life cycle is shown with it."""
    is_life_cycle = base is Service and "post" in vars(value)
    return not is_life_cycle and (id(base) in exported or not _is_ours(base))


@cache
def _imported(package: str) -> ModuleType:
    return importlib.import_module(package)


def _exports(module: ModuleType) -> Sequence[str]:
    return getattr(module, "__all__", ())


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in OUR_PACKAGES


def resolve(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement) -> nodes.Node | None:
    """A reference that Sphinx has not found: to a public name of another page, or to something that has no page.

    Names of parameters, of private helpers and of other libraries become plain code. A dotted name of ours that does
    not exist stays a broken reference.
    """
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py":
        return None
    domain = env.domains.python_domain
    of_dispatcher = target.replace("dispatcher.", "AsyncDispatcher.", 1)  # as in `dispatcher.post`
    if target.startswith("dispatcher.") and f"dispatcher.{of_dispatcher}" in domain.objects:
        target = of_dispatcher
    found = [
        name
        for name in _by_last_part(domain)[target.rpartition(".")[2]]
        if name.endswith(f".{target}") and ("." in target or domain.objects[name].objtype in _LINKED)
    ]
    if len({domain.objects[name].node_id for name in found}) == 1:
        entry = domain.objects[found[0]]
        from sphinx.util.nodes import make_refnode

        return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, content, found[0])
    if target.startswith("dispatcher.") and hasattr(AsyncDispatcher, target.removeprefix("dispatcher.")):
        return content
    names_ours = re.fullmatch(rf"({'|'.join(OUR_PACKAGES)})(\.\w+)+", target) is not None
    return content if not names_ours or _exists(target) else None


@cache
def _by_last_part(domain: PythonDomain) -> Mapping[str, Sequence[str]]:
    """All entries' names by their last part. Call it once every page has been read."""
    names = defaultdict(list)
    for name in domain.objects:
        names[name.rpartition(".")[2]].append(name)
    return names


@cache
def _exists(path: str) -> bool:
    """Whether a dotted path names a module of ours, or something in one."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for name in parts[length:]:
            if not hasattr(value, name) and name not in getattr(value, "__annotations__", {}):
                return False
            value = getattr(value, name, None)
        return True
    return False


def name_others(app: Sphinx, document: nodes.document) -> None:
    """Keep names of Python and PySpark from being taken for ours: an attribute `type`, a journal's class `Column`."""
    import pyspark.sql

    for node in list(document.findall(pending_xref)):
        name, module = node.get("reftarget", ""), node.get("py:module") or ""
        if node.get("refdomain") != "py":
            continue
        if hasattr(builtins, name):
            node.replace_self(node.children)
        elif module.startswith("pipeline.spark") and hasattr(pyspark.sql, name):
            node["reftarget"] = f"pyspark.sql.{name}"


def keep_titles(
    app: Sphinx, page: str, template: str, context: dict[str, Any], document: nodes.document | None
) -> None:
    """Build the navigation tree from page titles alone. It leaves out the thousands of entries of the reference."""
    with_all = context["toctree"]

    def with_titles(**options: Any) -> str:
        contents, app.env.tocs = app.env.tocs, _titles(app.env)
        try:
            return str(with_all(**options))
        finally:
            app.env.tocs = contents

    context["toctree"] = with_titles


@cache
def _titles(env: BuildEnvironment) -> dict[str, nodes.bullet_list]:
    """Each page's table of contents without its sections. Call it once every page has been read."""
    titles = {page: contents.deepcopy() for page, contents in env.tocs.items()}
    for item in (item for contents in titles.values() for item in contents if len(item) > 1):
        item[1][:] = list(item[1].findall(toctree))
    return titles


def is_worth_a_warning(record: logging.LogRecord) -> bool:
    """A toctree for the pages of a folder that are still to come is not. Its warning has no type to suppress it by."""
    return getattr(record, "subtype", None) != "empty_glob"


def setup(app: Sphinx) -> dict[str, Any]:
    logging.getLogger("sphinx.sphinx.directives.other").addFilter(is_worth_a_warning)
    app.add_directive("mermaid", Mermaid)
    app.add_directive("package", Package)
    app.connect("doctree-read", name_others)
    app.connect("missing-reference", resolve, priority=900)  # after intersphinx
    app.connect("html-page-context", keep_titles, priority=100)  # before the theme
    gc.disable()  # the process ends with the build, and collecting garbage would take a third of it
    return {"parallel_read_safe": True}
