PYTHON ?= .venv/bin/python
STAGE := build/stage

.PHONY: setup check format test test-long soak bench bench-peers pins wheel stage types clean

setup:            ## virtual environment with everything the checks need
	python3 -m venv .venv
	.venv/bin/pip install --quiet '.[test]'

check: lint types test   ## what has to pass before a change is kept

.PHONY: lint
lint:
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .

format:
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .

# A type checker cannot see through __path__, so it checks the package in the shape that is shipped.
stage:
	rm -rf $(STAGE)
	mkdir -p $(STAGE)/cg_rag
	cp -r core index modes prompts $(STAGE)/cg_rag/
	cp cg_rag.py $(STAGE)/cg_rag/__init__.py
	cp __main__.py $(STAGE)/cg_rag/__main__.py

types: stage
	cd $(STAGE) && $(abspath $(PYTHON)) -m mypy --strict cg_rag

test:             ## the short form: everything but slow, soak and bench
	$(PYTHON) -m pytest -m 'not slow and not soak and not bench'

test-long:        ## every kill point of a build, wheels, hundreds of slow and broken connections
	$(PYTHON) -m pytest -m 'slow'

soak:             ## minutes of load
	$(PYTHON) -m pytest -m 'soak'

bench:            ## measures against the data beside the project; skips what is absent
	$(PYTHON) -m pytest -m 'bench' -s

bench-peers:      ## retrieval beside its peers (extra bench): make bench-peers INDEX=DIR LARGE=DIR QUESTIONS=FILE
	$(PYTHON) tests/bench/retrieval.py --index-dir $(INDEX) --large-index-dir $(LARGE) --questions $(QUESTIONS) --details

pins:             ## take prompts/ as it is for reviewed; review the diff of pins.json
	$(PYTHON) -c 'from cg_rag.prompts import write_pins; write_pins()'

wheel:
	$(PYTHON) -m pip wheel --no-deps --wheel-dir dist .

clean:
	rm -rf build dist
