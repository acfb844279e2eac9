"""CG_RAG: construction-site safety over laws and standards."""

from __future__ import annotations

import sys
from pathlib import Path

# modes/, index/, prompts/ and core/ lie beside this file in a checkout and under
# cg_rag/ in a wheel. This line makes both the package `cg_rag`.
__path__ = [str(Path(__file__).resolve().parent)]


def main() -> int:
    return 0


if __name__ == "__main__":
    sys.exit(main())
