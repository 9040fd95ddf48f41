/* Hash maps with open addressing in an arena. They are filled while a file is loaded, and only read
 * afterwards. The hashes are not seeded: an adversarial vocabulary can only slow down its own
 * loading. */
#include "text/text.h"

#include <string.h>

static uint64_t
mix(uint64_t h)
{
	h ^= h >> 33;
	h *= 0xff51afd7ed558ccdULL;
	h ^= h >> 33;
	h *= 0xc4ceb9fe1a85ec53ULL;
	return h ^ h >> 33;
}

static uint64_t
hash_bytes(const char *s, size_t n)
{
	uint64_t h = 0x9E3779B97F4A7C15ULL ^ n, w;

	for (; n >= 8; s += 8, n -= 8) {
		memcpy(&w, s, 8);
		h = (h ^ w) * 0xD6E8FEB86659FD93ULL;
		h ^= h >> 32;
	}
	w = 0;
	memcpy(&w, s, n);
	return mix(h ^ w);
}

static size_t
strmap_slot(const StrMap *m, const char *s, size_t n)
{
	size_t i = hash_bytes(s, n) & (m->cap - 1);

	while (m->key[i].s && (m->key[i].n != n || memcmp(m->key[i].s, s, n) != 0))
		i = (i + 1) & (m->cap - 1);
	return i;
}

void
strmap_put(StrMap *m, Arena *a, ByteSpan key, int32_t value)
{
	if (m->n * 2 >= m->cap) {
		StrMap big = { .cap = m->cap ? m->cap * 2 : 64, .n = m->n };
		big.key = NEW(a, ByteSpan, big.cap);
		big.value = NEW(a, int32_t, big.cap);
		for (size_t i = 0; i < m->cap; i++) {
			if (!m->key[i].s)
				continue;
			size_t j = strmap_slot(&big, m->key[i].s, m->key[i].n);
			big.key[j] = m->key[i];
			big.value[j] = m->value[i];
		}
		*m = big;
	}
	size_t i = strmap_slot(m, key.s, key.n);
	if (!m->key[i].s)
		m->n++;
	m->key[i] = key;
	m->value[i] = value;
}

int32_t
strmap_get(const StrMap *m, const char *s, size_t n)
{
	if (!m->cap)
		return -1;
	size_t i = strmap_slot(m, s, n);
	return m->key[i].s ? m->value[i] : -1;
}

static size_t
pair_slot(const uint64_t *key, size_t cap, uint64_t k)
{
	size_t i = mix(k) & (cap - 1);

	while (key[i] && key[i] != k)
		i = (i + 1) & (cap - 1);
	return i;
}

static uint64_t
pair_key(int32_t left, int32_t right)
{
	return ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) + 1;
}

void
pairmap_put(PairMap *m, Arena *a, int32_t left, int32_t right, int32_t rank, int32_t id)
{
	if (m->n * 2 >= m->cap) {
		PairMap big = { .cap = m->cap ? m->cap * 2 : 64, .n = m->n };
		big.key = NEW(a, uint64_t, big.cap);
		big.rank = NEW(a, int32_t, big.cap);
		big.id = NEW(a, int32_t, big.cap);
		for (size_t i = 0; i < m->cap; i++) {
			if (!m->key[i])
				continue;
			size_t j = pair_slot(big.key, big.cap, m->key[i]);
			big.key[j] = m->key[i];
			big.rank[j] = m->rank[i];
			big.id[j] = m->id[i];
		}
		*m = big;
	}
	size_t i = pair_slot(m->key, m->cap, pair_key(left, right));
	if (!m->key[i])
		m->n++;
	m->key[i] = pair_key(left, right);
	m->rank[i] = rank;
	m->id[i] = id;
}

bool
pairmap_get(const PairMap *m, int32_t left, int32_t right, int32_t *rank, int32_t *id)
{
	if (!m->cap)
		return false;
	size_t i = pair_slot(m->key, m->cap, pair_key(left, right));
	if (!m->key[i])
		return false;
	*rank = m->rank[i];
	*id = m->id[i];
	return true;
}

void
trie_init(Trie *t, Arena *a)
{
	*t = (Trie){ .n_nodes = 1 };
	t->value = arena_grow(a, NULL, &t->cap_nodes, 1, sizeof *t->value);
	t->value[0] = -1;
}

uint32_t
trie_step(const Trie *t, uint32_t node, unsigned char byte)
{
	if (!t->cap)
		return 0;
	size_t i = pair_slot(t->edge, t->cap, ((uint64_t)node << 8 | byte) + 1);
	return t->edge[i] ? t->child[i] : 0;
}

void
trie_put(Trie *t, Arena *a, ByteSpan key, int32_t value)
{
	uint32_t node = 0;

	for (size_t k = 0; k < key.n; k++) {
		uint64_t edge = ((uint64_t)node << 8 | (unsigned char)key.s[k]) + 1;
		if (t->n_edges * 2 >= t->cap) {
			size_t cap = t->cap ? t->cap * 2 : 64;
			uint64_t *e = NEW(a, uint64_t, cap);
			uint32_t *c = NEW(a, uint32_t, cap);
			for (size_t i = 0; i < t->cap; i++) {
				if (!t->edge[i])
					continue;
				size_t j = pair_slot(e, cap, t->edge[i]);
				e[j] = t->edge[i];
				c[j] = t->child[i];
			}
			t->edge = e;
			t->child = c;
			t->cap = cap;
		}
		size_t i = pair_slot(t->edge, t->cap, edge);
		if (!t->edge[i]) {
			if (t->n_nodes >= UINT32_MAX)
				arena_out(a);
			t->value = arena_grow(a, t->value, &t->cap_nodes, t->n_nodes + 1,
			                      sizeof *t->value);
			t->value[t->n_nodes] = -1;
			t->edge[i] = edge;
			t->child[i] = (uint32_t)t->n_nodes++;
			t->n_edges++;
		}
		node = t->child[i];
	}
	t->value[node] = value;
}

void
enc_push(Enc *e, int32_t id)
{
	e->ids = arena_grow(&e->arena, e->ids, &e->cap_ids, e->n_ids + 1, sizeof *e->ids);
	e->ids[e->n_ids++] = id;
}

void
piece_push(Enc *e, TokenPieces *p, ByteSpan text, int32_t id, bool first)
{
	p->v = arena_grow(&e->arena, p->v, &p->cap, p->n + 1, sizeof *p->v);
	p->v[p->n++] = (TokenPiece){ text, id, first };
}
