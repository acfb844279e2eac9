"""The bundled models on a CPU that is not this one: an emulated one without VNNI. Skips without QEMU's user mode."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json
from cg_rag.index.corpus import Article
from cg_rag.index.embedder import OnnxEmbedder
from cg_rag.index.models import E5_SMALL_ZH, STATUTE_CE_6L
from cg_rag.index.reranker import OnnxReranker

articles = [
    Article("中华人民共和国安全生产法", "第三十条", "特种作业人员必须取得相应资格，方可上岗作业。"),
    Article("中华人民共和国民法典", "第二条", "民法调整平等主体之间的人身关系和财产关系。"),
]
embedder = OnnxEmbedder(E5_SMALL_ZH)
vectors = [embedder.embed_query(text).tolist() for text in ("电焊工没有证能不能上岗", "塔吊限位器坏了还能用吗")]
scores = OnnxReranker(STATUTE_CE_6L, shared=E5_SMALL_ZH).score("电焊工没有证能不能上岗", articles)
print(json.dumps([vectors, [score.value for score in scores]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("cpu", ["Haswell", "Skylake-Server-noTSX-IBRS", "Nehalem"])
def test_a_processor_without_vnni_gives_the_same_numbers(cpu: str) -> None:
    qemu = shutil.which("qemu-x86_64-static") or shutil.which("qemu-x86_64")
    if qemu is None:
        pytest.skip("qemu-user-static is not installed")
    python = [sys.executable, "-c", PROGRAM]
    (vectors, logits), (other_vectors, other_logits) = (
        json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=300).stdout)
        for command in (python, [qemu, "-cpu", cpu, *python])
    )
    assert np.sum(np.array(vectors) * other_vectors, axis=1).min() > 0.9975
    # With overflow they are off by 0.2 to 0.8.
    np.testing.assert_allclose(other_logits, logits, atol=0.1)
