/* Attention of a tile on AMX. Only cpu/attention/attention_tile.h includes this file. */
#ifndef LLMC_CPU_ATTENTION_ATTENTION_TILE_AMX_H
#define LLMC_CPU_ATTENTION_ATTENTION_TILE_AMX_H

/* Scratch of a tile on AMX (cpu/attention/attention_amx.h). A row is a token and a query head: row
 * r belongs to token r / nh. */
typedef struct AttAmx {
	uint8_t *q, *keys, *values;
	float *oc, *os, *o; /* [32][vs]; os, o: [row][vs] */
	_Alignas(64) float ms[ATT_AMX_R], ls[ATT_AMX_R], m[ATT_AMX_R], l[ATT_AMX_R];
	float slope[ATT_MOST_HB];
	SplitRange range[ATT_AMX_R]; /* per token */
	int shift[ATT_AMX_R], pos[ATT_AMX_R];
	const char *next[2 * ATT_PAGES]; /* planes of keys and values of the next chunk */
	int n_next, asked; /* n_next: number of planes in `next`; the other: number of their lines
	                      prefetched so far */
} AttAmx;

/* Prefetches n lines of the next chunk */
LLMC_INLINE void
att_amx_ahead(const Att a, AttAmx *t, int n)
{
	const int k = (int)kv_plane(a.kv.k, a.dim) / 64, v = (int)kv_plane(a.kv.v, a.v_dim) / 64;

	for (; n > 0 && t->asked < t->n_next * (k + v); n--, t->asked++) {
		const int page = t->asked / (k + v), line = t->asked % (k + v);
		__builtin_prefetch(line < k ? t->next[2 * page] + line * 64
		                            : t->next[2 * page + 1] + (line - k) * 64,
		                   0, 2);
	}
}

/* Merges the sums oc, mc, lc of a chunk, for rows [r0, r0 + 16), into their spans, and finished
 * spans into the rows. */
LLMC_INLINE void
att_amx_close(const Att a, AttAmx *t, int chunk, int n_row, int nh, int r0, const float *mc,
              const float *lc, const float *oc)
{
	const int vs = att_vs(a);
	_Alignas(64) float alone[ATT_AMX_B], some[ATT_AMX_B], ended[ATT_AMX_B];
	int n_alone = 0, n_some = 0, n_end = 0;

	for (int r = 0; r < ATT_AMX_B; r++) {
		const int i = (r0 + r < n_row ? r0 + r : 0) / nh, mask = (1 << t->shift[i]) - 1,
		          add = lc[r] != 0;
		const int end =
		    add && mask &&
		    ((chunk & mask) == mask || chunk == (t->range[i].hi - 1) / ATT_CHUNK);
		alone[r] = mask ? 0 : lc[r];
		some[r] = mask ? lc[r] : 0;
		ended[r] = end;
		n_alone += add && !mask;
		n_some += add && mask;
		n_end += end;
	}
	if (n_alone) /* the span has a single chunk */
		att_amx_merge(vs, t->m + r0, t->l + r0, t->o + r0 * vs, mc, alone, oc);
	if (n_some)
		att_amx_merge(vs, t->ms + r0, t->ls + r0, t->os + r0 * vs, mc, some, oc);
	if (!n_end)
		return;
	for (int r = 0; r < ATT_AMX_B; r++)
		ended[r] = ended[r] != 0 ? t->ls[r0 + r] : 0;
	att_amx_merge(vs, t->m + r0, t->l + r0, t->o + r0 * vs, t->ms + r0, ended, t->os + r0 * vs);
	for (int r = 0; r < ATT_AMX_B; r++)
		t->ls[r0 + r] = ended[r] != 0 ? 0 : t->ls[r0 + r];
}

/* One or two row blocks, from row r0 on, with pages [first, last) of a chunk */
typedef struct AttBlocks {
	int r0, two, first, last;
	float *s;   /* [32][128] scores, then weights */
	uint8_t *p; /* [2] weights of each block as bf16 parts */
	_Alignas(64) float mc[2 * ATT_AMX_B], lc[2 * ATT_AMX_B];
} AttBlocks;

/* Sets the pages of the chunk to which the blocks' rows attend. Returns 0 if there are none. */
LLMC_INLINE int
att_amx_seen(const AttAmx *t, AttBlocks *b, int chunk, int n_row, int nh)
{
	const int end = b->r0 + (b->two + 1) * ATT_AMX_B < n_row ? b->r0 + (b->two + 1) * ATT_AMX_B
	                                                         : n_row,
	          pos0 = chunk * ATT_CHUNK;
	const int lo = t->range[b->r0 / nh].lo - pos0, hi = t->range[(end - 1) / nh].hi - pos0;

	b->first = lo > 0 ? lo / KV_PAGE : 0;
	b->last = hi < ATT_CHUNK ? (hi + KV_PAGE - 1) / KV_PAGE : ATT_PAGES;
	return hi > 0 && lo < ATT_CHUNK;
}

/* Converts scores of row r of the blocks to weights */
LLMC_INLINE void
att_amx_weigh(const Att a, const AttAmx *t, AttBlocks *b, int chunk, int n_row, int nh, int r)
{
	const int row = b->r0 + r, i = row < n_row ? row / nh : 0, pos0 = chunk * ATT_CHUNK;
	const int lo = t->range[i].lo > pos0 ? t->range[i].lo - pos0 : 0,
	          hi = t->range[i].hi < pos0 + ATT_CHUNK ? t->range[i].hi - pos0 : ATT_CHUNK;
	uint8_t *p = b->p + r / ATT_AMX_B * ATT_AMX_P;

	b->mc[r] = b->lc[r] = 0;
	if (row < n_row && lo < hi)
		att_amx_softmax(a, b->s + r * ATT_CHUNK, b->first, b->last, pos0, lo, hi, t->pos[i],
		                t->slope[row % nh], p, r % ATT_AMX_B, &b->mc[r], &b->lc[r]);
	else
		att_amx_unseen(b->first, b->last, p, r % ATT_AMX_B);
}

/* Processes one chunk for all rows, after the keys and values of the chunk have been converted.
 * ahead: lines of the next chunk to prefetch per row. This is a software pipeline: while vector
 * instructions convert the scores of some blocks to weights, AMX multiplies the next scores, and
 * the previous weights by values. */
LLMC_INLINE void
att_amx_blocks(const Att a, AttAmx *t, AttBlocks *turn, int chunk, int n_row, int nh, int ahead)
{
	const int vs = att_vs(a), n_block = (n_row + ATT_AMX_B - 1) / ATT_AMX_B;
	AttBlocks *now = NULL, *before = NULL;

	for (int k = 0, b = 0;; k++) {
		AttBlocks *next = NULL;
		AttDots scores = { 0 }, sums = { 0 };
		for (; b < n_block && !next;
		     b += 2) { /* the next blocks with positions that they attend to */
			turn[k % 3].r0 = b * ATT_AMX_B;
			turn[k % 3].two = b + 1 < n_block;
			if (att_amx_seen(t, &turn[k % 3], chunk, n_row, nh))
				next = &turn[k % 3];
		}
		if (next)
			scores = att_amx_scores(a, next->two,
			                        t->q + next->r0 / ATT_AMX_B * att_amx_steps(a.dim) *
			                                   2 * AMX_TILE,
			                        t->keys, next->first, next->last, next->s);
		if (before)
			sums = att_amx_sums(a, before->two, before->p, t->values, before->first,
			                    before->last, t->oc);
		const int rows = now ? (now->two + 1) * ATT_AMX_B : 0,
		          steps = scores.left * scores.steps + sums.left * sums.steps;
		for (int r = 0, done = 0; r < rows; r++) {
			for (; done < (r + 1) * steps / rows; done++)
				if (!att_amx_sum(a, &sums))
					att_amx_score(a, &scores);
			att_amx_weigh(a, t, now, chunk, n_row, nh, r);
			att_amx_ahead(a, t, ahead);
		}
		while (att_amx_sum(a, &sums) || att_amx_score(a, &scores))
			;
		for (int i = 0; before && i <= before->two; i++)
			att_amx_close(a, t, chunk, n_row, nh, before->r0 + i * ATT_AMX_B,
			              before->mc + i * ATT_AMX_B, before->lc + i * ATT_AMX_B,
			              t->oc + i * ATT_AMX_B * vs);
		if (!next && !now)
			return;
		before = now;
		now = next;
	}
}

/* Like att_tile, on AMX */
LLMC_INLINE void
att_amx_tile(const Att a, float *work, const llmc_step *s, const void *pool, const float *q,
             const float *sink, float *y, int seq, int row0, int n, int unit)
{
	const int hb = att_hb(a), vs = att_vs(a), group = att_group(a),
	          steps = att_amx_steps(a.dim);
	const int kv_head = unit / att_blocks(a),
	          head = kv_head * group + unit % att_blocks(a) * hb;
	const int nh = (kv_head + 1) * group - head < hb ? (kv_head + 1) * group - head : hb;
	const int n_row = n * nh, n_block = (n_row + ATT_AMX_B - 1) / ATT_AMX_B;
	const int ahead = (int)(kv_plane(a.kv.k, a.dim) + kv_plane(a.kv.v, a.v_dim)) / 64 *
	                      ATT_PAGES / (n_block * ATT_AMX_B) +
	                  1;
	AttAmx tile, *const t = &tile;
	AttBlocks turn[3];
	int lo = s->pos[row0], hi = 0;

	t->q = (uint8_t *)work;
	t->keys = t->q + ATT_AMX_R / ATT_AMX_B * steps * 2 * AMX_TILE;
	t->values = t->keys + att_amx_key_bytes(a);
	t->oc = (float *)(void *)(t->values + vs / VL * att_amx_value_tile(a));
	for (int i = 0; i < 3; i++) {
		turn[i].p = (uint8_t *)t->oc;
		turn[i].s = t->oc + 2 * ATT_AMX_P / 4;
		t->oc = turn[i].s + 2 * ATT_AMX_B * ATT_CHUNK;
	}
	t->os = t->oc + 2 * ATT_AMX_B * vs;
	t->o = t->os + ATT_AMX_R * vs;
	float *row = t->o + ATT_AMX_R * vs;
	memset(t->l, 0, sizeof t->l);
	memset(t->ls, 0, sizeof t->ls);
	memset(t->m, 0, sizeof t->m);
	memset(t->ms, 0, sizeof t->ms);
	for (int i = 0; i < n; i++) {
		t->pos[i] = s->pos[row0 + i];
		t->range[i] = att_range(a, s, seq, t->pos[i]);
		t->shift[i] = split_shift(ATT_SPLIT, t->range[i]);
		lo = t->range[i].lo < lo ? t->range[i].lo : lo;
		hi = t->range[i].hi > hi ? t->range[i].hi : hi;
	}
	memset(row, 0, (size_t)(steps * 32) * sizeof *row);
	for (int r = 0; r < n_block * ATT_AMX_B; r++) {
		if (r < n_row)
			att_query(a, row,
			          q + ((size_t)(row0 + r / nh) * (size_t)a.heads +
			               (size_t)(head + r % nh)) *
			                  (size_t)a.dim);
		att_amx_query(a, row, r % ATT_AMX_B, t->q + r / ATT_AMX_B * steps * 2 * AMX_TILE);
	}
	for (int g = 0; g < nh; g++)
		t->slope[g] = a.alibi > 0 ? att_slope(a, head + g) : 0;

	amx_begin(ATT_AMX_B, 64);
	for (int chunk = lo / ATT_CHUNK; chunk * ATT_CHUNK < hi; chunk++) {
		const int pos0 = chunk * ATT_CHUNK, j0 = lo > pos0 ? lo - pos0 : 0,
		          j1 = hi < pos0 + ATT_CHUNK ? hi - pos0 : ATT_CHUNK;

		for (int p = j0 / KV_PAGE; p * KV_PAGE < j1; p++) {
			char *page = kv_page(s, pool, a.kv.page_bytes, seq, chunk * ATT_PAGES + p);
			att_amx_keys(a, kv_k(a.kv, page, kv_head),
			             t->keys + p * (att_amx_key_bytes(a) / ATT_PAGES));
			att_amx_values(a, kv_v(a.kv, page, kv_head), j1 - p * KV_PAGE, p,
			               t->values);
		}
		t->n_next = t->asked = 0;
		for (int p = 0; p < ATT_PAGES && pos0 + ATT_CHUNK + p * KV_PAGE < hi;
		     p++, t->n_next++) {
			char *page =
			    kv_page(s, pool, a.kv.page_bytes, seq, (chunk + 1) * ATT_PAGES + p);
			t->next[2 * p] = kv_k(a.kv, page, kv_head);
			t->next[2 * p + 1] = kv_v(a.kv, page, kv_head);
		}
		att_amx_blocks(a, t, turn, chunk, n_row, nh, ahead);
	}
	amx_end();
	for (int r = 0; r < n_row; r++)
		att_put(a,
		        y + ((size_t)(row0 + r / nh) * (size_t)a.heads + (size_t)(head + r % nh)) *
		                (size_t)a.v_dim,
		        t->o + r * vs,
		        att_sink(sink ? sink + head + r % nh : NULL, t->m[r], t->l[r]));
}

#endif
