"""`planner models`: the models that planner knows by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from planner.cli.output import Failure, Output, output_options
from planner.cli.sizes import bare_size

if TYPE_CHECKING:
    from cost_models.catalog_index import Entry
    from planner.schema import ModelRecord, ModelsDocument


@click.command("models")
@click.argument("name", required=False)
@output_options
def command(name: str | None, output: Output) -> None:
    """List the models, or show one: what its name means, its exact size and its shape.

    NAME is a model, a bare size (30b), a Hub config.json or its folder, a TOML file, or part of a name.
    """
    from cost_models.catalog import entries

    if name is None:
        _list(entries(), output, with_sizes=True)
    else:
        _show(name, output)


def _list(found: tuple[Entry, ...], output: Output, *, with_sizes: bool) -> None:
    from cost_models.catalog_names import size_names
    from planner.report.catalogues import model_lines, size_lines

    if output.json:
        output.document(_document(found, with_sizes=with_sizes))
        return
    lines = [*model_lines(found, output.look), "", f"{len(found)} models."]
    if with_sizes:
        lines += [*size_lines(size_names(), output.look), "", "Next  planner models 30b"]
    output.lines(lines)


def _document(found: tuple[Entry, ...], *, with_sizes: bool) -> ModelsDocument:
    from cost_models.catalog import load
    from cost_models.catalog_names import size_names
    from planner.report.documents import model_record
    from planner.schema import ModelsDocument

    sizes = [meaning for size in size_names() if (meaning := bare_size(size)) is not None] if with_sizes else []
    return ModelsDocument(models=[model_record(load(entry.id)) for entry in found], bare_sizes=sizes)


def _show(name: str, output: Output) -> None:
    from cost_models.catalog import ModelError, entries, resolve
    from planner.report.catalogues import meaning_lines, model_details
    from planner.report.documents import model_record
    from planner.schema import ModelsDocument

    try:
        found = resolve(name)
    except ModelError as error:
        wanted = _plain(name)
        part = tuple(entry for entry in entries() if any(wanted in _plain(text) for text in (entry.id, *entry.aliases)))
        if part and wanted:
            _list(part, output, with_sizes=False)
            return
        raise Failure([f"{error}"], exit_code=2) from None
    record: ModelRecord = model_record(found.architecture)
    meaning = bare_size(name)
    if output.json:
        output.document(ModelsDocument(models=[record], bare_sizes=[] if meaning is None else [meaning]))
        return
    said = found.warnings if meaning is not None else (*found.assumed, *found.warnings)
    lines = [] if meaning is None else meaning_lines(meaning, output.look)
    output.lines([*lines, *model_details(record, said, output.look)])


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
