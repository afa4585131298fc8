"""`planner schema`: the JSON schema of what --json prints."""

from __future__ import annotations

import click

from planner.cli.output import Failure, Output, output_options


@click.command("schema")
@click.argument("name", metavar="[COMMAND]", required=False)
@click.option("--markdown", is_flag=True, help="Print the same as a page (docs/schema.md).")
@output_options
def command(name: str | None, markdown: bool, output: Output) -> None:
    """Print the JSON schema of --json, of one command or of all."""
    from planner.report.schema_page import DOCUMENTS, json_schema, page

    if name is not None and name not in DOCUMENTS:
        raise Failure([f"no command {name[:60]!r} has a JSON schema; there are {', '.join(DOCUMENTS)}"], exit_code=2)
    click.echo(page() if markdown else json_schema(name), nl=not markdown)
