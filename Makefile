# Targets for people and for CI. `make help` lists them.

# The library that reads gzip (images/isal); `make ISAL= ...` builds without it.
ISAL    := isal
# The one place for the build tags and linker flags: a static binary that needs
# nothing but the kernel. CONTRIBUTING.md has the line for typing `go test` by hand.
TAGS    := containers_image_openpgp exclude_graphdriver_btrfs exclude_disk_quota netgo osusergo seccomp $(ISAL)
LDFLAGS := -s -w -linkmode external -extldflags "-static"
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
# Tests that drive a binary wait for processes and registries, not for the CPU.
TIMEOUT := 40m

export GOFLAGS        := "-tags=$(TAGS)"
export CGO_ENABLED    := 1
export AGENT_BINARY   := $(CURDIR)/bin/agent
export BUILDAH_BINARY := $(CURDIR)/bin/peer/buildah
export DEBIAN_ROOT    := $(CURDIR)/bin/debian.tar
export KUBE_BINARY    := $(CURDIR)/bin/kube

# Debian packages: to compile and link, for the image, for base images, packages and
# the peer in tests.
PACKAGES       := gcc libc6-dev libseccomp-dev pkg-config ca-certificates git openssh-client bzip2 busybox-static util-linux mmdebstrap rpm createrepo-c gnupg skopeo netavark
# To build ISA-L.
ISAL_PACKAGES  := gcc libc6-dev make nasm dpkg-dev ca-certificates
# For the cluster: what `test/cluster/cluster up` calls.
CLUSTER_PACKAGES := iproute2 openssl
# Kinds of OpenShift that it knows, as a cluster with its own control plane has them.
CRDS := machineosconfigs machineosbuilds machineconfigs machineconfigpools-SelfManagedHA controllerconfigs-Default
# Packages whose tests are quick to compile with the race detector.
RACE := ./retry/... ./agent/result/... ./images/standby ./test/registry/... ./test/bases/...

# Pages of docs/ that `agent docs` and `controller docs` print.
PAGES            := contract troubleshooting
CONTROLLER_PAGES := conditions

.DEFAULT_GOAL := build

.PHONY: help
help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## Install the Debian packages that are missing (as root).
	@$(call install,$(PACKAGES))

define install
missing=; for p in $(1); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
if [ -n "$$missing" ]; then apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $$missing; fi
endef

.PHONY: build
build: bin/agent bin/controller ## Build bin/agent and bin/controller, static.

LIBRARIES := $(ISAL:%=bin/%/isa-l.a)

bin/isal/isa-l.a: images/isal/library
	@$(call install,$(ISAL_PACKAGES))
	@mkdir -p bin
	@echo "images/isal/library bin/isal"
	@images/isal/library bin/isal >bin/isal.log 2>&1 || { cat bin/isal.log >&2; echo 'ISA-L could not be built: "make ISAL= build" does without it, and reads gzip more slowly.' >&2; exit 1; }
	@rm bin/isal.log && touch $@

.PHONY: bin/agent
bin/agent: $(LIBRARIES)
	@mkdir -p bin
	@echo "go build -o bin/agent ./cmd/agent"
	@go build -ldflags '$(LDFLAGS) -X github.com/strata-build/strata/agent.version=$(VERSION)' -o bin/agent ./cmd/agent 2>bin/build.log || { cat bin/build.log >&2; exit 1; }
	@rm -f bin/build.log # a warning that dlopen, which nothing here calls, needs a shared glibc

.PHONY: bin/controller
bin/controller:
	@mkdir -p bin
	@echo "go build -o bin/controller ./cmd/controller"
	@CGO_ENABLED=0 go build -ldflags '-s -w -X main.version=$(VERSION)' -o bin/controller ./cmd/controller

.PHONY: demo
demo: deps build ## Build an example of several stages, offline, into dist/demo; print its result.
	@rm -rf dist/demo && mkdir -p dist/demo
	@cp -r examples/website dist/demo/context && cp "$$(command -v busybox)" dist/demo/context/
	bin/agent build --storage-root dist/demo/store --tag localhost/website --output oci:dist/demo/website --result dist/demo/result.json dist/demo/context
	@echo && echo "The image is the OCI layout dist/demo/website. Its result (dist/demo/result.json):" && cat dist/demo/result.json

.PHONY: image
image: deps build ## Build the image of the product with the product: dist/strata.tar (an OCI archive).
	@rm -rf dist/image dist/strata.tar && mkdir -p dist/image
	@cp bin/agent bin/controller /etc/ssl/certs/ca-certificates.crt dist/image/
	bin/agent build --containerfile Containerfile --storage-root dist/store --output oci-archive:dist/strata.tar:localhost/strata:$(VERSION) --result dist/image.json dist/image
	@ls -l --block-size=K dist/strata.tar | awk '{print "dist/strata.tar:", $$5}'

# Kubernetes compiles apart from the product: without cgo and its tags, from a
# module of its own, and with little priority, because it takes both CPUs.
.PHONY: kube
kube: ## Build bin/kube, the Kubernetes that tests run (10 minutes when nothing is cached).
	@mkdir -p bin
	@echo "go build -o bin/kube ./test/kube"
	@cd test/kube && version=$$(GOFLAGS= go list -m -f '{{.Version}}' k8s.io/kubernetes) && minor=$${version#v1.} && \
	p=k8s.io/component-base/version && GOFLAGS= CGO_ENABLED=0 nice go build -o $(KUBE_BINARY) \
	-ldflags "-s -w -X $$p.gitVersion=$$version -X $$p.gitMajor=1 -X $$p.gitMinor=$${minor%%.*} -X $$p.gitTreeState=clean" .

# In C, in part.
.PHONY: runc
runc: deps
	@mkdir -p bin/cluster
	@echo "go build -o bin/cluster/runc"
	@cd test/cluster/node && GOFLAGS= nice go build -tags 'seccomp osusergo netgo' -ldflags '-s -w -linkmode external -extldflags -static' -o $(CURDIR)/bin/cluster/ github.com/opencontainers/runc

# What a node needs beside bin/kube.
.PHONY: cluster
cluster: deps build kube runc ## Build the test cluster's programs: bin/kube and bin/cluster (12 minutes when nothing is cached).
	@$(call install,$(CLUSTER_PACKAGES))
	@mkdir -p bin/cluster dist/pause && ln -sf kube bin/kubectl
	@echo "go build -o bin/cluster/ (containerd, network plugins, registry, pause)"
	@cd test/cluster/node && GOFLAGS= CGO_ENABLED=0 nice go build -tags 'no_btrfs no_zfs no_devmapper no_tracing osusergo netgo' -ldflags '-s -w' -o $(CURDIR)/bin/cluster/ \
	  $$(GOFLAGS= go list tool | grep -v /runc$$)
	@CGO_ENABLED=0 nice go build -ldflags '-s -w' -o bin/cluster/registry ./test/cluster/registry
	@rm -rf bin/cluster/crds && mkdir bin/cluster/crds && cd $$(go list -m -f '{{.Dir}}' github.com/openshift/api)/machineconfiguration/v1/zz_generated.crd-manifests && \
	  for kind in $(CRDS); do cp 0000_80_machine-config_01_$$kind.crd.yaml $(CURDIR)/bin/cluster/crds/ || exit 1; done
	@CGO_ENABLED=0 go build -ldflags '-s -w' -o dist/pause/pause ./test/cluster/pause
	@rm -f bin/cluster/pause.tar
	@bin/agent build --result dist/pause.json --containerfile test/cluster/pause/Containerfile --storage-root dist/store \
	  --output docker-archive:bin/cluster/pause.tar:localhost/pause:1 dist/pause >dist/pause.log 2>&1 || { cat dist/pause.log >&2; exit 1; }

.PHONY: cluster-up
cluster-up: cluster ## Start a Kubernetes node with a registry in namespaces of its own (as root).
	@test/cluster/cluster up

.PHONY: cluster-down
cluster-down: ## End it; nothing stays.
	@test/cluster/cluster down

.PHONY: e2e
e2e: cluster image ## The product on a real cluster, which is started for it unless one is up (as root).
	@test/cluster/cluster running || { ours=yes; test/cluster/cluster up; }; \
	go test -count=1 -timeout 40m -parallel 4 ./test/cluster/... && status=0 || status=$$?; \
	[ "$$ours" != yes ] || test/cluster/cluster down; exit $$status

.PHONY: test
test: deps build kube lint check-docs test-unit test-controller test-integration test-podman ## All tests but conformance and those on a cluster.

.PHONY: test-unit
test-unit: kube $(LIBRARIES) ## Tests of single packages (some as root).
	go test -timeout $(TIMEOUT) ./agent/... ./images/... ./retry/... ./cmd/... ./controller/... ./test/architecture/... ./test/apiserver/... ./test/bench/...
	CGO_ENABLED=0 go test ./images/isal
	go test -race -timeout $(TIMEOUT) $(RACE)

# A root filesystem with what the images of cluster nodes have: bash, dnf, rpm and jq.
bin/debian.tar:
	@mkdir -p bin
	@rm -rf $@.partial
	mmdebstrap --format=tar --variant=essential --include=dnf,rpm,jq,ca-certificates --aptopt='Acquire::Check-Valid-Until "false"' \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/man/*' \
		bookworm $@.partial && mv $@.partial $@

.PHONY: debian
debian: deps bin/debian.tar ## Make the root filesystem that tests with packages use.

.PHONY: test-integration
test-integration: build debian peer ## The agent as a process against a real registry (as root).
	go test -timeout $(TIMEOUT) -skip '^TestConformanceInputs$$' ./test/integration/...

.PHONY: test-conformance
test-conformance: build peer ## The inputs of buildah's own conformance tests, built with both (as root).
	go test -timeout 40m -run '^TestConformanceInputs$$' ./test/integration/

# In parallel, since these wait for the API server and little for the CPU.
.PHONY: test-controller
test-controller: build kube ## The controller against a real API server.
	CGO_ENABLED=0 go test -timeout $(TIMEOUT) -parallel 6 ./test/controller/...

.PHONY: test-podman
test-podman: image ## The image of the product in rootless podman (as root, who makes the user).
	STRATA_TEST_IMAGE=$(CURDIR)/dist/strata.tar go test -timeout $(TIMEOUT) ./test/podman/...

.PHONY: peer
peer: deps ## Build buildah's own command line, to compare with.
	@mkdir -p bin/peer
	@cd test/bench/peer && go build -ldflags '$(LDFLAGS)' -o $(BUILDAH_BINARY) go.podman.io/buildah/cmd/buildah 2>/dev/null

.PHONY: bench
bench: build peer ## Compare with buildah's own command line: ratios in one run (as root).
	go test -run '^$$' -bench . -benchtime 15x -timeout 60m ./test/bench/

# Peers in Go modules of their own: each needs other versions of the same libraries.
.PHONY: peers
peers: peer runc $(LIBRARIES) ## Build the other builders that bench-peers compares with (10 minutes when nothing is cached).
	@echo "go build -o bin/peer/ (buildkitd, buildctl, kaniko)"
	@cd test/bench/peer/buildkit && GOFLAGS= CGO_ENABLED=0 nice go build -tags 'osusergo netgo' -ldflags '-s -w' -o $(CURDIR)/bin/peer/ $$(GOFLAGS= go list tool)
	@cd test/bench/peer/kaniko && GOFLAGS= CGO_ENABLED=0 nice go build -ldflags '-s -w' -o $(CURDIR)/bin/peer/kaniko $$(GOFLAGS= go list tool)
	@go build -ldflags '$(LDFLAGS)' -o bin/bench ./test/bench/peers

# CASES, ROWS, N and AGENT are flags of the program: bin/bench -help.
CASES ?= a,b,c,d,e,f,g,m,s
ROWS  ?=
N     ?= 3
AGENT ?=

.PHONY: bench-peers
bench-peers: build debian peers ## Compare with buildah, BuildKit and kaniko (as root; hours). CASES=a,b N=3 AGENT=path/to/another/agent
	bin/bench -cases '$(CASES)' -rows '$(ROWS)' -n '$(N)' -agent '$(AGENT)'

.PHONY: bench-growth
bench-growth: build debian peers ## The same by the size of the base: layers, bytes, files (as root).
	bin/bench -cases growth -rows '$(or $(ROWS),agent,BuildKit)' -n '$(N)' -agent '$(AGENT)'

.PHONY: lint
lint: $(LIBRARIES) ## go vet and golangci-lint.
	go vet ./...
	go tool -modfile=tools/go.mod golangci-lint run --allow-parallel-runners

.PHONY: docs
docs: build ## Generate the pages of docs/ that come from the code.
	@for page in $(PAGES); do bin/agent docs $$page > docs/$$page.md; done
	@for page in $(CONTROLLER_PAGES); do bin/controller docs $$page > docs/$$page.md; done

.PHONY: check-docs
check-docs: build ## Fail when such a page is not what the code says.
	@for page in $(PAGES); do bin/agent docs $$page | diff -u docs/$$page.md - || { echo "docs/$$page.md is stale: run make docs" >&2; exit 1; }; done
	@for page in $(CONTROLLER_PAGES); do bin/controller docs $$page | diff -u docs/$$page.md - || { echo "docs/$$page.md is stale: run make docs" >&2; exit 1; }; done

.PHONY: clean
clean: cluster-down ## Remove what was built.
	rm -rf bin dist
