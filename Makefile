PYTHON ?= .venv/bin/python
STAGE := build/stage

.PHONY: setup check format test test-long soak bench bench-peers pins prompts wheel stage types clean

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

test:             ## the short form: everything but slow, soak, bench and browser
	$(PYTHON) -m pytest -m 'not slow and not soak and not bench and not browser'

test-long:        ## every kill point of a build, wheels, hundreds of slow and broken connections
	$(PYTHON) -m pytest -m 'slow'

.PHONY: mcp-clients
mcp-clients:      ## the MCP endpoint against clients and suites of others; tests/contract/test_mcp_clients.py says which
	$(PYTHON) -m pytest -m 'slow or not slow' tests/contract/test_mcp_clients.py

# In an environment of its own: it brings 28 packages, and a pytest plugin that every run would load.
SCHEMATHESIS := build/fuzz/bin/schemathesis

$(SCHEMATHESIS):
	python3 -m venv build/fuzz
	build/fuzz/bin/pip install --quiet 'schemathesis>=4.32,<5'

.PHONY: api-fuzz
api-fuzz: $(SCHEMATHESIS)  ## requests made up from openapi.json, their answers held to it; EXAMPLES=10 is the short form
	SCHEMATHESIS=$(abspath $(SCHEMATHESIS)) SCHEMATHESIS_EXAMPLES=$(or $(EXAMPLES),200) \
		$(PYTHON) -m pytest tests/contract/test_openapi.py

# Fetched for the tests, never kept: the checker of accessibility. Without npm its tests skip.
AXE := build/axe/package/axe.min.js

$(AXE):
	mkdir -p build/axe
	-cd build/axe && npm pack --silent axe-core@4.14.1 >/dev/null && tar -xzf axe-core-4.14.1.tgz

.PHONY: browser pictures
browser: $(AXE)   ## the console in a headless Chromium (apt-get install chromium fonts-noto-cjk); skips without one
	AXE=$(abspath $(AXE)) $(PYTHON) -m pytest -m 'browser'

pictures:         ## take the pictures of the console for the README anew; look at them
	$(PYTHON) -m tests.console_pictures docs/images

soak:             ## minutes of load
	$(PYTHON) -m pytest -m 'soak'

bench:            ## measures against the data beside the project; skips what is absent
	$(PYTHON) -m pytest -m 'bench' -s

bench-peers:      ## retrieval beside its peers (extra bench): make bench-peers INDEX=DIR LARGE=DIR QUESTIONS=FILE
	$(PYTHON) tests/bench/retrieval.py --index-dir $(INDEX) --large-index-dir $(LARGE) --questions $(QUESTIONS) --details

pins:             ## take prompts/ as it is for reviewed; review the diff of pins.json
	$(PYTHON) -c 'from cg_rag.prompts import write_pins; write_pins()'

prompts:          ## write the vocabularies of prompts/*.json into the prompts that name them; then `make pins`
	$(PYTHON) -c 'from cg_rag.prompts.vocabulary import fill_prompts; print("\n".join(fill_prompts()) or "unchanged")'

wheel:
	$(PYTHON) -m pip wheel --no-deps --wheel-dir dist .

clean:
	rm -rf build dist
