/* The prefix cache of kv.h: pages in a hash table by (page before, own tokens), those without a holder also in a list by
 * age. A sequence lets go of its last page first, so that what follows a page is older than the page itself and goes first;
 * a page whose predecessor is gone all the same is never found again and ages out. */
#include "runtime/kv/prefix.h"

#include <stdlib.h>
#include <string.h>

llmc_status
kv_prefix_open(Kv *kv, llmc_error *err)
{
	if (kv->cached && kv->bucket)
		return LLMC_OK;
	free(kv->cached);
	free(kv->bucket);
	kv->n_bucket = 16;
	while (kv->n_bucket < kv->n_page)
		kv->n_bucket *= 2;
	kv->cached = calloc((size_t)kv->n_page + 1, sizeof *kv->cached);
	kv->bucket = malloc((size_t)kv->n_bucket * sizeof *kv->bucket);
	if (!kv->cached || !kv->bucket)
		return error_set(err, LLMC_E_MEMORY, "out of memory for the prefix cache of %d KV pages", kv->n_page);
	memset(kv->bucket, 0xff, (size_t)kv->n_bucket * sizeof *kv->bucket);
	return LLMC_OK;
}

static int32_t *
bucket_of(const Kv *kv, int64_t parent, const int32_t *tok)
{
	uint64_t h = (uint64_t)parent * 0x9e3779b97f4a7c15u;

	for (int i = 0; i < PLAN_KV_PAGE; i++) {
		h = (h ^ (uint32_t)tok[i]) * 0xff51afd7ed558ccdu;
		h ^= h >> 32;
	}
	return &kv->bucket[h & (uint64_t)(kv->n_bucket - 1)];
}

static int32_t
look_up(const Kv *kv, int64_t parent, const int32_t *tok)
{
	int32_t page = *bucket_of(kv, parent, tok);

	while (page >= 0 && (kv->cached[page].parent != parent || memcmp(kv->cached[page].tok, tok, sizeof kv->cached[page].tok)))
		page = kv->cached[page].next;
	return page;
}

/* Out of the list of those without a holder */
static void
unlist(Kv *kv, int32_t page)
{
	KvCached *c = &kv->cached[page];

	*(c->older >= 0 ? &kv->cached[c->older].newer : &kv->oldest) = c->newer;
	*(c->newer >= 0 ? &kv->cached[c->newer].older : &kv->newest) = c->older;
}

void
prefix_idle(Kv *kv, int32_t page)
{
	kv->cached[page].older = kv->newest;
	kv->cached[page].newer = -1;
	*(kv->newest >= 0 ? &kv->cached[kv->newest].newer : &kv->oldest) = page;
	kv->newest = page;
}

void
prefix_forget(Kv *kv, int32_t page)
{
	KvCached *c = &kv->cached[page];

	if (!c->serial)
		return;
	int32_t *at = bucket_of(kv, c->parent, c->tok);
	while (*at != page)
		at = &kv->cached[*at].next;
	*at = c->next;
	c->serial = 0;
}

int32_t
prefix_evict(Kv *kv)
{
	int32_t page = kv->oldest;

	unlist(kv, page);
	prefix_forget(kv, page);
	return page;
}

int32_t
kv_prefix_find(Kv *kv, int32_t q, int64_t root, const int32_t *tok, int32_t n_tok)
{
	KvSeq *s = &kv->seq[q];
	int64_t parent = root;

	if (!kv->cached)
		return 0;
	for (; s->len + PLAN_KV_PAGE < n_tok && s->n_page < kv->max_page; s->len += PLAN_KV_PAGE) {
		int32_t page = look_up(kv, parent, tok + s->len);
		if (page < 0)
			break;
		if (kv->refs[page]++ == 0) {
			unlist(kv, page);
			kv->n_free--;
		}
		s->page[s->n_page++] = page;
		parent = kv->cached[page].serial;
	}
	s->n_kept = s->n_page;
	s->kept_as = parent;
	return s->len;
}

void
kv_prefix_keep(Kv *kv, int32_t q, int64_t root, const int32_t *tok)
{
	KvSeq *s = &kv->seq[q];

	if (!kv->cached)
		return;
	if (s->n_kept == 0)
		s->kept_as = root;
	for (; s->n_kept < s->len / PLAN_KV_PAGE; s->n_kept++) {
		const int32_t *own = tok + (size_t)s->n_kept * PLAN_KV_PAGE;
		int32_t page = look_up(kv, s->kept_as, own);
		if (page < 0) { /* else another page with the same content is known: that one stays */
			page = s->page[s->n_kept];
			KvCached *c = &kv->cached[page];
			if (c->serial) { /* known as the successor of a page that is gone */
				s->kept_as = c->serial;
				continue;
			}
			int32_t *at = bucket_of(kv, s->kept_as, own);
			*c = (KvCached){ .serial = ++kv->last_serial, .parent = s->kept_as, .next = *at };
			memcpy(c->tok, own, sizeof c->tok);
			*at = page;
		}
		s->kept_as = kv->cached[page].serial;
	}
}

int32_t
kv_prefix_idle(const Kv *kv)
{
	return kv->n_free - kv->n_stack;
}

const char *
kv_check(const Kv *kv)
{
	int32_t *held = calloc((size_t)kv->n_page + 1, sizeof *held), idle = 0, n_free = 0;
	const char *wrong = NULL;

	if (!held)
		return NULL;
	for (int32_t q = 0; q < kv->n_seq; q++) {
		const KvSeq *s = &kv->seq[q];
		if (s->used && (s->len > s->n_page * PLAN_KV_PAGE || s->n_kept > s->len / PLAN_KV_PAGE))
			wrong = "a sequence is longer than its pages";
		for (int32_t i = 0; s->used && i < s->n_page; i++)
			held[s->page[i]]++;
	}
	for (int32_t i = 0; i < kv->n_stack; i++)
		if (held[kv->free_page[i]]++)
			wrong = "a free page is held, or free twice";
	for (int32_t i = kv->cached ? kv->oldest : -1; i >= 0; i = kv->cached[i].newer, idle++)
		if (held[i]++ || !kv->cached[i].serial || idle > kv->n_page)
			return free(held), "an idle page is held, free or not cached";
	for (int32_t i = 0; i < kv->n_page; i++) {
		n_free += kv->refs[i] == 0;
		if (held[i] != (kv->refs[i] ? kv->refs[i] : 1))
			wrong = "a page is held by others than its count says";
		if (kv->cached && kv->cached[i].serial && kv->refs[i] == 0 && look_up(kv, kv->cached[i].parent, kv->cached[i].tok) < 0)
			wrong = "a cached page cannot be found";
	}
	if (n_free != kv->n_free || idle + kv->n_stack != n_free)
		wrong = "the number of free pages is wrong";
	free(held);
	return wrong;
}
