"""The three files of a Spark Arena submission; nothing is uploaded.

Their keys follow sparkrun (https://github.com/spark-arena/sparkrun, ``generate_metadata`` in
``benchmarking/base.py``); ``type`` names sparkcluster instead.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json

import yaml

from sparkcluster.bench.judge import valid
from sparkcluster.bench.profiles import TABLES
from sparkcluster.bench.record import Record, directory
from sparkcluster.spec.playbook import Playbook
from sparkcluster.topology.parallel import tensor_parallel


def write(record: Record, playbook: Playbook) -> str:
    """Write ``recipe.yaml``, ``benchmark.csv`` and ``metadata.json`` next to the run; returns a sentence with the path.

    Unless every cell of profile ``arena`` was measured and is valid, nothing is written, and the sentence says so. The
    files are for others: they have the playbook's settings, and nothing about the network.

    Args:
        record: a run of profile ``arena``.
        playbook: the playbook that served.
    """
    cells, folder = TABLES["cells"]["arena"], directory() / f"{record.id}-arena"
    if len(valid(record)) < sum(1 + caching for *_, caching in cells):  # phases
        return f"no files for Spark Arena: it needs all {len(cells)} cells, each valid"
    image, digest, engine = record.versions["image"] or "", record.versions["digest"], playbook.engine
    parallel = {"tensor_parallel": tensor_parallel(playbook, record.group, len(record.nodes))}
    both = {"name": playbook.name, "model": record.model, "runtime": engine, "container": digest or image}
    recipe = {**both, "env": dict(playbook.env), "defaults": parallel | record.args}
    text = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True)
    origin = {"type": "sparkcluster", "qualified_name": playbook.name, "hf_model": record.model, "runtime_full": engine}
    pinned = {"raw_container": image, "container_pinned": bool(digest), "registry": "", "registry_git": ""}
    lasted_s = max(each.ended_s for each in record.cells)
    start, end = (dt.datetime.fromtimestamp(at, tz=dt.UTC).isoformat() for at in (record.at, record.at + lasted_s))
    metadata = {
        "recipe": {**both, **origin, **pinned, "hash": hashlib.sha256(text.encode()).hexdigest()},
        "timing": {"start": start, "end": end, "duration": lasted_s},
        "cluster": {"cluster_id": record.cluster, "node_count": len(record.nodes), **parallel},
        "benchmark": {"framework": "llama-benchy", "profile": "spark-arena-v2", "args": {"runs": record.runs}},
        "model": {},
        "runtime_info": record.versions,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(text)
    (folder / "benchmark.csv").write_text((directory() / f"{record.id}.csv").read_text())
    (folder / "metadata.json").write_text(json.dumps(metadata, indent=2))
    return f"files for a submission to Spark Arena: {folder}; nothing was sent"
