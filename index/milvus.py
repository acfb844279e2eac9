"""Vectors in Milvus: one collection for each built index, named by its fingerprint, so that a service never searches
the vectors of another build. docs/scale.md.

Rule: this is the only module that imports pymilvus, and it does so when Milvus is first needed: the import takes a
second, and pymilvus is not installed unless wanted (extra `milvus`).

A collection holds the row and its vector, nothing else: texts, names, words and scopes stay beside the service, so a
service without Milvus goes on by words.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cg_rag.index.errors import EngineFailed, EngineLacksIndex
from cg_rag.index.exact_scores import Rows
from cg_rag.index.remote_vectors import Ranges
from cg_rag.index.scan import Floats

ROW, VECTOR = "row", "vector"
MAX_LIMIT = 16384  # Milvus, limits: the most that a search returns
MAX_REASON = 200
# Inserts, flushes and the building of an index take longer than a question.
PUSH_TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class IndexKind:
    """`build`: number of rows -> parameters of the index; `search`: (number of rows, limit) -> those of a search."""

    milvus_name: str
    build: Callable[[int], dict[str, Any]]
    search: Callable[[int, int], dict[str, Any]]


def _num_lists(num_rows: int) -> int:
    """4 times the root of the rows, as the Milvus documentation advises for IVF; of few rows fewer, because FAISS wants
    39 for each list."""
    return max(1, min(65536, round(4 * math.sqrt(num_rows)), num_rows // 39))


def _num_probes(num_rows: int, _limit: int) -> dict[str, Any]:
    # More than there are lists is all of them; milvus-lite 3.2 makes 128, whatever it is asked for.
    return {"nprobe": max(128, _num_lists(num_rows) // 8)}


# How wide to search: docs/scale.md has what each of them finds.
KINDS: Mapping[str, IndexKind] = {
    "flat": IndexKind("FLAT", lambda rows: {}, lambda rows, limit: {}),
    "ivf_sq8": IndexKind("IVF_SQ8", lambda rows: {"nlist": _num_lists(rows)}, _num_probes),
    "hnsw": IndexKind(
        "HNSW",
        lambda rows: {"M": 16, "efConstruction": 200},
        lambda rows, limit: {"ef": max(256, 2 * limit)},
    ),
    "diskann": IndexKind(
        "DISKANN", lambda rows: {}, lambda rows, limit: {"search_list": max(256, 2 * limit)}
    ),
}


@dataclass(frozen=True, slots=True)
class MilvusOptions:
    """`uri`: http(s)://host:port, or the file of milvus-lite. `token`: user:password or a key, "" for none."""

    uri: str
    token: str = ""
    database: str = ""
    prefix: str = "cg_rag"
    timeout_seconds: float = 5.0


class Milvus:
    """A connection, opened when first needed and shared by threads."""

    def __init__(self, options: MilvusOptions) -> None:
        self.options = options
        self._lock = threading.Lock()
        self._client: Any = None

    def collection(self, fingerprint: str) -> MilvusCollection:
        """That of the built index `fingerprint`, which need not be there yet."""
        return MilvusCollection(self, f"{self.options.prefix}_{fingerprint.replace('.', '_')}")

    def collections(self) -> list[str]:
        """The names of all collections that begin with the prefix. Raises EngineFailed."""
        with translated():
            names: list[str] = self.client().list_collections(timeout=self.options.timeout_seconds)
        return sorted(name for name in names if name.startswith(f"{self.options.prefix}_"))

    def client(self) -> Any:
        """The pymilvus client. Raises EngineFailed, and what pymilvus raises."""
        with self._lock:
            if self._client is None:
                options = self.options
                # What it logs arrives as an exception as well, and it knows no other way to be quiet.
                logging.getLogger("pymilvus").setLevel(logging.CRITICAL + 1)
                self._client = _import().MilvusClient(
                    uri=options.uri,
                    token=options.token,
                    db_name=options.database,
                    timeout=options.timeout_seconds,
                )
            return self._client

    def drop(self, collection: str) -> None:
        """Raises EngineFailed."""
        MilvusCollection(self, collection).drop()

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()


class MilvusCollection:
    """A `remote_vectors.VectorEngine`, and what `push.py` needs to fill it."""

    def __init__(self, milvus: Milvus, collection: str) -> None:
        self.collection = collection
        self._milvus = milvus
        self._seconds = milvus.options.timeout_seconds
        self._kind: IndexKind | None = None
        self._num_rows = 0

    @property
    def name(self) -> str:
        return f"milvus {self._kind.milvus_name}" if self._kind else "milvus"

    def check(self, num_rows: int) -> None:
        found = self.count()
        if found != num_rows:
            raise EngineLacksIndex(self.collection, found, num_rows)
        self._num_rows = num_rows
        with translated():
            described = self._milvus.client().describe_index(self.collection, VECTOR, timeout=self._seconds)
        name = str((described or {}).get("index_type", ""))
        self._kind = next((kind for kind in KINDS.values() if kind.milvus_name == name), None)

    def search(self, vector: Floats, ranges: Ranges, limit: int) -> Rows:
        """`ranges` empty: all rows."""
        limit = min(limit, MAX_LIMIT)
        how = self._kind.search(self._num_rows, limit) if self._kind else {}
        with translated():
            (hits,) = self._milvus.client().search(
                self.collection,
                data=[vector],
                anns_field=VECTOR,
                filter=row_filter(ranges),
                limit=limit,
                output_fields=[ROW],
                search_params={"metric_type": "IP", "params": how},
                timeout=self._seconds,
            )
        return np.array([hit[ROW] for hit in hits], np.int64)

    def count(self) -> int | None:
        """How many rows it holds; None when it is not there. Raises EngineFailed."""
        with translated():
            client = self._milvus.client()
            if not client.has_collection(self.collection, timeout=self._seconds):
                return None
            found = client.query(
                self.collection,
                filter="",
                output_fields=["count(*)"],
                consistency_level="Strong",
                timeout=self._seconds,
            )
        return int(found[0]["count(*)"])

    def create(self, dim: int, num_rows: int, kind: str) -> None:
        """Make it, empty, with its index, ready to be filled. Raises EngineFailed."""
        with translated():
            types = _import().DataType
            client = self._milvus.client()
            schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field(ROW, types.INT64, is_primary=True)
            schema.add_field(VECTOR, types.FLOAT_VECTOR, dim=dim)
            index = client.prepare_index_params()
            chosen = KINDS[kind]
            index.add_index(
                VECTOR, index_type=chosen.milvus_name, metric_type="IP", params=chosen.build(num_rows)
            )
            client.create_collection(
                self.collection, schema=schema, index_params=index, timeout=PUSH_TIMEOUT_SECONDS
            )
            client.load_collection(self.collection, timeout=PUSH_TIMEOUT_SECONDS)

    def put(self, first_row: int, vectors: NDArray[np.float32]) -> None:
        """Rows `first_row` and those after it; what was there under them is replaced. Raises EngineFailed."""
        rows = [{ROW: first_row + place, VECTOR: vector} for place, vector in enumerate(vectors)]
        with translated():
            self._milvus.client().upsert(self.collection, rows, timeout=PUSH_TIMEOUT_SECONDS)

    def finish(self) -> None:
        """Have everything written and indexed. Raises EngineFailed."""
        with translated():
            self._milvus.client().flush(self.collection, timeout=PUSH_TIMEOUT_SECONDS)

    def drop(self) -> None:
        with translated():
            self._milvus.client().drop_collection(self.collection, timeout=PUSH_TIMEOUT_SECONDS)


def row_filter(ranges: Sequence[tuple[int, int]]) -> str:
    """Milvus' boolean expression for rows of `ranges`; "" for all."""
    return " or ".join(f"({ROW} >= {start} and {ROW} < {stop})" for start, stop in ranges)


@contextmanager
def translated() -> Iterator[None]:
    """What pymilvus raises, as EngineFailed with a reason that names no address and no token."""
    pymilvus = _import()
    import grpc

    try:
        yield
    except pymilvus.exceptions.MilvusException as error:
        raise EngineFailed("Milvus", _reason(error.code, error.message)) from error
    except grpc.RpcError as error:
        raise EngineFailed("Milvus", f"调用失败（{type(error).__name__}）") from error
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise EngineFailed("Milvus", f"{type(error).__name__}：{str(error)[:MAX_REASON]}") from error


def _reason(code: int, message: str) -> str:
    lowered = message.lower()
    if "connecting" in lowered or "unavailable" in lowered:
        return "无法连接，请检查 index.milvus.uri 与 Milvus 是否在运行"
    if "deadline" in lowered or "timeout" in lowered or "timed out" in lowered:
        return "没有在 index.milvus.timeout_seconds 之内回答"
    if "auth" in lowered or "permission" in lowered:
        return "拒绝了 index.milvus.token"
    return f"错误 {code}：{message[:MAX_REASON]}"


def _import() -> Any:
    try:
        import pymilvus
    except ImportError as error:
        raise EngineFailed("Milvus", "没有安装 pymilvus，请运行 pip install 'cg-rag[milvus]'") from error
    return pymilvus
