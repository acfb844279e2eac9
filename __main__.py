"""`python -m cg_rag` in an installed package; in a checkout `python cg_rag.py` does the same."""

import sys

from cg_rag import main

if __name__ == "__main__":
    sys.exit(main())
