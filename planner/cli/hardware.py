"""`planner hardware`: the accelerators and servers that planner knows by name."""

from __future__ import annotations

import click

from planner.cli.output import Failure, Output, output_options


@click.command("hardware")
@click.argument("name", required=False)
@output_options
def command(name: str | None, output: Output) -> None:
    """List the accelerators and servers, or show all facts of one with their source.

    NAME is a GPU, a server, or part of a name.

    A cluster file (TOML) takes these names, changes their facts under the same keys, and says how servers are joined: network_per_gpu,
    oversubscription (how much thinner the fabric above the leaf switches is than the NICs), leaf_servers (servers under one leaf, which
    reach each other at full rate; one where not given), rails = true (each leaf joins the NICs of one index of its servers).
    """
    from hardware.catalog import UnknownName, find, gpu_names, load_gpu, load_node, node_names, unknown
    from planner.report.catalogues import fact_lines, gpu_lines, node_lines
    from planner.report.documents import gpu_record, node_record
    from planner.schema import HardwareDocument

    gpu_ids, node_ids = list(gpu_names()), list(node_names())
    one = None
    if name is not None:
        try:
            gpu, node = find(name, "gpu"), find(name, "node")
        except UnknownName as error:
            raise Failure([f"{error}"], exit_code=2) from None
        if gpu is None and node is None:
            gpu_ids = [i for i in gpu_ids if name.lower() in i]
            node_ids = [i for i in node_ids if name.lower() in i]
            if not name.strip() or not gpu_ids + node_ids:
                raise Failure([f"{unknown(name, 'gpu', 'node')}"], exit_code=2)
        else:
            gpu_ids, node_ids = [gpu] if gpu else [], [node] if node and not gpu else []
            one = load_gpu(gpu) if gpu else load_node(f"{node}")
    gpus, nodes = [load_gpu(i) for i in gpu_ids], [load_node(i) for i in node_ids]
    if output.json:
        output.document(HardwareDocument(gpus=[gpu_record(g) for g in gpus], servers=[node_record(n) for n in nodes]))
    elif one is not None:
        output.lines(fact_lines(one, output.look))
    else:
        lines = [*gpu_lines(gpus, output.look), ""] if gpus else []
        lines += [*node_lines(nodes, output.look), ""] if nodes else []
        output.lines([*lines, f"{len(gpus)} accelerators, {len(nodes)} servers. Next  planner hardware a100-sxm-80g"])
