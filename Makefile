# Targets for people and for CI. `make help` lists them.

# The one place for the build tags and linker flags: a static binary that needs
# nothing but the kernel. See CONTRIBUTING.md for typing `go test` by hand.
TAGS     := containers_image_openpgp exclude_graphdriver_btrfs exclude_disk_quota netgo osusergo
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS  := -s -w -linkmode external -extldflags "-static"
export GOFLAGS     := $(GOFLAGS) "-tags=$(TAGS)"
export CGO_ENABLED := 1

PACKAGES := gcc libc6-dev ca-certificates busybox-static
LINT     := go tool -modfile=tools/go.mod golangci-lint

.DEFAULT_GOAL := build

.PHONY: help
help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## Install the Debian packages that are missing (as root).
	@missing=; for p in $(PACKAGES); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $$missing; fi

.PHONY: build
build: bin/agent ## Build bin/agent, static.

.PHONY: bin/agent
bin/agent:
	@mkdir -p bin
	go build -ldflags '$(LDFLAGS) -X github.com/strata-build/strata/agent.version=$(VERSION)' -o $@ ./cmd/agent 2>bin/link.log || { cat bin/link.log >&2; exit 1; }
	@grep -v -e 'dlopen' -e "in function .New':" -e '^# ' bin/link.log >&2 || true; rm -f bin/link.log
