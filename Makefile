# Sandtrail. `make help` lists the targets.

GO      ?= go
STATE   ?= .sandtrail
BIN     := bin
LDFLAGS := -s -w -X github.com/sandtrail/sandtrail/cmd/sandtrail/internal/version.Version=$(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
MODULES := proto libs toolbox services/gateway services/lifecycle services/exec services/usage services/gc cmd/sandtrail deploy/k8s tests/e2e tests/e2e/cluster tests/e2e/cluster/system tests/bench
SERVICES := gateway lifecycle exec usage gc
TIMEOUT ?= 20m

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/sandtrail, bin/toolbox, bin/sandtrail-agent and one binary for each service
	@mkdir -p $(BIN)
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o $(BIN)/toolbox ./toolbox/cmd/toolbox
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o $(BIN)/sandtrail-agent ./toolbox/cmd/agent
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/sandtrail ./cmd/sandtrail
	@for s in $(SERVICES); do CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/sandtrail-$$s ./services/$$s/cmd/$$s || exit 1; done

PREFIX  ?= /usr/local

.PHONY: install
install: build ## Install sandtrail below PREFIX=/usr/local, also under the name of the named sandboxes' own CLI
	install -d $(DESTDIR)$(PREFIX)/bin
	install -m 755 $(BIN)/sandtrail $(DESTDIR)$(PREFIX)/bin/sandtrail
	ln -sf sandtrail $(DESTDIR)$(PREFIX)/bin/sandrpod-cli
	install -d $(DESTDIR)$(PREFIX)/share/man/man1
	$(BIN)/sandtrail manual > $(DESTDIR)$(PREFIX)/share/man/man1/sandtrail.1
	ln -sf sandtrail.1 $(DESTDIR)$(PREFIX)/share/man/man1/sandrpod-cli.1

.PHONY: up
up: build ## Set up what is missing and serve on localhost:50051
	$(BIN)/sandtrail up --state $(STATE)

.PHONY: quickstart
quickstart: build ## Run the quickstart against a running `make up`, showing each step and answer
	@scripts/quickstart.sh

# tests/e2e compares the whole host before and after, so nothing else runs beside it. tests/e2e/upgrade builds and runs the version
# before this one.
.PHONY: test
test: ## Get what the tests need and run every one
	@scripts/host-packages.sh
	$(GO) test -timeout $(TIMEOUT) -p 2 $$($(GO) list work | grep -v -e '/tests/e2e$$' -e '/tests/e2e/upgrade$$' -e '/tests/e2e/powerloss$$' -e '/tests/e2e/chaos$$' -e '/tests/e2e/chaos/soak$$' -e '/tests/e2e/chaos/repeat$$' -e '/tests/e2e/cluster')
	$(GO) test -timeout $(TIMEOUT) -p 1 ./tests/e2e ./tests/e2e/upgrade ./tests/e2e/powerloss ./tests/e2e/chaos ./tests/e2e/chaos/soak ./tests/e2e/chaos/repeat

.PHONY: test-short
test-short: ## Tests without sandboxes, ClickHouse and clusters: under a minute once built
	$(GO) test -short -timeout 5m work

# One node after the other: each wants the machine's memory and CPUs.
.PHONY: test-k8s
test-k8s: ## Tests on a real Kubernetes, built from source the first time (20 minutes of CPU)
	$(GO) test -timeout 90m -p 1 -tags cluster ./services/lifecycle/internal/kube ./tests/e2e/cluster/... ./tests/e2e/cluster/system

.PHONY: bench-k8s
bench-k8s: ## Measure sandboxes on a real Kubernetes node against bare pods there
	$(GO) test -timeout 90m -run '^$$' -bench . -benchtime 20x ./tests/e2e/cluster/system

.PHONY: cluster-up
cluster-up: ## Bring a Kubernetes node with gVisor up on this machine and leave it up (docs/CLUSTER.md)
	$(GO) run ./tests/e2e/cluster/cmd/cluster up

.PHONY: cluster-down
cluster-down: ## End that node and remove all of it
	$(GO) run ./tests/e2e/cluster/cmd/cluster down

.PHONY: cluster-status
cluster-status: ## Tell what runs of that node
	$(GO) run ./tests/e2e/cluster/cmd/cluster status

.PHONY: fuzz
fuzz: ## Fuzz every decoder, FUZZTIME=2m each; FUZZ=regexp chooses by "directory Name"
	@GO=$(GO) scripts/fuzz.sh

.PHONY: chaos
chaos: build ## Make 2,000 faults while 1,000 sandboxes run 10,000 commands, and check what is left (45 minutes; CHAOS="--seed N ...")
	$(GO) build -o $(BIN)/chaos ./tests/e2e/chaos/cmd/chaos
	SANDTRAIL_BIN=$(BIN) $(BIN)/chaos --creates 1000 --execs 10000 --faults 2000 --lanes 4 --lives 8 $(CHAOS)

.PHONY: repeat
repeat: build ## Make 10,000 requests with 1,000 idempotency keys from 64 clients while services are killed (REPEAT="--seed N ...")
	$(GO) build -o $(BIN)/repeat ./tests/e2e/chaos/cmd/repeat
	SANDTRAIL_BIN=$(BIN) $(BIN)/repeat $(REPEAT)

.PHONY: soak
soak: build ## Run at half load for an hour and tell what grows and what leaks (SOAK="--duration 3m ...")
	$(GO) build -o $(BIN)/soak ./tests/e2e/chaos/cmd/soak
	SANDTRAIL_BIN=$(BIN) $(BIN)/soak $(SOAK)

.PHONY: bench
bench: build ## Measure against baselines in the same run and print the table
	$(GO) run ./tests/bench/cmd/bench

.PHONY: vet
vet: ## Check formatting, vet, and that every module stands alone
	@out=$$(gofmt -l $(MODULES)); if [ -n "$$out" ]; then echo "gofmt: $$out"; exit 1; fi
	$(GO) build work
	$(GO) vet work
	@for m in $(MODULES); do echo "module $$m"; (cd $$m && GOWORK=off $(GO) build ./... && GOWORK=off $(GO) vet ./... && GOWORK=off $(GO) mod tidy -diff) || exit 1; done

.PHONY: lint
lint: lint-go lint-proto ## Run golangci-lint and buf lint (slow the first time: both are built from source)

.PHONY: lint-go
lint-go: ## Run golangci-lint over every module
	@mkdir -p $(BIN)
	GOWORK=off $(GO) build -C tools -o $(CURDIR)/$(BIN)/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	$(BIN)/golangci-lint run $(MODULES:%=./%/...)

.PHONY: lint-proto
lint-proto: ## Run buf lint over the contracts
	cd proto && GOWORK=off $(GO) tool -modfile=../tools/go.mod buf lint

.PHONY: breaking
breaking: ## Compare the contracts with those of main
	cd proto && GOWORK=off $(GO) tool -modfile=../tools/go.mod buf breaking --against '../.git#branch=main,subdir=proto'

.PHONY: generate
generate: ## Make proto/gen/go anew (slow the first time: buf is built from source)
	cd proto && GOWORK=off $(GO) tool -modfile=../tools/go.mod buf generate

.PHONY: reference
reference: ## Make docs/reference anew from the code: commands, errors
	$(GO) run ./cmd/sandtrail manual --format markdown > docs/reference/commands.md.new && mv docs/reference/commands.md.new docs/reference/commands.md
	$(GO) generate ./libs/fault

.PHONY: images
images: ## Build container images into dist without a Docker daemon (IMAGES="--registry R --tag T --push")
	$(GO) run ./deploy/k8s/cmd/images $(IMAGES)

.PHONY: deploy
deploy: ## Make the kustomize base and the rules of NATS anew from the chart and the code
	$(GO) run ./deploy/k8s/cmd/base

.PHONY: tidy
tidy: ## Tidy every module
	@for m in $(MODULES); do (cd $$m && GOWORK=off $(GO) mod tidy) || exit 1; done

.PHONY: clean
clean: ## Remove what build made (not the state directory)
	rm -rf $(BIN) dist
