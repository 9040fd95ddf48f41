/* Unigram: the segmentation with the largest sum of scores (Viterbi over a trie of tokens).
 * sentencepiece adds in float, and gives user-defined tokens the best score times their length.
 * tokenizer.json adds in double and treats all tokens alike. */
#include "text/text.h"

#include <string.h>

typedef struct LatticeNode {
	double score;
	int32_t id;
	int64_t from; /* start of the best last token; -1: the position was not reached */
} LatticeNode;

void
unigram_pieces(llmc_tokenizer *t)
{
	bool first = true;

	trie_init(&t->pieces, &t->arena);
	for (int32_t i = 0; i < t->n_ids; i++) {
		const Token *k = &t->tok[i];
		ByteSpan s = { k->s, k->n };
		if (k->type == TT_UNKNOWN && t->unk_id < 0)
			t->unk_id = i;
		if (!k->n || (k->type != TT_NORMAL && k->type != TT_USER && k->type != TT_UNUSED))
			continue;
		strmap_put(&t->vocab, &t->arena, s, i);
		if (k->type != TT_UNUSED)
			trie_put(&t->pieces, &t->arena, s, i);
		if (k->type == TT_NORMAL) {
			t->min_score = first || k->score < t->min_score ? k->score : t->min_score;
			t->max_score = first || k->score > t->max_score ? k->score : t->max_score;
			first = false;
		}
	}
}

static double
add(const llmc_tokenizer *t, double a, double b)
{
	return t->spm ? (double)((float)a + (float)b) : a + b;
}

static void
keep_better_path(LatticeNode *node, double score, int32_t id, size_t from)
{
	if (node->from < 0 || score > node->score)
		*node = (LatticeNode){ score, id, (int64_t)from };
}

static void
emit(Enc *e, ByteSpan text, const LatticeNode *best)
{
	const llmc_tokenizer *t = e->t;
	size_t n = 0, cap = 0;
	size_t *cut = NULL;

	for (size_t end = text.n; end > 0; end = (size_t)best[end].from) {
		cut = arena_grow(&e->arena, cut, &cap, n + 1, sizeof *cut);
		cut[n++] = end;
	}
	for (size_t i = n; i-- > 0;) {
		size_t end = cut[i], from = (size_t)best[end].from;
		int32_t id = best[end].id;
		if (id >= 0) {
			enc_push(e, id);
			continue;
		}
		while ((t->spm || t->fuse_unk) && i > 0 && best[cut[i - 1]].id < 0)
			end = cut[--i];
		/* unknown segments may together be a token of the vocabulary, for example the
		 * unknown token itself */
		int32_t whole = t->spm ? -1 : strmap_get(&t->vocab, text.s + from, end - from);
		if (whole >= 0) {
			enc_push(e, whole);
			continue;
		}
		bool known = t->byte_fallback;
		for (size_t k = from; k < end && known; k++)
			known = t->byte_id[(unsigned char)text.s[k]] >= 0;
		for (size_t k = from; k < end && known; k++)
			enc_push(e, t->byte_id[(unsigned char)text.s[k]]);
		if (!known && t->unk_id >= 0)
			enc_push(e, t->unk_id);
	}
}

llmc_status
unigram_encode(Enc *e, ByteSpan text)
{
	const llmc_tokenizer *t = e->t;
	double unk_score = add(t, t->min_score, -10);
	LatticeNode *best = NEW(&e->arena, LatticeNode, text.n + 1);

	for (size_t i = 1; i <= text.n; i++)
		best[i].from = -1;
	for (size_t i = 0, len; i < text.n; i += len) {
		bool single = false;
		uint32_t node = 0;
		double here = best[i].score;
		utf8_next(text.s + i, text.n - i, &len);
		size_t j = i;
		for (; j < text.n; j++) {
			node = trie_step(&t->pieces, node, (unsigned char)text.s[j]);
			if (!node)
				break;
			int32_t id = t->pieces.value[node];
			if (id < 0)
				continue;
			double score = t->tok[id].score;
			if (t->spm && t->tok[id].type == TT_USER)
				score = (float)((double)((float)(j + 1 - i) * (float)t->max_score) -
				                0.1);
			keep_better_path(&best[j + 1], add(t, here, score),
			                 !t->spm && id == t->unk_id ? -1 : id, i);
			single |= j + 1 - i == len;
		}
		enc_work(e, j - i);
		if (!single)
			keep_better_path(&best[i + len], add(t, here, unk_score), -1, i);
	}
	emit(e, text, best);
	return LLMC_OK;
}
