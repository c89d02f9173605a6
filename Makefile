# A fresh clone needs git, make and Python >= 3.10; everything else goes into $(VENV), and a changed pyproject.toml
# makes it anew. Choose the interpreter with `make PYTHON=python3.12 …`.
PYTHON ?= python3
VENV ?= .venv
EVERYDAY ?= .venv-everyday
LOCK := .ci/requirements.lock
# What the core is, and what it promises.
FAST := tests/accounting tests/recording tests/metrics tests/reports tests/text tests/docs $(wildcard tests/test_*.py)
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check install --quiet
# uv is four times as fast, but does not read where pip shall look; whatever it cannot do, pip does. Bytecode is made once,
# for where PYTHONDONTWRITEBYTECODE is set every process makes its own: 1.9 s for jax instead of 0.7 s.
define install
@echo "make: installing into $(VENV), which takes a minute or two the first time"
@if ! $(PY) -m pip config list | grep -q index && \
  $(PY) -m uv pip install --quiet --compile-bytecode --python $(PY) $(1); then :; else $(PIP) $(1); fi
endef

# Bytecode of the tests is kept: pytest takes 15 s to rewrite them, in each of its processes, and 5 s to load them.
PYTEST = PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n auto --dist worksteal

# pytest, and beside it lint and types, whose errors follow its closing lines; either one's failure is the failure.
define checked
@$(PY) -m compileall -q otel_goodput
@said=$$(mktemp); trap 'rm -f "$$said"' EXIT; \
  { $(PY) -m ruff check . && $(PY) -m ruff format --check --quiet . && $(PY) -m mypy; } >"$$said" 2>&1 & checks=$$!; \
  $(PYTEST) $(1); tests=$$?; wait $$checks; status=$$?; cat "$$said"; \
  [ $$tests = 0 ] || exit $$tests; [ $$status = 0 ] || { echo "make: ruff or mypy failed; see above" >&2; exit $$status; }
endef

.NOTPARALLEL:
.PHONY: demo demo-gcp test test-release test-fast test-pythons test-lowest attack everyday search bench bench-gcp bench-viewer bench-newcomer collector docs parts lint types lock clean

demo: $(VENV)/.demo  ## a training job that is killed and resumes, and its report
	@echo "make: a training job that is killed and resumes; about a minute"
	$(PY) examples/preempted.py

demo-gcp: $(VENV)/.test  ## the same job, exporting to an emulator of Google Cloud, and what arrives there
	PYTHONPATH=tests $(PY) -m emulators.demonstration $(DEMO_ARGS)

test: $(VENV)/.test parts  ## everything that must hold: tests, lint, types
	$(call checked,$(PYTEST_ARGS))

test-release: $(VENV)/.test $(EVERYDAY)/.everyday parts  ## all of it, and what takes long and is seldom needed
	$(call checked,--hypothesis-profile release -m 'not attack' $(PYTEST_ARGS))
	$(PYTEST) -m attack $(PYTEST_ARGS)
	$(EVERYDAY)/bin/python -m everyday

test-fast: $(VENV)/.fast  ## for the habit of every save: no jax, no Go, no network, under a minute
	$(PYTEST) -m 'not jax and not crash and not servers and not attack and not release and not slow' \
	  $(FAST) $(PYTEST_ARGS)

test-pythons: $(VENV)/.made  ## the suite on every Python that can be had here, and which were not
	$(PY) .ci/pythons.py $(PYTEST_ARGS)

test-lowest: $(VENV)/.made  ## the suite with the oldest versions that pyproject.toml lets in
	$(PY) .ci/pythons.py --lowest $(PYTEST_ARGS)

attack: $(VENV)/.test parts  ## hostile files, receivers and disks by name, with counts, and ten thousand cases of a fuzz
	$(PY) tests/attack.py --write $(if $(PYTEST_ARGS),-- $(PYTEST_ARGS))

search: $(VENV)/.test  ## new examples for the properties of the account, twenty times as many
	$(PYTEST) --hypothesis-profile search tests/accounting $(PYTEST_ARGS)

lint: $(VENV)/.test
	$(PY) -m ruff check .
	$(PY) -m ruff format --check --quiet .

types: $(VENV)/.test
	$(PY) -m mypy

everyday: $(EVERYDAY)/.everyday  ## programs as people write them, with the libraries of others, beside a witness
	$(EVERYDAY)/bin/python -m everyday --write $(EVERYDAY_ARGS)

bench: $(VENV)/.bench  ## what it costs
	$(PY) -m benchmarks $(BENCH_ARGS)

bench-viewer: $(VENV)/.bench parts  ## what the page of a run costs to make, and to look at
	$(PY) -m benchmarks.viewer $(BENCH_ARGS)
	$(PY) -m benchmarks.browser $(BENCH_ARGS)

bench-gcp: $(VENV)/.bench $(VENV)/.test  ## what exporting to Google Cloud costs, and loses
	PYTHONPATH=tests $(PY) -m benchmarks.cloud $(BENCH_ARGS)

bench-newcomer: $(VENV)/.bench parts  ## how long a newcomer takes to a right figure, and to a dashboard
	$(PY) -m benchmarks.newcomer $(BENCH_ARGS)

docs: $(VENV)/.docs  ## the documentation as a site, at http://127.0.0.1:8000
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs serve --strict

collector: collector/bin/otelcol-goodput  ## the OpenTelemetry Collector with what our configurations use

clean:
	rm -rf $(VENV) $(EVERYDAY) collector/bin demo-run goodput build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.demo: $(VENV)/.made pyproject.toml
	$(call install,--editable . --group demo)
	@touch $@

# With LOCKED=1 exactly what the lock says, each file held against its hash.
$(VENV)/.test: $(VENV)/.made pyproject.toml $(if $(LOCKED),$(LOCK))
ifdef LOCKED
	$(call install,--require-hashes --requirement $(LOCK))
	$(PIP) --no-deps --no-build-isolation --editable .
else
	$(call install,--editable . --group test --group demo --group types)
endif
	@touch $@

lock: $(VENV)/.made  ## renew the lock that `make LOCKED=1 test` installs
	$(PY) .ci/requirements.py > $(VENV)/requirements.in
	$(PY) -m uv pip compile --quiet --upgrade --universal --python-version 3.10 --generate-hashes --no-annotate \
	  --custom-compile-command "make lock" --output-file $(LOCK) $(VENV)/requirements.in

# What tests run that does not come from PyPI. Without one its tests are skipped.
parts: $(VENV)/.made
	@for each in $(VENV)/.prometheus $(VENV)/bin/alertmanager $(VENV)/bin/kustomize $(VENV)/.chromium collector; do \
	  $(MAKE) --no-print-directory --quiet $$each || \
	    echo "make: WITHOUT $${each##*/.} THE TESTS THAT NEED IT ARE SKIPPED; see above what is missing." >&2; done

# Only what it is made of decides whether it is built anew; Go's own caches keep what it was made of.
collector/bin/otelcol-goodput: $(addprefix collector/builder/,manifest.yaml go.mod go.sum build.py) | $(VENV)/.made
	$(PY) collector/builder/build.py --output $@

# What builds the manifests of Kubernetes.
$(VENV)/bin/kustomize: | $(VENV)/.made
	@if found=$$(command -v kustomize); then ln -sf "$$found" $@; exit; fi; \
	  GOBIN="$(abspath $(VENV)/bin)" $(PY) collector/builder/toolchain.py \
	    install sigs.k8s.io/kustomize/kustomize/v5@v5.7.1

# What scrapes the collector and judges the alerts, from Debian's package, which need not be installed; only $(VENV) gets
# them. Nothing here asks for another user's rights.
$(VENV)/.prometheus: $(VENV)/.made
	@if command -v prometheus >/dev/null && command -v promtool >/dev/null; then \
	    ln -sf "$$(command -v prometheus)" "$$(command -v promtool)" $(VENV)/bin/ && touch $@; exit; fi; \
	  package=$$(mktemp -d); trap 'rm -rf "$$package"' EXIT; cd "$$package" && chmod 755 . && \
	  { apt-get download -qq prometheus 2>/dev/null || \
	    { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get download -qq prometheus; } || \
	    { echo "make: no prometheus and promtool: install Debian's package prometheus, or put both on PATH." >&2; \
	      exit 1; }; } && \
	  dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool ./usr/bin/prometheus && \
	  install -m 755 usr/bin/promtool usr/bin/prometheus "$(abspath $(VENV)/bin)" && touch "$(abspath $@)"

# What sends the alerts on. Debian's finds its templates in one place of the whole machine.
$(VENV)/bin/alertmanager: | $(VENV)/.made
	@if found=$$(command -v alertmanager) && tool=$$(command -v amtool); then \
	    ln -sf "$$tool" $(VENV)/bin/amtool; ln -sf "$$found" $@; exit; fi; \
	  GOBIN="$(abspath $(VENV)/bin)" $(PY) collector/builder/toolchain.py install \
	    github.com/prometheus/alertmanager/cmd/amtool@v0.28.1 github.com/prometheus/alertmanager/cmd/alertmanager@v0.28.1

# What the page is looked at with. Debian's package needs others, so it cannot lie in $(VENV) alone: it is installed by who
# may do so, and by nobody else.
$(VENV)/.chromium: $(VENV)/.made
	@find_it() { for name in chromium chromium-browser google-chrome google-chrome-stable; do \
	    command -v $$name && return; done; return 1; }; \
	  found=$$(find_it) || \
	    { [ "$$(id -u)" = 0 ] && apt-get update -qq && \
	      DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core \
	        >/dev/null && found=$$(find_it); } || \
	    { echo "make: no chromium: install Debian's package chromium, or put Chromium or Chrome on PATH." >&2; exit 1; }; \
	  ln -sf "$$found" $(VENV)/bin/chromium && touch $@

$(VENV)/.fast: $(VENV)/.made pyproject.toml
	$(call install,--editable . --group fast)
	@touch $@

$(VENV)/.docs: $(VENV)/.made pyproject.toml
	$(call install,--group docs)
	@touch $@

$(VENV)/.bench: $(VENV)/.made pyproject.toml
	$(call install,--editable . --group demo --group bench)
	@touch $@

$(EVERYDAY)/.everyday: pyproject.toml
	$(MAKE) --no-print-directory VENV=$(EVERYDAY) $(EVERYDAY)/.with-others

$(VENV)/.with-others: $(VENV)/.made pyproject.toml
	$(call install,--editable . --group demo --group everyday)
	@touch $@ $(@D)/.everyday

# Debian's python3 comes without ensurepip, which `venv` needs. `--group` needs pip 25.1.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "make: '$(PYTHON)' must be Python 3.10 or newer; choose another with 'make PYTHON=…'." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip; ensurepip.version()' 2>/dev/null || { \
	  package=$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	  echo "make: $(PYTHON) has no ensurepip, which Debian's package $$package has." >&2; \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$package; } || \
	  { echo "make: install $$package (or the like), or choose another Python with 'make PYTHON=…'." >&2; exit 1; }; }
	@echo "make: creating $(VENV), which takes some seconds"
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) --upgrade 'pip>=25.1'
	@$(PIP) --only-binary :all: uv 2>/dev/null || true
	@touch $@
