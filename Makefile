# Each target sets up what it needs in .venv: a fresh clone wants only Python >= 3.11, make and pip.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Python keeps what it has compiled, whatever the surroundings say: else each process compiles torch anew, 4 s each
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo setup test quick lint audit bench docs readme clean

demo: $(READY)
	$(BIN)/evenfed compare --out runs

setup: $(READY)

# Three processes on two cores, since one of them mostly waits for others; one thread in each
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 3

# What most changes would break, in under 90 seconds: no kills, no deployments, no private rounds
quick: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 -m "not slow"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/density.py src --nodes 8.45 --comprehensions 3 --lines 60 --show 3
	$(BIN)/python -m pip check
	NO_COLOR=1 $(BIN)/deptry src
	git ls-files -z -- $(WRITTEN) | xargs -0 -n 200 -P 2 $(BIN)/detect-secrets-hook $(SECRETS)

# What people have written; what in it only looks like a secret (checksums, the passwords of examples); and services
# that nothing here has to do with, which halves the time
WRITTEN := . ':!results' ':!benchmarks/results' ':!tests/fixtures' ':!*.svg'
SECRETS := --no-verify --exclude-secrets '^([0-9a-f]{32,64}|secret|hunter2)$$' $(addprefix --disable-plugin ,$(OTHERS))
OTHERS := ArtifactoryDetector CloudantDetector DiscordBotTokenDetector IbmCloudIamDetector IbmCosHmacDetector \
	IPPublicDetector MailchimpDetector NpmDetector SendGridDetector SoftlayerDetector SquareOAuthDetector \
	StripeDetector TelegramBotTokenDetector TwilioKeyDetector

# Known weaknesses of the packages installed here. It asks PyPI, so it is no part of lint, which works offline.
# What PyPI does not answer for is an error, too.
audit: $(READY)
	@mkdir -p build
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+[^ ]*$$//' > build/installed.txt
	$(BIN)/pip-audit --strict --no-deps --disable-pip --progress-spinner off -r build/installed.txt

# The manual as a site: build/site/index.html. Warnings are errors; examples that have not changed are not run again
docs: $(READY)
	$(BIN)/sphinx-build -q -a -W --keep-going -c docs . build/site
	$(BIN)/python tools/site.py build/site

bench: $(READY)
	$(BIN)/python benchmarks/run.py

# the reports beside the committed runs, and the blocks of both pages that show their tables and figures
readme: $(READY)
	EVENFED=$(BIN)/evenfed experiments/report.sh
	$(BIN)/evenfed fill README.md results/README.md docs/choosing.md docs/guard.md

clean:
	rm -rf .venv .venvs runs build docs/gallery

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "evenfed needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e ".[dev]"
	@touch $(READY)
