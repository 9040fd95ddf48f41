/* Byte pair encoding in two dialects: by merge ranks (tokenizer.json, byte-level GGUF) and by token
 * scores (sentencepiece). In both, symbols are a linked list and candidate merges a heap, so the
 * time is O(n log n). */
#include "text/text.h"

#include <string.h>

typedef struct Sym {
	int32_t id;
	int32_t prev, next; /* -1: none */
	uint32_t at, n;     /* range of bytes in the input; n 0: merged into another symbol */
	bool frozen;        /* a user-defined token, which is never merged */
} Sym;

typedef struct MergeCandidate {
	double key; /* candidates with smaller keys merge first */
	int32_t left, right;
	int32_t id; /* token id of the merged symbol */
	uint32_t n; /* bytes of the merged symbol; if the two sides now have another length, the
	               candidate is stale */
} MergeCandidate;

typedef struct Heap {
	MergeCandidate *v;
	size_t n, cap;
} Heap;

static bool
before(const MergeCandidate *a, const MergeCandidate *b)
{
	return a->key < b->key || (a->key == b->key && a->left < b->left);
}

static void
heap_push(Enc *e, Heap *h, MergeCandidate c)
{
	h->v = arena_grow(&e->arena, h->v, &h->cap, h->n + 1, sizeof *h->v);
	size_t i = h->n++;
	while (i > 0 && before(&c, &h->v[(i - 1) / 2])) {
		h->v[i] = h->v[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	h->v[i] = c;
}

static MergeCandidate
heap_pop(Heap *h)
{
	MergeCandidate top = h->v[0], last = h->v[--h->n];
	size_t i = 0;

	for (;;) {
		size_t k = 2 * i + 1;
		if (k >= h->n)
			break;
		if (k + 1 < h->n && before(&h->v[k + 1], &h->v[k]))
			k++;
		if (!before(&h->v[k], &last))
			break;
		h->v[i] = h->v[k];
		i = k;
	}
	if (h->n)
		h->v[i] = last;
	return top;
}

static void
push_merge(Enc *e, Heap *h, const Sym *sym, const char *text, int32_t left, int32_t right)
{
	const llmc_tokenizer *t = e->t;
	int32_t rank, id;

	if (left < 0 || right < 0)
		return;
	const Sym *l = &sym[left], *r = &sym[right];
	if (t->model == MODEL_BPE) {
		if (l->id >= 0 && r->id >= 0 && pairmap_get(&t->merges, l->id, r->id, &rank, &id))
			heap_push(e, h, (MergeCandidate){ rank, left, right, id, l->n + r->n });
		return;
	}
	if (l->frozen || r->frozen)
		return;
	id = strmap_get(&t->vocab, text + l->at,
	                l->n + r->n); /* neighbours are adjacent in the input */
	if (id >= 0)
		heap_push(
		    e, h,
		    (MergeCandidate){ -(double)t->tok[id].score, left, right, id, l->n + r->n });
}

static void
merge_all(Enc *e, Sym *sym, int32_t n, const char *text)
{
	Heap heap = { .v = e->heap, .cap = e->cap_heap };

	for (int32_t i = 0; i + 1 < n; i++)
		push_merge(e, &heap, sym, text, i, i + 1);
	while (heap.n) {
		MergeCandidate c = heap_pop(&heap);
		enc_work(e, 16);
		Sym *l = &sym[c.left];
		if (!l->n || l->next < 0)
			continue;
		Sym *r = &sym[l->next];
		if (e->t->model == MODEL_BPE) {
			/* either side may have become another token since */
			int32_t rank, id;
			if (!pairmap_get(&e->t->merges, l->id, r->id, &rank, &id) || id != c.id)
				continue;
		} else if (l->next != c.right || l->n + r->n != c.n) {
			continue;
		}
		l->id = c.id;
		l->n += r->n;
		l->next = r->next;
		r->n = 0;
		if (l->next >= 0)
			sym[l->next].prev = c.left;
		push_merge(e, &heap, sym, text, l->prev, c.left);
		push_merge(e, &heap, sym, text, c.left, l->next);
	}
	e->heap = heap.v;
	e->cap_heap = heap.cap;
}

static void
sym_add(Enc *e, Sym **sym, size_t *n, int32_t id, size_t at, size_t len)
{
	*sym = e->sym = arena_grow(&e->arena, e->sym, &e->cap_sym, *n + 1, sizeof **sym);
	(*sym)[*n] = (Sym){ .id = id,
		            .prev = (int32_t)*n - 1,
		            .next = -1,
		            .at = (uint32_t)at,
		            .n = (uint32_t)len };
	if (*n)
		(*sym)[*n - 1].next = (int32_t)*n;
	(*n)++;
}

/* Returns a character in the form in which the vocabulary has it within a word. */
static ByteSpan
spelled(Enc *e, ByteSpan text, size_t i, size_t len)
{
	const llmc_tokenizer *t = e->t;
	bool head = t->word_prefix.n && i > 0, tail = t->word_suffix.n && i + len == text.n;
	size_t n = 0;

	if (!head && !tail)
		return (ByteSpan){ text.s + i, len };
	char *p = NEW(&e->arena, char, t->word_prefix.n + len + t->word_suffix.n);
	if (head)
		memcpy(p, t->word_prefix.s, n = t->word_prefix.n);
	memcpy(p + n, text.s + i, len);
	n += len;
	if (tail) {
		memcpy(p + n, t->word_suffix.s, t->word_suffix.n);
		n += t->word_suffix.n;
	}
	return (ByteSpan){ p, n };
}

static bool
bytes_known(const llmc_tokenizer *t, const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (t->byte_id[(unsigned char)s[i]] < 0)
			return false;
	return t->byte_fallback;
}

llmc_status
bpe_encode(Enc *e, ByteSpan text)
{
	const llmc_tokenizer *t = e->t;
	size_t n = 0, unk_n = 0, unk_at = 0;
	bool unk = false;
	Sym *sym = NULL;

	if (t->ignore_merges) {
		int32_t id = strmap_get(&t->vocab, text.s, text.n);
		if (id >= 0) {
			enc_push(e, id);
			return LLMC_OK;
		}
	}
	for (size_t i = 0, len; i < text.n; i += len) {
		utf8_next(text.s + i, text.n - i, &len);
		ByteSpan c = spelled(e, text, i, len);
		enc_work(e, c.n);
		int32_t id = strmap_get(&t->vocab, c.s, c.n);
		if (id >= 0) {
			if (unk)
				sym_add(e, &sym, &n, t->unk_id, unk_at, unk_n);
			unk = false;
			sym_add(e, &sym, &n, id, i, len);
		} else if (bytes_known(t, c.s, c.n)) {
			for (size_t k = 0; k < c.n; k++)
				sym_add(e, &sym, &n, t->byte_id[(unsigned char)c.s[k]], i, 1);
		} else if (t->unk_id >= 0) {
			if (unk && !t->fuse_unk) {
				sym_add(e, &sym, &n, t->unk_id, unk_at, unk_n);
				unk = false;
			}
			if (!unk) {
				unk_at = i;
				unk_n = 0;
			}
			unk = true;
			unk_n += len;
		}
	}
	if (unk)
		sym_add(e, &sym, &n, t->unk_id, unk_at, unk_n);
	merge_all(e, sym, (int32_t)n, text.s);
	for (int32_t i = n ? 0 : -1; i >= 0; i = sym[i].next)
		enc_push(e, sym[i].id);
	return LLMC_OK;
}

/* Splits a token of type unused into the two tokens from which it was merged, as sentencepiece
 * does. */
static void
scores_emit(Enc *e, const char *s, size_t n, bool *after_unk, int depth)
{
	const llmc_tokenizer *t = e->t;
	int32_t id = strmap_get(&t->vocab, s, n);

	if (id >= 0 && t->tok[id].type == TT_UNUSED && depth < 64) {
		double best = 0;
		size_t cut = 0;
		for (size_t i = 1; i < n; i++) {
			enc_work(e, n);
			if (((unsigned char)s[i] & 0xC0) == 0x80)
				continue;
			int32_t l = strmap_get(&t->vocab, s, i),
			        r = strmap_get(&t->vocab, s + i, n - i);
			if (l < 0 || r < 0)
				continue;
			double score =
			    t->tok[l].score < t->tok[r].score ? t->tok[l].score : t->tok[r].score;
			if (!cut || score > best) {
				best = score;
				cut = i;
			}
		}
		if (cut) {
			scores_emit(e, s, cut, after_unk, depth + 1);
			scores_emit(e, s + cut, n - cut, after_unk, depth + 1);
			return;
		}
	}
	if (id >= 0) {
		enc_push(e, id);
		*after_unk = false;
	} else if (bytes_known(t, s, n)) {
		for (size_t i = 0; i < n; i++)
			enc_push(e, t->byte_id[(unsigned char)s[i]]);
		*after_unk = false;
	} else if (t->unk_id >= 0) {
		if (!*after_unk)
			enc_push(e, t->unk_id);
		*after_unk = true;
	}
}

llmc_status
scores_encode(Enc *e, ByteSpan text)
{
	const llmc_tokenizer *t = e->t;
	size_t n = 0;
	bool after_unk = false;
	Sym *sym = NULL;

	for (size_t i = 0, len; i < text.n; i += len) {
		utf8_next(text.s + i, text.n - i, &len);
		size_t user;
		enc_longest(e, &t->user, text.s + i, text.n - i, &user);
		if (user)
			len = user;
		sym_add(e, &sym, &n, 0, i, len);
		sym[n - 1].frozen = user > 0;
	}
	merge_all(e, sym, (int32_t)n, text.s);
	for (int32_t i = n ? 0 : -1; i >= 0; i = sym[i].next)
		scores_emit(e, text.s + sym[i].at, sym[i].n, &after_unk, 0);
	return LLMC_OK;
}
