# llmc: build, test, install. `make help` lists the targets.
CC        ?= gcc
BUILD     ?= build
PREFIX    ?= /usr/local
CFLAGS    ?= -O2 -g
WARN      := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla -Werror
PKGS      := yaml-0.1 jansson libpcre2-8 libutf8proc
CPPFLAGS_ := -I. -Iapi -D_GNU_SOURCE $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
CFLAGS_   := -std=gnu11 -fPIC -fvisibility=hidden -ffp-contract=off $(WARN)
LIBS      := $(shell pkg-config --libs $(PKGS) 2>/dev/null) -lm -lpthread -ldl
SAN       ?=

ROOMS := base formats compiler compiler/import runtime runtime/plan runtime/weights runtime/cpu runtime/text ref api
SRC   := $(sort $(foreach d,$(ROOMS),$(wildcard $(d)/*.c)))
OBJ   := $(SRC:%.c=$(BUILD)/%.o)
UNIT  := $(sort $(wildcard tests/unit/test_*.c))

-include tools/rules.mk

.PHONY: all lib
all: $(BUILD)/llmc $(BUILD)/libllmc.so
lib: $(BUILD)/libllmc.a

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS_) $(CFLAGS_) $(CFLAGS) $(SAN) -MMD -MP -c $< -o $@

$(BUILD)/libllmc.a: $(OBJ)
	@rm -f $@
	ar rcs $@ $^

$(BUILD)/unit/%: tests/unit/%.c $(BUILD)/libllmc.a
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS_) $(CFLAGS_) $(CFLAGS) $(SAN) $< -o $@ $(BUILD)/libllmc.a -lcmocka $(LIBS)

unit-%: $(BUILD)/unit/%
	$<

-include $(OBJ:.o=.d)
