# Relata. `make help` lists the targets.
#
#   SAN=address|thread|undefined   build with that sanitizer (own folder under build/)
#   CC=clang                       another compiler
#   V=1                            show commands

VERSION := 0.1.0
PREFIX  ?= /usr/local
DESTDIR ?=
SAN     ?=
CC      := $(if $(filter default,$(origin CC)),gcc,$(CC))
Q       := $(if $(V),,@)
# Builds take all cores, unless -j says otherwise.
PARALLEL = $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))

# Building needs the packages; `make deps` installs what is missing.
PKGS := libpq libcurl jansson libmicrohttpd libprotobuf-c rdkafka libnats libxxhash

BUILD := build/$(CC)$(if $(SAN),-$(SAN))
BIN   := $(BUILD)/bin

WARN := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wcast-qual \
        -Wwrite-strings -Wformat=2 -Wundef -Wvla -Wimplicit-fallthrough -Wswitch-enum
CPPFLAGS += -I. -I$(BUILD)/gen -D_GNU_SOURCE -DRELATA_VERSION='"$(VERSION)"' -include common/base/banned.h
CFLAGS   ?= -O2 -g
comma    := ,
SANFLAGS := $(if $(SAN),-fsanitize=$(SAN)$(if $(filter address,$(SAN)),$(comma)undefined) -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
PKG_CFLAGS = $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
# What only the lister needs besides: JOSE, and the certificates of its TLS port.
LISTER_LIBS = $(shell pkg-config --libs librhonabwy gnutls 2>/dev/null)
PKG_LIBS   = $(shell pkg-config --libs $(PKGS) 2>/dev/null) -linih -lcrypto -lpthread -lm
HARDEN   := -fstack-protector-strong $(if $(SAN),,-D_FORTIFY_SOURCE=2) -fPIE
ALL_CFLAGS = -std=gnu11 $(CFLAGS) $(WARN) $(HARDEN) $(SANFLAGS) $(PKG_CFLAGS) -MMD -MP
ALL_LDFLAGS = -pie -Wl,-z,relro,-z,now $(SANFLAGS) $(LDFLAGS)

PROGRAMS := outbox-relay tuple-writer relatactl inventory-lister drift-checker authz-store

PROTO_GEN := $(BUILD)/gen/proto/relata.pb-c.c
# Condition contexts in OpenFGA's own table are of this type.
STRUCT_PROTO := google/protobuf/struct
STRUCT_GEN := $(BUILD)/gen/$(STRUCT_PROTO).pb-c.c
COMMON_SRC := $(wildcard common/*/*.c)
ENGINE_OBJ := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard engine/*.c))
COMMON_OBJ := $(COMMON_SRC:%.c=$(BUILD)/obj/%.o) $(BUILD)/obj/gen/relata.pb-c.o
HARNESS_SRC := $(wildcard tests/harness/*.c tests/model/*.c)
HARNESS_OBJ := $(HARNESS_SRC:%.c=$(BUILD)/obj/%.o)

UNIT_TESTS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/unit/*_test.c))
INTEGRATION_TESTS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/integration/*_test.c))
BENCH_BIN := $(patsubst bench/%.c,$(BIN)/bench-%,$(wildcard bench/*.c))
FUZZERS   := $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(wildcard tests/fuzz/*_fuzz.c))
DEMO_BIN  := $(patsubst demo/%/main.c,$(BIN)/demo-%,$(wildcard demo/*/main.c))

.PHONY: all help deps build tests-build bench-build fuzz-build flags test soak demo up down bench lint format fuzz install install-files clean
.SECONDARY:

all: deps
	$(Q)$(MAKE) --no-print-directory $(PARALLEL) build

help:
	@sed -n 's/^#: //p' Makefile

#: make            build the programs (installs missing packages first)
build: $(PROGRAMS:%=$(BIN)/%) $(DEMO_BIN)
	$(Q)mkdir -p build/bin && for p in $(PROGRAMS); do ln -sf ../../$(BIN)/$$p build/bin/$$p; done

# What a target needs besides: see scripts/install-deps --help.
DEPS := base
demo up: DEPS := base $(if $(filter openfga,$(STORE)),openfga) $(if $(filter kafka,$(BROKER)),kafka)
test soak: DEPS := all
bench: DEPS := base openfga kafka bench
lint fuzz: DEPS := base test lint
deps:
	$(Q)scripts/install-deps $(DEPS)

tests-build: bench-build $(UNIT_TESTS) $(INTEGRATION_TESTS)
bench-build: build $(BENCH_BIN)
fuzz-build: $(FUZZERS)

# For scripts/lint.
flags: $(PROTO_GEN) $(STRUCT_GEN)
	@printf '%s\n' '-std=gnu11 -I. -I$(BUILD)/gen -D_GNU_SOURCE -include common/base/banned.h $(PKG_CFLAGS)'

#: make test       build everything and pass every test, on real services (SAN=address|thread for sanitizers; ONLY=name for one)
test: deps
	$(Q)$(MAKE) --no-print-directory $(PARALLEL) tests-build
	$(Q)BIN=$(BIN) TESTS=$(BUILD)/tests SAN='$(SAN)' ONLY='$(ONLY)' scripts/test

#: make soak       the randomised tests at full count
soak: deps
	$(Q)$(MAKE) --no-print-directory $(PARALLEL) tests-build
	$(Q)BIN=$(BIN) TESTS=$(BUILD)/tests SAN='$(SAN)' RELATA_SOAK=1 ONLY='$(ONLY)' scripts/test

#: make demo       the main job on real services, by itself (SCALE=10, BROKER=kafka|none, STORE=authz-store|openfga)
demo: deps
	$(Q)$(MAKE) --no-print-directory $(PARALLEL) build
	$(Q)BIN=$(BIN) scripts/demo

#: make up, down   the same stack left running (build/run/env), and stopped
up: deps
	$(Q)$(MAKE) --no-print-directory $(PARALLEL) build
	$(Q)BIN=$(BIN) scripts/stack up
down:
	$(Q)scripts/stack down

#: make bench      side-by-side measurements, a table and build/bench/*.json (ONLY=name for one)
bench: deps
	$(Q)$(MAKE) --no-print-directory $(PARALLEL) bench-build
	$(Q)BIN=$(BIN) ONLY='$(ONLY)' scripts/bench

#: make lint       clang-format, shellcheck, gcc and clang builds, clang-tidy (ONLY=tidy for one of them)
lint: deps
	$(Q)scripts/lint $(ONLY)

format:
	$(Q)clang-format -i $$(git ls-files '*.c' '*.h')

#: make fuzz       libFuzzer over every parser of outside bytes (FUZZ_SECONDS=10 each, ONLY=name for one)
fuzz: deps
	$(Q)ONLY='$(ONLY)' scripts/fuzz

#: make install    programs, migrations, documentation, example settings (PREFIX=/usr/local DESTDIR=)
SHARE := $(DESTDIR)$(PREFIX)/share
install:
	$(Q)$(MAKE) --no-print-directory $(PARALLEL) build
	$(Q)$(MAKE) --no-print-directory install-files
install-files:
	$(Q)install -d $(DESTDIR)$(PREFIX)/bin $(SHARE)/relata/migrations/store $(SHARE)/doc/relata/docs/reference $(SHARE)/doc/relata/examples
	$(Q)install -m 755 $(PROGRAMS:%=$(BIN)/%) $(DESTDIR)$(PREFIX)/bin/
	$(Q)install -m 644 migrations/*.sql $(SHARE)/relata/migrations/
	$(Q)install -m 644 migrations/store/*.sql $(SHARE)/relata/migrations/store/
	$(Q)install -m 644 README.md LICENSE CHANGELOG.md $(SHARE)/doc/relata/
	$(Q)install -m 644 docs/*.md $(SHARE)/doc/relata/docs/
	$(Q)install -m 644 docs/reference/* $(SHARE)/doc/relata/docs/reference/
	$(Q)install -m 644 $(PROGRAMS:%=docs/reference/%.ini) $(SHARE)/doc/relata/examples/
	@echo "installed: $(DESTDIR)$(PREFIX)/bin: $(PROGRAMS); $(SHARE): relata/migrations, doc/relata"

clean:
	rm -rf build/gcc* build/clang* build/bin

# ---- rules ----
$(BUILD)/gen/proto/relata.pb-c.c $(BUILD)/gen/proto/relata.pb-c.h &: proto/relata.proto
	@mkdir -p $(@D)
	$(Q)protoc-c --c_out=$(BUILD)/gen $<

$(BUILD)/gen/$(STRUCT_PROTO).pb-c.c $(BUILD)/gen/$(STRUCT_PROTO).pb-c.h &:
	@mkdir -p $(@D)
	$(Q)protoc-c --proto_path=/usr/include --c_out=$(BUILD)/gen $(STRUCT_PROTO).proto

# Generated code is not ours to warn about.
$(BUILD)/obj/gen/struct.pb-c.o: $(STRUCT_GEN)
	@mkdir -p $(@D)
	$(Q)$(CC) -std=gnu11 $(CFLAGS) $(HARDEN) $(SANFLAGS) -I$(BUILD)/gen -c -o $@ $<
$(BUILD)/obj/gen/relata.pb-c.o: $(PROTO_GEN)
	@mkdir -p $(@D)
	$(Q)$(CC) -std=gnu11 $(CFLAGS) $(HARDEN) $(SANFLAGS) -I$(BUILD)/gen -c -o $@ $<

$(BUILD)/obj/%.o: %.c | $(PROTO_GEN) $(STRUCT_GEN)
	@mkdir -p $(@D)
	@echo "  CC $<"
	$(Q)$(CC) $(CPPFLAGS) $(ALL_CFLAGS) $(OBJ_DEFS) -c -o $@ $<

$(BUILD)/libcommon.a: $(COMMON_OBJ)
	$(Q)rm -f $@ && ar rcs $@ $^
$(BUILD)/libengine.a: $(ENGINE_OBJ)
	$(Q)rm -f $@ && ar rcs $@ $^
$(BUILD)/libharness.a: $(HARNESS_OBJ)
	$(Q)rm -f $@ && ar rcs $@ $^

define program_rule
$(BIN)/$(1): $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard $(1)/*.c $(1)/*/*.c)) $(ARCHIVES_$(1)) $(BUILD)/libcommon.a
	@mkdir -p $$(@D)
	@echo "  LD $$@"
	$$(Q)$$(CC) $$(ALL_LDFLAGS) -o $$@ $$^ $$(PKG_LIBS) $$(LIBS_$(1))
endef
ARCHIVES_inventory-lister := $(BUILD)/libengine.a
ARCHIVES_relatactl := $(BUILD)/libengine.a
ARCHIVES_authz-store := $(BUILD)/libengine.a
LIBS_authz-store = $(shell pkg-config --libs gnutls 2>/dev/null)
LIBS_inventory-lister = $(LISTER_LIBS)
ARCHIVES_drift-checker := $(BUILD)/libengine.a $(BUILD)/obj/gen/struct.pb-c.o
$(BUILD)/obj/inventory-lister/api/openapi.o: inventory-lister/api/openapi.json
$(foreach p,$(PROGRAMS),$(eval $(call program_rule,$(p))))

$(BIN)/bench-%: $(BUILD)/obj/bench/%.o $(BUILD)/libcommon.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(PKG_LIBS)
$(BIN)/bench-engine $(BIN)/bench-shapes: $(BUILD)/libengine.a
$(BIN)/bench-pages $(BIN)/bench-lists $(BIN)/bench-decisions: $(BUILD)/obj/bench/client/client.o
define demo_rule
$(BIN)/demo-$(1): $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard demo/$(1)/*.c)) $(BUILD)/libcommon.a
	@mkdir -p $$(@D)
	$$(Q)$$(CC) $$(ALL_LDFLAGS) -o $$@ $$^ $$(PKG_LIBS)
endef
$(foreach p,$(DEMO_BIN:$(BIN)/demo-%=%),$(eval $(call demo_rule,$(p))))

# A test may include the sources of a program's own files by listing them in TEST_SRC_<name>.
$(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(BUILD)/libharness.a $(BUILD)/libcommon.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(PKG_LIBS) $(TEST_LIBS) -lssl -lcmocka

# libFuzzer; scripts/fuzz sets the compiler and flags.
$(BUILD)/fuzz/%: $(BUILD)/obj/tests/fuzz/%.o $(BUILD)/libcommon.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_LDFLAGS) -fsanitize=fuzzer -o $@ $(filter %.o,$^) $(filter %.a,$^) $(PKG_LIBS) $(TEST_LIBS)

# Unit tests (and fuzzers) of a program's own files name them here.
$(BUILD)/tests/unit/hints_test: $(addprefix $(BUILD)/obj/tuple-writer/,hints.o batch.o)
$(BUILD)/tests/unit/watermark_test: $(BUILD)/obj/tuple-writer/watermark.o
RELAY_OBJ := $(patsubst %.c,$(BUILD)/obj/%.o,$(filter-out outbox-relay/main.c,$(wildcard outbox-relay/*.c)))
$(BUILD)/tests/unit/pgoutput_test: $(BUILD)/obj/outbox-relay/pgoutput.o
$(BUILD)/tests/unit/window_test: $(BUILD)/obj/outbox-relay/window.o
$(BUILD)/tests/unit/relay_message_test $(BUILD)/tests/unit/relay_sender_test: $(RELAY_OBJ)
$(BUILD)/fuzz/pgoutput_fuzz: $(addprefix $(BUILD)/obj/outbox-relay/,pgoutput.o message.o)
DRIFT_OBJ := $(patsubst %.c,$(BUILD)/obj/%.o,$(filter-out drift-checker/main.c,$(wildcard drift-checker/*.c drift-checker/*/*.c)))
$(BUILD)/tests/unit/drift_parts_test $(BUILD)/tests/integration/drift_compare_test $(BUILD)/fuzz/drift_plan_fuzz $(BUILD)/fuzz/drift_context_fuzz: $(DRIFT_OBJ) \
    $(BUILD)/obj/gen/struct.pb-c.o $(BUILD)/libengine.a
$(BUILD)/tests/unit/demo_test: $(addprefix $(BUILD)/obj/demo/,compare/set.o life/ops.o life/progress.o)
LISTER_HTTP_TESTS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/integration/lister_http_*test.c))
HTTP_OBJ := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard inventory-lister/http/*.c inventory-lister/callers/*.c))
$(BUILD)/tests/unit/callers_test $(BUILD)/tests/unit/callers_jwt_test $(LISTER_HTTP_TESTS) $(BUILD)/tests/integration/lister_tls_test $(BUILD)/fuzz/callers_fuzz: $(HTTP_OBJ)
$(BUILD)/tests/unit/callers_test $(BUILD)/tests/unit/callers_jwt_test $(LISTER_HTTP_TESTS) $(BUILD)/tests/integration/lister_tls_test $(BUILD)/fuzz/callers_fuzz: TEST_LIBS = $(LISTER_LIBS)
$(BUILD)/tests/integration/lister_page_test: $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard inventory-lister/pages/*.c inventory-lister/collections/*.c)) $(BUILD)/libengine.a
$(BUILD)/tests/unit/decide_test: $(addprefix $(BUILD)/obj/inventory-lister/decide/,decide_store.o flight.o worker.o) $(BUILD)/libengine.a
WORLD_OBJ := $(addprefix $(BUILD)/obj/inventory-lister/decide/,world.o world_metrics.o hearing.o cache.o)
$(BUILD)/tests/integration/lister_world_test: $(WORLD_OBJ) $(BUILD)/libengine.a
AUTHZ_OBJ := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard authz-store/stores/*.c authz-store/durable/*.c))
$(BUILD)/tests/integration/authz_store_durable_test $(BUILD)/tests/integration/authz_store_crash_test: $(AUTHZ_OBJ) $(BUILD)/libengine.a
$(BUILD)/fuzz/authz_request_fuzz: $(addprefix $(BUILD)/obj/authz-store/api/,schema.o messages.o)
$(BUILD)/tests/integration/model_openfga_test $(BUILD)/tests/integration/model_valid_openfga_test: $(BUILD)/libengine.a
$(BUILD)/tests/unit/cache_test $(BUILD)/tests/unit/cache_race_test: $(BUILD)/obj/inventory-lister/decide/cache.o
COLLECTION_OBJ := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard inventory-lister/collections/*.c)) $(addprefix $(BUILD)/obj/inventory-lister/pages/,keyset.o page_token.o min_token.o)
$(BUILD)/tests/unit/collections_test $(BUILD)/tests/unit/page_token_test $(BUILD)/tests/integration/lister_collections_test $(BUILD)/tests/integration/lister_keyset_test $(BUILD)/tests/integration/lister_keyset_random_test $(BUILD)/tests/integration/lister_min_token_test $(BUILD)/fuzz/page_token_fuzz $(BUILD)/fuzz/lister_params_fuzz: $(COLLECTION_OBJ) $(BUILD)/libengine.a
$(BUILD)/tests/unit/engine_check_test $(BUILD)/tests/unit/engine_graph_test $(BUILD)/tests/unit/engine_openfga_test $(BUILD)/tests/unit/expand_test $(BUILD)/tests/unit/model_test $(BUILD)/tests/unit/model_effect_test $(BUILD)/tests/unit/model_valid_test $(BUILD)/fuzz/model_fuzz $(BUILD)/fuzz/model_tuple_fuzz: $(BUILD)/libengine.a

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
