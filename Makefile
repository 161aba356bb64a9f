# Everything a fresh machine needs: `make demo` and `make test` create .venv by themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PHOTO  := $(VENV)/.photo
# Small networks on busy machines: one thread is faster than two that wait for each other.
export OMP_NUM_THREADS ?= 1
# Compiled files are stored: to compile all tests again takes each process 15 seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test thorough portable portable-scalar portable-threads browser docs lint types check matrix sweep bench gpu results paper dist clean

# What the demo needs: fringe with its extra `photo`.
$(PHOTO): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[photo]"
	touch $(PHOTO)

$(STAMP): $(PHOTO)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,docs]"
	# torchvision and facenet-pytorch ask for torches of their own; of aeon, only its data is read. Beside a torch of
	# another build `import torchvision` fails: fringe.models.import_torchvision() imports it (docs/start.md, "Extras")
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps aeon facenet-pytorch torchvision
	touch $(STAMP)

demo: $(PHOTO)
	$(BIN)/fringe explain embedded:photos --overwrite --out out/demo
	@echo "Open $(CURDIR)/out/demo/index.html in a browser, and choose a photograph: the network saw an espresso, and a tiger cat."
	@echo "Yellow places carry the most evidence for or against the answer. \"Signed\" shows what speaks for it in red, and against it in blue."
	@echo "Move the slider: the image changes until the network is nearly undecided, and the map adds up what each change did."

test: $(STAMP)
	$(BIN)/python -m pytest -m "not slow and not thorough" -n 2 --dist worksteal $(TESTS)

# What `make test` leaves out: runs killed at every step, clusters, browsers, real networks, statistics by simulation.
thorough: $(STAMP)
	$(BIN)/python -m pytest -m "thorough and not slow" -n 2 --dist loadgroup

# Maps and scores on other processors: without vector instructions, and with sums in another order and two threads.
PORTABLE := -m "not slow and not thorough" tests/contract/test_golden_maps.py tests/contract/test_methods_contract.py
portable: portable-scalar portable-threads
portable-scalar: $(STAMP)
	ATEN_CPU_CAPABILITY=default $(BIN)/python -m pytest -n 2 --dist worksteal $(PORTABLE)
portable-threads: $(STAMP)
	MKL_CBWR=COMPATIBLE DNNL_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=2 OMP_WAIT_POLICY=PASSIVE \
	  $(BIN)/python -m pytest $(PORTABLE) -k "not keeps_the_contract"

# The browser of the tests of pages and of the app. Debian's, because it works without a download of its own.
browser:
	@test -n "$$FRINGE_BROWSER" || command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	  { command -v apt-get >/dev/null || { echo "install Chromium, or name a browser in FRINGE_BROWSER" >&2; exit 1; }; \
	    sudo=$$(test "$$(id -u)" = 0 || echo sudo); \
	    $$sudo apt-get update -qq && $$sudo apt-get install -y -qq --no-install-recommends chromium; }

# The site, with the examples run: docs/_build/html/index.html. An example whose packages are absent is left out.
docs: $(STAMP)
	rm -rf docs/_build docs/gallery docs/reference
	$(BIN)/python -m sphinx -E -W --keep-going -q -b html docs docs/_build/html

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/house.py --check

types: $(STAMP)
	$(BIN)/pyright

check: test thorough lint types

# `make test` with every Python version of pyproject.toml that is on this machine; it says which are absent.
matrix:
	$(PYTHON) scripts/matrix.py $(if $(TESTS),--tests "$(TESTS)")

sweep: $(STAMP)
	$(BIN)/python -m pytest -m slow

bench: $(STAMP)
	$(BIN)/python benchmarks/engine.py

gpu: $(STAMP)
	$(BIN)/python benchmarks/gpu.py --out out/gpu.json

# The paper's studies (docs/paper.md): make paper STUDY=tables DATA=imagenet/val
paper: $(STAMP)
	$(BIN)/python experiments/paper/reproduce.py $(or $(STUDY),tables) --data $(DATA) --out out/paper

results: $(STAMP)
	$(BIN)/python scripts/results.py --shared $(or $(FRINGE_SHARED),../shared) --out out/results

# Wheel and sdist, both tried in fresh environments outside the checkout: about 10 minutes.
dist: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt build packaging
	$(BIN)/python scripts/dist.py

clean:
	rm -rf $(VENV) out dist docs/_build docs/gallery docs/reference .pytest_cache .ruff_cache .hypothesis
