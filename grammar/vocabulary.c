/* Vocabulary as tries in depth-first order. Plain tokens consist of characters that need no escape
 * in JSON strings, and are the majority of any vocabulary. They are in tries of their own: inside a
 * string their mask is copied, and only the other tokens are walked. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "grammar/grammar_internal.h"

/* Returns the number of characters of a plain token; -1: not plain. */
static int32_t
plain_chars(const char *s, size_t n)
{
	int32_t chars = 0;
	size_t len;

	for (size_t i = 0; i < n; i += len, chars++) {
		int32_t cp = utf8_next(s + i, n - i, &len);
		if (cp < 0x20 || cp == 0x7F || cp == '"' || cp == '\\')
			return -1;
	}
	return chars;
}

static int
by_bytes(const void *a, const void *b, void *user)
{
	const TokenVocab *l = user;
	int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
	uint32_t nx = l->at[x + 1] - l->at[x], ny = l->at[y + 1] - l->at[y];
	int c = memcmp(l->bytes + l->at[x], l->bytes + l->at[y], nx < ny ? nx : ny);

	return c ? c : nx != ny ? (nx < ny ? -1 : 1) : x < y ? -1 : x > y;
}

/* Builds a trie of ids sorted by bytes, without duplicates. */
static bool
trie_make(const TokenVocab *l, const int32_t *ids, size_t n, TokenTrie *t)
{
	size_t path[MAX_TOKEN + 1];
	uint32_t have = 0;
	const char *before = NULL;

	for (size_t i = 0; i <= n; i++) {
		const char *s = i < n ? l->bytes + l->at[ids[i]] : NULL;
		uint32_t len = i < n ? l->at[ids[i] + 1] - l->at[ids[i]] : 0, k = 0;
		while (k < have && k < len && before[k] == s[k])
			k++;
		for (; have > k; have--)
			t->v[path[have - 1]].skip = (uint32_t)(t->n - path[have - 1]);
		for (; k < len; k++) {
			if (t->n == t->cap) {
				size_t cap = t->cap ? 2 * t->cap : 1024;
				TrieNode *v = realloc(t->v, cap * sizeof *v);
				if (!v)
					return false;
				t->v = v;
				t->cap = cap;
			}
			path[k] = t->n;
			t->v[t->n++] =
			    (TrieNode){ .token = -1, .depth = (uint16_t)k, .byte = (uint8_t)s[k] };
		}
		if (i < n)
			t->v[t->n - 1].token = ids[i];
		have = len;
		before = s;
	}
	return true;
}

static bool
make_tries(TokenVocab *l)
{
	static const int32_t limits[N_SLICE] = { INT32_MAX, 32, 12 };
	int32_t *ids = calloc((size_t)l->n_tok + 1, sizeof *ids),
	        *some = calloc((size_t)l->n_tok + 1, sizeof *some);
	int32_t *chars = calloc((size_t)l->n_tok + 1, sizeof *chars);
	size_t n = 0, k = 0;
	bool ok = ids && some && chars;

	for (int32_t i = 0; ok && i < l->n_tok; i++) {
		uint32_t len = l->at[i + 1] - l->at[i];
		if (!len || len > MAX_TOKEN || l->special[i])
			continue;
		ids[n++] = i;
		chars[i] = plain_chars(l->bytes + l->at[i], len);
		l->longest = (int32_t)len > l->longest ? (int32_t)len : l->longest;
	}
	if (ok)
		qsort_r(ids, n, sizeof *ids, by_bytes, l);
	for (size_t i = 0; i < n; i++) { /* link tokens with equal bytes to the first one */
		int32_t last = k ? ids[k - 1] : -1, id = ids[i];
		uint32_t len = l->at[id + 1] - l->at[id];
		if (last >= 0 && l->at[last + 1] - l->at[last] == len &&
		    memcmp(l->bytes + l->at[last], l->bytes + l->at[id], len) == 0) {
			l->same[id] = l->same[last];
			l->same[last] = id;
		} else {
			ids[k++] = id;
		}
	}
	ok = ok && trie_make(l, ids, k, &l->all);
	for (int s = 0; ok && s < N_SLICE; s++) {
		size_t rest = 0;
		l->limit[s] = limits[s];
		l->plain[s] = calloc(l->n_words + 1, sizeof **l->plain);
		ok = l->plain[s] != NULL;
		for (size_t i = 0; ok && i < k; i++)
			if (chars[ids[i]] < 0 || chars[ids[i]] > limits[s])
				some[rest++] = ids[i];
			else
				for (int32_t id = ids[i]; id >= 0; id = l->same[id])
					l->plain[s][id >> 5] |= 1u << (id & 31);
		ok = ok && trie_make(l, some, rest, &l->rest[s]);
	}
	l->brief = ok ? calloc((N_BRIEF + 1) * l->n_words + 1, sizeof *l->brief) : NULL;
	ok = l->brief != NULL;
	for (size_t i = 0; ok && i < k; i++)
		for (int most = chars[ids[i]]; most >= 0 && most <= N_BRIEF; most++)
			for (int32_t id = ids[i]; id >= 0; id = l->same[id])
				l->brief[(size_t)most * l->n_words + (size_t)(id >> 5)] |=
				    1u << (id & 31);
	free(ids);
	free(some);
	free(chars);
	return ok;
}

llmc_status
token_vocab_open(const VocabToken *tok, int32_t n_tok, TokenVocab **out, llmc_error *err)
{
	size_t total = 0;

	*out = NULL;
	for (int32_t i = 0; i < n_tok; i++)
		total += tok[i].n;
	if (total >= UINT32_MAX)
		return error_set(err, LLMC_E_INPUT, "the vocabulary is too large for a grammar");
	TokenVocab *l = calloc(1, sizeof *l);
	if (!l)
		return error_set(err, LLMC_E_MEMORY, "out of memory for a vocabulary");
	atomic_init(&l->refs, 1);
	l->n_tok = n_tok;
	l->n_words = ((size_t)n_tok + 31) / 32;
	l->bytes = malloc(total + 1);
	l->at = calloc((size_t)n_tok + 1, sizeof *l->at);
	l->special = calloc((size_t)n_tok + 1, 1);
	l->same = malloc(((size_t)n_tok + 1) * sizeof *l->same);
	bool ok = l->bytes && l->at && l->special && l->same;
	for (int32_t i = 0; ok && i < n_tok; i++) {
		l->at[i + 1] = l->at[i] + tok[i].n;
		if (tok[i].n)
			memcpy(l->bytes + l->at[i], tok[i].bytes, tok[i].n);
		l->special[i] = tok[i].special;
		l->same[i] = -1;
	}
	if (!ok || !make_tries(l)) {
		token_vocab_close(l);
		return error_set(err, LLMC_E_MEMORY, "out of memory for a vocabulary of %d tokens",
		                 n_tok);
	}
	*out = l;
	return LLMC_OK;
}

TokenVocab *
token_vocab_retain(TokenVocab *l)
{
	atomic_fetch_add(&l->refs, 1);
	return l;
}

int32_t
token_vocab_size(const TokenVocab *l)
{
	return l->n_tok;
}

bool
token_vocab_same(const TokenVocab *a, const TokenVocab *b)
{
	const size_t n = (size_t)a->n_tok;

	return a == b ||
	       (a->n_tok == b->n_tok && !memcmp(a->at, b->at, (n + 1) * sizeof *a->at) &&
	        !memcmp(a->special, b->special, n) && !memcmp(a->bytes, b->bytes, a->at[n]));
}

void
token_vocab_close(TokenVocab *l)
{
	if (!l || atomic_fetch_sub(&l->refs, 1) != 1)
		return;
	free(l->bytes);
	free(l->at);
	free(l->special);
	free(l->same);
	free(l->all.v);
	for (int s = 0; s < N_SLICE; s++) {
		free(l->rest[s].v);
		free(l->plain[s]);
	}
	free(l->brief);
	free(l);
}
