/* Helpers for tests of the compiler: a description, an arena and a Diag in one struct, and handling
 * of their error jumps. */
#ifndef TESTS_COMPILER_UTIL_H
#define TESTS_COMPILER_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "compiler/compile.h"

typedef struct Bench {
	Arena arena;
	Diag diag;
	Spec *spec;
} Bench;

/* Run fn with a fresh arena and Diag. Error jumps return to this frame, so the local variables of
 * fn remain valid. */
static inline void
bench_run(void (*fn)(Bench *, int), int n)
{
	Bench *b = calloc(1, sizeof *b);

	assert_non_null(b);
	arena_init(&b->arena);
	if (setjmp(b->arena.oom))
		fail_msg("out of memory");
	diag_init(&b->diag, &b->arena);
	if (setjmp(b->diag.bug))
		fail_msg("BUG: %s", strbuf_str(&b->diag.text));
	fn(b, n);
	arena_release(&b->arena);
	free(b);
}

/* A test whose body has a Bench *b. */
#define BENCH_TEST(name)                                                                           \
	static void name##_body(Bench *b, int n_);                                                 \
	static void name(void **state)                                                             \
	{                                                                                          \
		(void)state;                                                                       \
		bench_run(name##_body, 0);                                                         \
	}                                                                                          \
	static void name##_body(Bench *b, int n_ __attribute__((unused)))

/* Return whether fn ends with a BUG error. */
static inline bool
bench_bugs(Bench *b, void (*fn)(Bench *, void *), void *arg)
{
	if (setjmp(b->diag.bug))
		return true;
	fn(b, arg);
	return false;
}

/* Return the spec of a small model. `more`: further lines of YAML, whose keys must differ from
 * those written here. */
static inline Spec *
bench_spec(Bench *b, const char *family, const char *more)
{
	char text[4096];

	snprintf(text, sizeof text,
	         "llmc: 1\nname: tiny\nfamily: %s\nvocab_size: 96\nmax_positions: 64\nn_layers: "
	         "2\nhidden: 32\n%s",
	         family, more);
	b->spec = spec_from_text("tiny.yaml", arena_strdup(&b->arena, text), strlen(text), NULL,
	                         &b->diag, &b->arena);
	if (!b->spec)
		fail_msg("%s", strbuf_str(&b->diag.text));
	return b->spec;
}

#define TINY_GQA "attention: {n_heads: 4, n_kv_heads: 2, head_dim: 8}\n"
#define TINY_FFN "ffn: {width: 64}\n"

static inline Graph *
bench_graph(Bench *b)
{
	Graph *g = graph_build(b->spec, &b->diag, &b->arena);

	if (!g)
		fail_msg("%s", strbuf_str(&b->diag.text));
	graph_infer(g);
	graph_verify(g, "build");
	return g;
}

static inline int
graph_count(const Graph *g, OpKind kind)
{
	int n = 0;

	for (size_t i = 0; i < g->n_op; i++)
		n += g->op[i].kind == kind;
	return n;
}

static inline const Op *
graph_first(const Graph *g, OpKind kind)
{
	for (size_t i = 0; i < g->n_op; i++)
		if (g->op[i].kind == kind)
			return &g->op[i];
	fail_msg("no %s in the graph", op_info[kind].name);
	return NULL;
}

/* Names of the tiny descriptions under tests/golden/graphs, without ".yaml". */
static const char *const tiny_models[] = {
	"baichuan2",  "bloom",          "chatglm1",
	"chatglm2",   "deepseek-v2",    "deepseek-v3-gguf",
	"gemma2",     "gemma3",         "glm4",
	"gpt-neox",   "gpt2",           "llama",
	"llama-gguf", "mixtral",        "parallel-one-norm",
	"post-norm",  "qwen2",          "qwen2-moe",
	"qwen3",      "qwen3-moe-gguf",
};
enum { N_TINY = sizeof tiny_models / sizeof *tiny_models };

static inline Spec *
bench_file(Bench *b, const char *name)
{
	b->spec = spec_from_file(arena_printf(&b->arena, "tests/golden/graphs/%s.yaml", name), NULL,
	                         &b->diag, &b->arena);
	if (!b->spec)
		fail_msg("%s", strbuf_str(&b->diag.text));
	return b->spec;
}

#endif
