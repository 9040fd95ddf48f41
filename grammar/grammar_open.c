/* Opens a grammar from source: calls the front end of its kind, builds the automaton and the first
 * set. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/sized_struct.h"
#include "base/utf8.h"
#include "grammar/grammar_internal.h"

enum { MAX_TEXT = 16 << 20, MAX_PLACE = 300 };

/* Reads a JSON array of strings. */
Expr *
choice_read(GrammarBuilder *b, const char *s, size_t n)
{
	ExprList words = { 0 };
	json_error_t why;
	json_t *list = json_read(b->a, s, n, JSON_ALLOW_NUL, &why), *v;
	size_t i;

	if (!json_is_array(list) || !json_array_size(list))
		build_fail(b, "choice: expected an array with at least one string");
	json_array_foreach (list, i, v) {
		if (!json_is_string(v) || !json_string_length(v))
			build_fail(b, "choice: element %zu is not a non-empty string", i);
		expr_push(b, &words, expr_bytes(b, json_string_value(v), json_string_length(v)));
	}
	return expr_list(b, EXPR_ALT, &words);
}

Expr *
kind_read(GrammarBuilder *b, llmc_grammar_kind kind, const char *text, size_t n)
{
	switch (kind) {
	case LLMC_GRAMMAR_JSON:
		return json_any_object(b);
	case LLMC_GRAMMAR_JSON_SCHEMA:
		return schema_read(b, text, n);
	case LLMC_GRAMMAR_REGEX:
		return regex_read(b, text, n, (RegexFlags){ 0 });
	case LLMC_GRAMMAR_GBNF:
		return gbnf_read(b, text, n);
	case LLMC_GRAMMAR_CHOICE:
		return choice_read(b, text, n);
	case LLMC_GRAMMAR_PARTS:
		return structural_tags_read(b, text, n);
	case LLMC_GRAMMAR_LARK:
		return lark_read(b, text, n, (RegexFlags){ 0 });
	}
	build_fail(b, "no such kind of grammar: %d", (int)kind);
}

/* Compiles a grammar. It has its own function, so that setjmp cannot clobber locals of the caller.
 * nothing: explanation for the case that no string matches. */
static llmc_status
compile(Grammar *g, Arena *a, llmc_grammar_kind kind, const char *text, size_t n,
        const llmc_grammar_options *opt, char nothing[MAX_PLACE], llmc_error *err)
{
	GrammarBuilder *b = calloc(1, sizeof *b);
	llmc_status status;

	if (!b)
		return error_set(err, LLMC_E_MEMORY, "out of memory for a grammar");
	b->a = a;
	b->err = err;
	b->opt = *opt;
	b->lexicon = g->lexicon;
	for (int i = 0; i < N_STYLE; i++)
		b->json_string[i] = b->json_value[i] = b->json_object[i] = b->json_array[i] = -1;
	if (setjmp(a->oom))
		status = error_set(err, LLMC_E_MEMORY, "out of memory for a grammar");
	else if (setjmp(b->fault))
		status = err->code;
	else
		status = automaton_make(b, kind_read(b, kind, text, n), &g->m, err);
	if (b->nothing)
		snprintf(nothing, MAX_PLACE, ": no value fits %s", b->nothing);
	free(b);
	return status;
}

llmc_status
grammar_open(TokenVocab *l, llmc_grammar_kind kind, const char *text, size_t n,
             const llmc_grammar_options *opt, const int32_t *eos, int32_t n_eos, Grammar **out,
             llmc_error *err)
{
	llmc_grammar_options own = LLMC_INIT(llmc_grammar_options);
	llmc_error why = { 0 };
	llmc_status status = LLMC_OK;
	char nothing[MAX_PLACE] = "";
	Arena a;

	*out = NULL;
	SIZED_TAKE(own, opt);
	if (n > MAX_TEXT)
		return error_set(err, LLMC_E_INPUT, "the grammar has %zu bytes, the limit is %d", n,
		                 MAX_TEXT);
	if (!utf8_valid(text, n))
		return error_set(err, LLMC_E_INPUT, "the grammar is not UTF-8");
	Grammar *g = calloc(1, sizeof *g);
	if (!g)
		return error_set(err, LLMC_E_MEMORY, "out of memory for a grammar");
	atomic_init(&g->refs, 1);
	pthread_mutex_init(&g->lock, NULL);
	g->lexicon = token_vocab_retain(l);
	g->start = -1;
	for (int i = 0; i < N_SLICE; i++)
		g->limit[i] = l->limit[i] < l->longest ? l->limit[i] : l->longest;
	g->stack = calloc((size_t)l->longest + 2, sizeof *g->stack);
	g->path = calloc((size_t)l->longest + 2, 1);
	g->eos = calloc((size_t)n_eos + 1, sizeof *g->eos);
	if (!g->stack || !g->path || !g->eos)
		status = error_set(&why, LLMC_E_MEMORY, "out of memory for a grammar");
	if (status == LLMC_OK) {
		if (n_eos)
			memcpy(g->eos, eos, (size_t)n_eos * sizeof *eos);
		g->n_eos = n_eos;
		arena_init(&a);
		status = compile(g, &a, kind, text, n, &own, nothing, &why);
		arena_release(&a);
	}
	if (status == LLMC_OK) {
		/* build the first set now, to reject a grammar that matches nothing */
		pthread_mutex_lock(&g->lock);
		g->err = &why;
		if (setjmp(g->fault))
			status = why.code;
		else if (set_start(g) == 0)
			status =
			    error_set(&why, LLMC_E_INPUT, "nothing matches the grammar%s", nothing);
		pthread_mutex_unlock(&g->lock);
	}
	if (status != LLMC_OK) {
		grammar_close(g);
		return error_set(err, status, "%s", why.text);
	}
	*out = g;
	return LLMC_OK;
}

const TokenVocab *
grammar_vocab(const Grammar *g)
{
	return g->lexicon;
}

Grammar *
grammar_retain(Grammar *g)
{
	atomic_fetch_add(&g->refs, 1);
	return g;
}

void
grammar_close(Grammar *g)
{
	if (!g || atomic_fetch_sub(&g->refs, 1) != 1)
		return;
	tables_release(&g->t);
	automaton_release(&g->m);
	token_vocab_close(g->lexicon);
	free(g->eos);
	free(g->tmp);
	free(g->seen);
	free(g->seen_key);
	free(g->stack);
	free(g->path);
	free(g->unc);
	pthread_mutex_destroy(&g->lock);
	free(g);
}
