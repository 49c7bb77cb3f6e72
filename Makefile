# `make demo` and `make test` are for users; all other targets are for contributors.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SAM    := .tools/sam
UV     := "uv>=0.9,<1"
# Serverless Devs
S      ?= s
# Terraform, or OpenTofu (tofu)
TERRAFORM ?= $(or $(shell command -v terraform),$(shell command -v tofu),terraform)
# of the package for FunctionGraph; the module's variable `runtime` has to be the same
HUAWEI_PYTHON ?= 3.10
# Twice the cores of a CI machine: tests on a real control plane wait a lot.
JOBS   ?= 4
CASES  ?= 2000
SEEDS  ?= 10000
MUTANTS ?= 300

# Caches of compiled modules, of the checkers and of Hypothesis live outside the repository, so that a new clone starts warm.
KEPT   := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/journeyman
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(KEPT)/python
export MYPY_CACHE_DIR := $(KEPT)/mypy
export RUFF_CACHE_DIR := $(KEPT)/ruff
export HYPOTHESIS_STORAGE_DIRECTORY := $(KEPT)/hypothesis

.DEFAULT_GOAL := help
.PHONY: help setup demo test check compiled format lint words types imports unit sam oracle controlplane helm crds metrics settings troubleshooting karpenter-map demo-transcript docs pictures lock bench bench-ablation bench-binding bench-days bench-removals bench-reading call-sites faults nightly clean layer-alibaba deploy-alibaba layer-huawei deploy-huawei

help: ## List the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/' | expand -t 18

setup: $(STAMP) ## Make .venv with the `journeyman` command in it

$(STAMP): tests/requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Journeyman needs Python 3.10 or newer; set PYTHON=… to one"; exit 1; }
	@echo "Installing into $(VENV) (about a minute the first time) …"
	@# Python's own pip installs uv where there is one, which spares the environment a pip of its own.
	@test -x $(BIN)/python || $(PYTHON) -m venv --without-pip $(VENV)
	@test -x $(BIN)/uv || $(PYTHON) -m pip --python $(BIN)/python install --quiet --disable-pip-version-check $(UV) 2>/dev/null \
	|| { $(BIN)/python -m ensurepip >/dev/null && $(BIN)/python -m pip install --quiet --disable-pip-version-check $(UV); }
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r tests/requirements.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

demo: setup ## Scale a simulated cluster on a simulated cloud up and down (CLOUD=alibaba or huawei: on that cloud)
	@$(BIN)/journeyman demo --cloud $(or $(CLOUD),aws)

test: setup ## Run every test; none needs a cloud account
	@$(MAKE) --no-print-directory -j 4 compiled sam oracle controlplane helm format lint words imports
	@echo "$(BIN)/mypy, beside $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup"
	@mkdir -p .cache; $(BIN)/mypy >.cache/mypy.log 2>&1 & types=$$!; \
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup; tests=$$?; \
	wait $$types; types=$$?; cat .cache/mypy.log; exit $$((tests | types))
	@$(BIN)/python -m tests.differential.karpenter >/dev/null

compiled: setup # pytest's compiled tests, once; otherwise each worker compiles them all. An error shows again when they run
	@$(BIN)/python -m pytest --collect-only -q >/dev/null 2>&1 || true

check: setup ## Run the checks for each commit (about a minute)
	@$(MAKE) --no-print-directory -j 2 types format lint words imports
	@$(MAKE) --no-print-directory unit

format: setup
	$(BIN)/ruff format --check .

lint: setup
	$(BIN)/ruff check .

words: setup
	@$(BIN)/python -m tests.lint.plain_words

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

unit: setup
	$(BIN)/python -m pytest -q -n $(JOBS) -m "not slow and not nightly" tests/unit

sam: $(SAM)/.installed ## Install the SAM CLI, in an environment of its own because of its pinned dependencies

$(SAM)/.installed: tests/infra/requirements.txt $(STAMP)
	@echo "Installing the SAM CLI into $(SAM) …"
	@$(BIN)/uv venv --quiet --allow-existing --python $(PYTHON) $(SAM)
	@$(BIN)/uv pip install --quiet --python $(SAM)/bin/python --require-hashes -r tests/infra/requirements.txt
	@touch $@

oracle: setup ## Build Karpenter's scheduler as a program to compare with (needs Go; built once, kept outside the repository)
	@$(BIN)/python -m tests.differential.karpenter

controlplane: setup ## Build Kubernetes' control plane as a program for tests (needs Go; built once, kept outside the repository)
	@$(BIN)/python -m tests.controlplane

helm: setup ## Build Helm as a program for tests of the chart (needs Go; built once, kept outside the repository)
	@$(BIN)/python -m tests.infra.helm_program

# $(call archive,FOLDER,CONTENT,ARCHIVE): files with one time, so that an unchanged archive is not published again
archive = cd $(1) && find $(2) -exec touch -t 202001010000 {} + && $(CURDIR)/$(BIN)/python -c "import pathlib, zipfile; \
  archive = zipfile.ZipFile('$(3)', 'w', zipfile.ZIP_DEFLATED); \
  [archive.write(file) for file in sorted(pathlib.Path('$(2)').rglob('*'))]; archive.close()"

layer-alibaba: setup ## Build the layer of Function Compute into .cache/alibaba/layer.zip
	@rm -rf .cache/alibaba && mkdir -p .cache/alibaba
	@$(MAKE) --no-print-directory -C shared build-AlibabaLayer ARTIFACTS_DIR=$(CURDIR)/.cache/alibaba PYTHON=$(CURDIR)/$(BIN)/python
	@$(call archive,.cache/alibaba,python,layer.zip)
	@du -sh .cache/alibaba/python .cache/alibaba/layer.zip

deploy-alibaba: ## Deploy to Alibaba Cloud with Serverless Devs (infra/alibaba/README.md has the settings)
	@command -v $(S) >/dev/null || { echo "Serverless Devs is not installed: npm install -g @serverless-devs/s, then s config add"; exit 1; }
	@set -a; test ! -f .env || . ./.env; set +a; \
	test -n "$$JOURNEYMAN_CLUSTER_NAME" -a -n "$$JOURNEYMAN_CLUSTER_ID" \
	|| { echo "Set JOURNEYMAN_CLUSTER_NAME and JOURNEYMAN_CLUSTER_ID, here or in .env (infra/alibaba/README.md)"; exit 1; }; \
	$(MAKE) --no-print-directory layer-alibaba && \
	$(S) cli fc3 layer publish --region $${JOURNEYMAN_REGION:-cn-hangzhou} --layer-name $${JOURNEYMAN_NAME:-journeyman} \
	  --code $(CURDIR)/.cache/alibaba/layer.zip --compatible-runtime python3.12 -a $${JOURNEYMAN_ACCESS:-default} >.cache/alibaba/published \
	|| { cat .cache/alibaba/published; exit 1; }; \
	layer=$$(grep -o 'acs:fc:[^"[:space:]]*:layers/[^"[:space:]]*' .cache/alibaba/published | tail -n 1); \
	test -n "$$layer" || { cat .cache/alibaba/published; echo "Serverless Devs did not say which version of the layer it published"; exit 1; }; \
	JOURNEYMAN_LAYER_ARN=$$layer $(S) deploy -t infra/alibaba/s.yaml -a $${JOURNEYMAN_ACCESS:-default}

layer-huawei: setup ## Build the package and the code of FunctionGraph into .cache/huawei (HUAWEI_PYTHON=3.10)
	@rm -rf .cache/huawei && mkdir -p .cache/huawei
	@$(MAKE) --no-print-directory -C shared build-HuaweiPackage ARTIFACTS_DIR=$(CURDIR)/.cache/huawei PYTHON=$(CURDIR)/$(BIN)/python \
	  PYTHON_VERSION=$(HUAWEI_PYTHON)
	@mkdir .cache/huawei/functions && cp functions/huawei/*.py .cache/huawei/functions
	@$(call archive,.cache/huawei/python,.,../package.zip)
	@$(call archive,.cache/huawei/functions,.,../functions.zip)
	@du -sh .cache/huawei/python .cache/huawei/package.zip

deploy-huawei: ## Deploy to Huawei Cloud with Terraform or OpenTofu (infra/huawei/README.md has the settings)
	@command -v $(TERRAFORM) >/dev/null \
	|| { echo "Neither Terraform nor OpenTofu is installed: see https://opentofu.org/docs/intro/install, or set TERRAFORM=…"; exit 1; }
	@set -a; test ! -f .env || . ./.env; set +a; \
	export TF_VAR_region=$${TF_VAR_region:-$$HW_REGION_NAME} HW_REGION_NAME=$${HW_REGION_NAME:-$$TF_VAR_region}; \
	test -n "$$TF_VAR_region" -a -n "$$TF_VAR_cluster_name" -a -n "$$TF_VAR_cluster_id" \
	|| { echo "Set HW_REGION_NAME, TF_VAR_cluster_name and TF_VAR_cluster_id, here or in .env (infra/huawei/README.md)"; exit 1; }; \
	$(MAKE) --no-print-directory layer-huawei && \
	$(TERRAFORM) -chdir=infra/huawei init && $(TERRAFORM) -chdir=infra/huawei apply

crds: setup ## Generate infra/crds, and the chart's copy, from the models
	$(BIN)/python infra/crds/generate.py

metrics: setup ## Generate docs/metrics.md from the table of metrics
	$(BIN)/python -m docs.metrics

settings: setup ## Generate docs/settings.md from the variables, the template and the chart
	$(BIN)/python -m docs.settings

troubleshooting: setup ## Generate docs/troubleshooting.md from the tables of Events and alarms
	$(BIN)/python -m docs.troubleshooting

karpenter-map: setup ## Generate docs/karpenter-map.md from the `Restates:` lines
	$(BIN)/python -m docs.karpenter_map

demo-transcript: setup ## Run the demo and write docs/demo.md
	$(BIN)/python -m docs.demo_transcript

docs: setup ## Build the documentation into .cache/site, and check its links
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q -f .mkdocs.yml && echo "open .cache/site/index.html"

pictures: setup ## Draw docs/pictures again
	$(BIN)/python -m docs.scheduling_pictures

lock: setup ## Renew the locked requirements
	$(BIN)/uv pip compile -q --universal --python-version 3.10 --generate-hashes --no-emit-index-url --no-header --no-annotate tests/requirements.in -o tests/requirements.txt
	$(BIN)/uv pip compile -q --universal --python-version 3.10 --generate-hashes --no-emit-index-url --no-header --no-annotate tests/infra/requirements.in -o tests/infra/requirements.txt

bench: setup oracle ## Compare price and speed with Karpenter's scheduler and consolidation, in one run (about 45 minutes)
	@$(BIN)/python -m tests.bench.bench_scheduling
	@$(BIN)/python -m tests.bench.bench_disruption
	@$(BIN)/python -m tests.bench.bench_fleet_plan
	@$(BIN)/python -m tests.bench.bench_fleet_plan --through-the-steps

bench-ablation: setup ## Eliminate mechanisms of the scheduler that do not pay together, into docs/scheduling.md (an hour or more)
	@$(BIN)/python -m tests.bench.ablation --write

bench-binding: setup controlplane ## Compare plans with what the real kube-scheduler binds (some minutes)
	@$(BIN)/python -m tests.bench.bench_binding

bench-days: setup ## Compare evictions and price over days of changing workloads with Karpenter's rules (about 40 minutes)
	@$(BIN)/python -m tests.bench.bench_days

bench-removals: setup controlplane ## Measure whether consolidation comes true with the real kube-scheduler (some minutes)
	@$(BIN)/python -m tests.bench.bench_removals

bench-reading: setup controlplane ## Measure reads of a real API server, beside the official client (some minutes)
	@$(BIN)/python -m tests.bench.bench_reading

call-sites: setup ## Record again which API calls each step makes, for the fault injection
	$(BIN)/python -m journeyman_simulator.faults.call_site_recording

faults: setup ## Run 10,000 fault scenarios (SEEDS=…, CLOUD=huawei), with a crash at each API call at least once
	@$(BIN)/journeyman faults --cloud $(or $(CLOUD),aws) --seeds 1..$(SEEDS) --require-crash-coverage

nightly: setup oracle controlplane ## Run 10,000 fault scenarios on each cloud, compare 2,000 new clusters (CASES=…) with Karpenter, search for counter-examples, mutate the core, the clouds, the steps, kube and runtime (MUTANTS=…)
	@for cloud in aws alibaba huawei; do $(MAKE) --no-print-directory faults CLOUD=$$cloud || exit 1; done
	HYPOTHESIS_PROFILE=search JOURNEYMAN_CASES=$(CASES) $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m "nightly or not nightly" tests/differential tests/property
	JOURNEYMAN_HOSTILE_CLUSTERS=10000 $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m "nightly or not nightly" tests/fuzz tests/e2e tests/faults tests/unit/core tests/infra/test_wheel.py
	JOURNEYMAN_ADMISSIONS=2000 $(BIN)/python -m pytest tests/contract/crds
	@for package in scheduling lifecycle disruption kube cloud runtime steps; do $(BIN)/python -m tests.mutation $$package --sample $(MUTANTS) || exit 1; done

clean: ## Remove everything that these commands created
	rm -rf $(VENV) .tools .cache .aws-sam .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache "$(PYTHONPYCACHEPREFIX)$(CURDIR)"
