/* DRY ("don't repeat yourself"): penalise tokens that continue a repetition of earlier tokens, the
 * longer the repetition the more. Breakers (newlines, quotes, names of speakers) end a repetition.
 * Definition and defaults are those of llama.cpp. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/sample/sampler.h"

enum { MAX_BREAKER_BYTES = 40, MAX_TAIL = 20, DEFAULT_LENGTH = 2 };
#define DEFAULT_BASE 1.75f
#define LOG_FLT_MAX 88.7228391f

/* A breaker as tokens: the first token (head), whose bytes may begin before the breaker's string,
 * and the others (tail)
 */
typedef struct Breaker {
	int32_t head, n;
	int32_t tail[MAX_TAIL];
} Breaker;

struct DryBreakers {
	atomic_int refs;
	int32_t vocab, n, cap;
	Breaker *b; /* [n] sorted by head */
	/* [(vocab + 31) / 32] heads; a breaker without a tail is also in `single` */
	uint32_t *head;
	uint32_t *single;
};

/* ---- breakers ---- */

static bool
bit(const uint32_t *set, int32_t id)
{
	return set[id >> 5] >> (id & 31) & 1;
}

static bool
add_breaker(DryBreakers *d, int32_t head, const int32_t *tail, int32_t n)
{
	n = n < MAX_TAIL ? n : MAX_TAIL;
	if (n == 0) { /* a breaker without a tail: the bit is enough */
		d->single[head >> 5] |= 1u << (head & 31);
	} else {
		if (d->n == d->cap) {
			int32_t cap = d->cap ? 2 * d->cap : 64;
			Breaker *b = realloc(d->b, (size_t)cap * sizeof *b);
			if (!b)
				return false;
			d->b = b;
			d->cap = cap;
		}
		Breaker *b = &d->b[d->n++];
		b->head = head;
		b->n = n;
		memcpy(b->tail, tail, (size_t)n * sizeof *tail);
	}
	d->head[head >> 5] |= 1u << (head & 31);
	return true;
}

static int
by_head(const void *a, const void *b)
{
	const Breaker *x = a, *y = b;

	return (x->head > y->head) - (x->head < y->head);
}

/* Sort the breakers with a tail for breaker_at. */
static void
sort_breakers(DryBreakers *d)
{
	if (d->n)
		qsort(d->b, (size_t)d->n, sizeof *d->b, by_head);
}

static DryBreakers *
breakers_new(int32_t vocab)
{
	DryBreakers *d = calloc(1, sizeof *d);
	size_t words = ((size_t)vocab + 31) / 32;

	if (!d)
		return NULL;
	atomic_init(&d->refs, 1);
	d->vocab = vocab;
	d->head = calloc(words, sizeof *d->head);
	d->single = calloc(words, sizeof *d->single);
	if (d->head && d->single)
		return d;
	dry_breakers_close(d);
	return NULL;
}

DryBreakers *
dry_breakers_ref(DryBreakers *b)
{
	if (b)
		atomic_fetch_add(&b->refs, 1);
	return b;
}

void
dry_breakers_close(DryBreakers *b)
{
	if (!b || atomic_fetch_sub(&b->refs, 1) > 1)
		return;
	free(b->b);
	free(b->head);
	free(b->single);
	free(b);
}

static llmc_status
no_memory(DryBreakers *d, llmc_error *err)
{
	dry_breakers_close(d);
	return error_set(err, LLMC_E_MEMORY, "out of memory for dry_sequence_breakers");
}

llmc_status
dry_breakers_of(int32_t vocab, const llmc_sequence *seq, int32_t n, DryBreakers **out,
                llmc_error *err)
{
	DryBreakers *d = breakers_new(vocab);

	*out = NULL;
	if (!d)
		return no_memory(NULL, err);
	for (int32_t i = 0; i < n; i++)
		if (seq[i].n &&
		    !add_breaker(d, seq[i].tok[0], seq[i].tok + 1, (int32_t)seq[i].n - 1))
			return no_memory(d, err);
	sort_breakers(d);
	*out = d;
	return LLMC_OK;
}

/* Add token id as a head. Its bytes contain the whole breaker, or end with the first bytes of it;
 * then the tail is the remaining bytes as tokens. */
static llmc_status
add_token(DryBreakers *d, const llmc_tokenizer *t, int32_t id, const char *word, size_t n_word,
          const char *text, size_t n_text)
{
	if (memmem(word, n_word, text, n_text))
		return add_breaker(d, id, NULL, 0) ? LLMC_OK : LLMC_E_MEMORY;
	for (size_t at = n_word < n_text ? 0 : n_word - n_text + 1; at < n_word; at++) {
		int32_t tail[MAX_BREAKER_BYTES + 8];
		size_t n, held = n_word - at;
		if (memcmp(word + at, text, held) != 0)
			continue;
		llmc_status status = llmc_tokenize(t, text + held, n_text - held, 0, tail,
		                                   sizeof tail / sizeof *tail, &n, NULL);
		if (status == LLMC_E_MEMORY ||
		    (status == LLMC_OK && n && !add_breaker(d, id, tail, (int32_t)n)))
			return LLMC_E_MEMORY;
		/* otherwise the rest is a part of a character, which has no tokens of its own */
	}
	return LLMC_OK;
}

llmc_status
dry_breakers_open(const llmc_tokenizer *t, const char *const *strings, DryBreakers **out,
                  llmc_error *err)
{
	static const char *const usual[] = { LLMC_DRY_BREAKERS, NULL };
	const int32_t n = llmc_tokenizer_size(t);
	DryBreakers *d = breakers_new(n > 0 ? n : 1);
	llmc_status status = LLMC_OK;

	*out = NULL;
	if (!d)
		return no_memory(NULL, err);
	strings = strings ? strings : usual;
	for (int32_t id = 0; id < n && status == LLMC_OK; id++) {
		char word[256];
		size_t n_word;
		/* skip tokens that have no bytes or do not fit `word`: none of them is a head */
		if (llmc_token_bytes(t, id, word, sizeof word, &n_word, NULL) != LLMC_OK)
			continue;
		for (const char *const *s = strings; *s && status == LLMC_OK; s++)
			if (**s)
				status = add_token(d, t, id, word, n_word, *s,
				                   strnlen(*s, MAX_BREAKER_BYTES));
	}
	if (status != LLMC_OK)
		return no_memory(d, err);
	sort_breakers(d);
	*out = d;
	return LLMC_OK;
}

/* Return the length of the tail of the longest breaker that begins at tok [n]; -1: no breaker
 * begins there. */
static int32_t
breaker_at(const DryBreakers *d, const int32_t *tok, int32_t n)
{
	int32_t lo = 0, hi = d->n, longest = -1;

	if (tok[0] >= d->vocab || !bit(d->head, tok[0]))
		return -1;
	if (bit(d->single, tok[0]))
		longest = 0;
	while (lo < hi) {
		int32_t mid = lo + (hi - lo) / 2;
		if (d->b[mid].head < tok[0])
			lo = mid + 1;
		else
			hi = mid;
	}
	for (; lo < d->n && d->b[lo].head == tok[0]; lo++) {
		const Breaker *b = &d->b[lo];
		if (b->n > longest && b->n < n &&
		    memcmp(b->tail, tok + 1, (size_t)b->n * sizeof *tok) == 0)
			longest = b->n;
	}
	return longest;
}

/* ---- the penalty ---- */

/* count[k] = length of the longest common suffix of hist [n] and of its first n - k tokens, at most
 * `most`; the Z algorithm on the reversed tokens. */
static void
count_suffixes(const int32_t *hist, int32_t n, int32_t most, int32_t *count)
{
	const int32_t *end = hist + n - 1; /* end[-i]: i-th token from the end */
	int32_t left = 0, right = 0;       /* the match that begins at `left` ends before `right` */

	count[0] = 0;
	for (int32_t k = 1; k < n; k++) {
		int32_t m = k < right ? count[k - left] : 0;
		m = m < right - k ? m : k < right ? right - k : 0;
		while (k + m < n && m < most && end[-m] == end[-k - m])
			m++;
		count[k] = m;
		if (k + m > right) {
			left = k;
			right = k + m;
		}
	}
}

void
sample_dry(const SampleScratch *m, const llmc_params *p, const int32_t *hist, int32_t n,
           const DryBreakers *breakers, int32_t *count)
{
	const int32_t allowed = p->dry_allowed_length ? p->dry_allowed_length : DEFAULT_LENGTH;
	const float base = p->dry_base < 1 ? DEFAULT_BASE : p->dry_base;
	const int32_t most_exponent = base > 1.000001f ? (int32_t)(LOG_FLT_MAX / logf(base)) : 0;
	int32_t most;

	if (p->dry_penalty_last_n > 0 && n > p->dry_penalty_last_n) {
		hist += n - p->dry_penalty_last_n;
		n = p->dry_penalty_last_n;
	}
	if (n <= allowed)
		return;
	most = n;
	for (int32_t i = 0, tail; breakers && i < n; i++)
		if ((tail = breaker_at(breakers, hist + n - 1 - i, i + 1)) >= 0) {
			most = i - tail;
			break;
		}
	if (most < allowed)
		return;
	count_suffixes(hist, n, most, count);
	/* the token after an earlier occurrence of the suffix would continue the repetition */
	for (int32_t k = 1; k < n; k++)
		if (count[k] >= allowed)
			m->cand[hist[n - k]].id = 0;
	for (int32_t k = 1; k < n; k++) {
		Candidate *c = &m->cand[hist[n - k]];
		if (count[k] >= allowed && count[k] > c->id)
			c->id = count[k];
	}
	for (int32_t k = 1; k < n; k++) {
		const int32_t id = hist[n - k];
		Candidate *c = &m->cand[id];
		if (count[k] < allowed || c->id == 0)
			continue;
		int32_t exponent = c->id - allowed;
		c->id = 0;
		if (breakers && id < breakers->vocab && bit(breakers->single, id))
			continue;
		if (most_exponent > 0 && exponent > most_exponent)
			exponent = most_exponent;
		m->work[id] -= p->dry_multiplier * powf(base, (float)exponent);
	}
}
